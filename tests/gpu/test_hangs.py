"""Real NCCL, real kernels: programs that hang, and programs that only look so, under `ncclwatch run`.

Where there are fewer devices than ranks they share one, see `programs/device.py`.
"""

from pathlib import Path

import pytest

from tests.zoo.runner import run
from tests.zoo.truth import PROGRAMS as ZOO
from tests.zoo.truth import Truth, load

pytestmark = pytest.mark.timeout(240)
PROGRAMS = Path(__file__).with_name("programs")
TRUTHS = [load(path) for path in sorted(PROGRAMS.glob("*/*.toml"))]


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth.name)
def test_the_verdict_on_nccl(
    truth: Truth, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    if truth.known_wrong:
        request.applymarker(pytest.mark.xfail(reason=truth.known_wrong, strict=True))
    monkeypatch.setenv("PYTHONPATH", f"{PROGRAMS}:{ZOO}")
    assert run(truth, tmp_path / truth.id).faults == ()
