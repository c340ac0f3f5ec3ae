"""Both sides, built with a sanitizer, under the real torch and Python: minutes, for `make sanitize`."""

import os
from pathlib import Path

import pytest

from ncclwatch.native import build
from tests.integration.launch import run_ranks, started
from tests.sanitized.sanitizers import SANITIZERS_WITH_TORCH

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.environ.get("SANITIZE") != "all", reason="takes minutes: `make sanitize`"),
]


@pytest.fixture(scope="module", params=list(SANITIZERS_WITH_TORCH))
def sanitized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a rank whose native recorder was built with a sanitizer."""
    sanitizer, built = SANITIZERS_WITH_TORCH[request.param], tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", f"g++ {sanitizer.flag} -g1")
        patch.setenv("NCCLWATCH_NATIVE_DIR", str(built))
        patch.setattr(build, "_FLAGS", tuple(flag for flag in build._FLAGS if flag != "-s"))
        build.build()
    return {"NCCLWATCH_NATIVE_DIR": str(built), "LD_PRELOAD": sanitizer.preloaded(), **sanitizer.settings}


@pytest.mark.parametrize(("recorder", "setting"), [("native", "1"), ("hot", "without-torch")])
@pytest.mark.parametrize(("program", "ranks"), [("forgotten.py", 1), ("signalled.py", 1), ("crowded.py", 2)])
def test_a_stress_of_the_recorder_is_clean(
    sanitized: dict[str, str], program: str, ranks: int, recorder: str, setting: str, tmp_path: Path
):
    for rank in run_ranks(program, ranks, tmp_path, recorder, begin=started, **sanitized, NCCLWATCH_NATIVE=setting):
        assert rank.code == 0, rank.out[-2000:] + rank.err[:8000]
        assert "Sanitizer" not in rank.err
