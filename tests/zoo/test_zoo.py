"""Runs each program of the zoo once: ncclwatch says the truth about real programs.

The programs take minutes: ``pytest -m zoo``. To look at one, use ``python -m tests.zoo.runner``.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclwatch.contract.on_hang.default_policy import DEFAULT_POLICY

from . import plain
from .common_server import common_server
from .jobs import Job
from .runner import quickest, run
from .truth import Expect, Truth, load_all

TRUTHS = load_all()
LIMIT_S = 60 + max(truth.timeout_s for truth in TRUTHS)


def _run_of(truth: Truth) -> object:
    """Return the parameter of a program; one that is known to be judged wrongly must go on being wrong."""
    marks = [pytest.mark.core] if truth.core else []
    if truth.known_wrong:
        marks.append(pytest.mark.xfail(strict=True, reason=truth.known_wrong))
    return pytest.param(truth, id=truth.program.stem, marks=marks)


each_program = pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth.program.stem)


@each_program
def test_every_truth_was_confirmed_without_ncclwatch(truth: Truth) -> None:
    assert truth.confirmed.endswith(".")


def test_the_core_has_a_program_for_each_cause_and_healthy_ones():
    assert {truth.cause[:1] for truth in TRUTHS if truth.core} == {truth.cause[:1] for truth in TRUTHS}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all programs that are not started in every part as their users would."""
    with common_server(tmp_path_factory.mktemp("server")) as address:
        yield address


@pytest.mark.zoo
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("truth", [_run_of(truth) for truth in TRUTHS])
def test_the_verdict_on_a_real_program_is_right(truth: Truth, tmp_path: Path, server: str) -> None:
    score = run(truth, tmp_path / "job", launcher=quickest(truth), server="" if truth.needs_torchrun else server)
    if score.faults:
        print((tmp_path / "job" / "stderr").read_text(errors="replace"))
    assert score.faults == ()


@pytest.mark.zoo
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("truth", load_all(("z01", "f04")), ids=lambda truth: truth.program.stem)
def test_the_fault_is_in_the_program_and_not_in_ncclwatch(truth: Truth, tmp_path: Path) -> None:
    assert plain.confirm(truth, tmp_path / "job").wrong == ""


def acted_on(truth: Truth, place: Path) -> tuple[int | None, str]:
    """Run a program whose agent acts by the shipped policy. Returns its exit code and what the agent has written down.

    Without the policy's patience: a verdict that were withdrawn in time would be acted upon as well.
    """
    policy = place / "policy.toml"
    policy.write_text(DEFAULT_POLICY.partition("[stalled_for_s]")[0] + "[stalled_for_s]\nother = 0\n")
    runtime = place / "runtime"
    extra = {
        "NCCLWATCH_ON_HANG": "policy",
        "NCCLWATCH_HANG_POLICY": str(policy),
        "NCCLWATCH_CAPTURES": str(place / "captures"),
        "NCCLWATCH_RUNTIME_DIR": str(runtime),
    }
    with Job(quickest(truth)(truth.program, truth.nproc, truth.arguments), place / "job", extra) as job:
        code = job.wait(truth.timeout_s).exit_code
    return code, "".join(log.read_text() for log in runtime.rglob("agent.log"))


def actions(log: str) -> list[str]:
    """Return the lines of an agent that say what it did to a job."""
    return [line for line in log.splitlines() if ": ending " in line or ": it hangs (" in line]


@pytest.mark.zoo
@pytest.mark.long
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(
    "truth", [each for each in TRUTHS if each.expect is Expect.HEALTHY], ids=lambda truth: truth.program.stem
)
def test_nothing_is_done_to_a_healthy_program(truth: Truth, tmp_path: Path) -> None:
    code, log = acted_on(truth, tmp_path)
    assert (code, actions(log)) == (0, []), log
    assert "connected to" in log, "an agent that has no server does nothing"


@pytest.mark.zoo
@pytest.mark.long
@pytest.mark.timeout(LIMIT_S)
def test_something_is_done_in_the_same_way_to_one_that_hangs(tmp_path: Path) -> None:
    (truth,) = load_all(("z01",))
    code, log = acted_on(truth, tmp_path)
    assert code != 0
    assert len(actions(log)) == 1, log
