"""Runs each program of the zoo once: ncclwatch says the truth about real programs.

The programs take minutes: ``pytest -m zoo``. To look at one, use ``python -m tests.zoo.runner``.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import plain
from .common_server import common_server
from .runner import quickest, run
from .truth import Truth, load_all

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
    assert score.faults == ()


@pytest.mark.zoo
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("truth", load_all(("z01", "f04")), ids=lambda truth: truth.program.stem)
def test_the_fault_is_in_the_program_and_not_in_ncclwatch(truth: Truth, tmp_path: Path) -> None:
    assert plain.confirm(truth, tmp_path / "job").wrong == ""
