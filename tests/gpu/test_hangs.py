"""Real NCCL, real kernels: programs that hang, and programs that only look so, under `ncclwatch run`.

Where there are fewer devices than ranks they share one, see `programs/device.py`.
"""

from pathlib import Path

import pytest

from tests.zoo.jobs import Job, torchrun, watched
from tests.zoo.scoring import report
from tests.zoo.scoring.verdicts import score
from tests.zoo.truth import PROGRAMS as ZOO
from tests.zoo.truth import Truth, load

pytestmark = pytest.mark.timeout(240)
PROGRAMS = Path(__file__).with_name("programs")
TRUTHS = [load(path) for path in sorted(PROGRAMS.glob("*/*.toml"))]
PATH = {"PYTHONPATH": f"{PROGRAMS}:{ZOO}"}


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth.name)
def test_the_verdict_on_nccl(truth: Truth, request: pytest.FixtureRequest, tmp_path: Path):
    if truth.known_wrong:
        request.applymarker(pytest.mark.xfail(reason=truth.known_wrong, strict=True))
    path = tmp_path / "report.json"
    on_hang = "abort" if truth.expect.alarms else "report"
    with Job(watched(path, on_hang, torchrun(truth.program, truth.nproc)), tmp_path / truth.id, PATH) as job:
        ended = job.wait(truth.timeout_s)
    found = score(truth, ended, report.read(path))
    assert not found.faults, "\n".join([*found.faults, ended.last_words, ended.standstill])
