"""What is advised after a crash goes by how the rank ended."""

import pytest

from ncclwatch.contract.model.verdict import Cause, Verdict
from ncclwatch_server.judge import judge
from tests.scenarios.texts import situation


def told(ended: str, *more: str) -> Verdict:
    """Return what is said of a rank of two that ended so while the other one waited."""
    text = ["world 2", "group dp 0-1", "history 0-1 dp#1-6 all_reduce train.py:44", *more, ended]
    (found,) = judge(situation("\n".join(text)).snapshot())
    assert (found.cause, [each.rank for each in found.culprits]) == (Cause.RANK_CRASHED, [1])
    return found


@pytest.mark.parametrize(
    ("ended", "advice"),
    [
        ("ended 1 signal 9 ago 4", "Find out who sent the signal."),
        ("ended 1 signal 11 ago 4", "Look at the last output and the core dump of this rank"),
        ("ended 1 signal 7 ago 4", "Look at the last output and the core dump of this rank"),
        ("ended 1 signal 6 ago 4", "Look at the last output of this rank: native code aborted"),
        ("ended 1 exit 3 ago 4", "Look at the last output of this rank, and at the exit code or signal"),
        ('ended 1 error "ValueError: no such layer" train.py:12 ago 4', "Fix the exception of this rank"),
    ],
)
def test_each_end_has_an_advice_of_its_own(ended: str, advice: str) -> None:
    assert told(ended, "in 0 dp#7 all_reduce train.py:44 for 4").advice.startswith(advice)


def test_after_an_abort_in_a_job_of_nccl_its_error_is_to_be_looked_for() -> None:
    found = told("ended 1 signal 6 ago 4", "in 0 dp#7 all_reduce train.py:44 for 4", "facts 0-1 backend=nccl")
    assert found.advice.startswith("Look for an NCCL error in the output of this rank")


def test_an_exception_of_the_only_rank_is_its_own() -> None:
    text = 'world 1\ngroup dp 0\nended 0 error "ValueError: no such layer" train.py:12 ago 4'
    (found,) = judge(situation(text).snapshot())
    assert found.cause is Cause.RANK_CRASHED
    assert found.advice == "Fix the exception of this rank: its traceback is in this rank's own output."


def test_an_exception_of_all_ranks_at_one_line_comes_from_the_program() -> None:
    text = 'world 2\ngroup dp 0-1\nended 0-1 error "ValueError: no such layer" train.py:12 ago 4'
    (found,) = judge(situation(text).snapshot())
    assert [each.rank for each in found.culprits] == [0, 1]
    assert found.advice.startswith("Fix the exception: it comes from the program or its settings, not from one rank.")
