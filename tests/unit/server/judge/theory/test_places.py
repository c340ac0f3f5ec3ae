"""The line at which a rank is said to stand, by whoever saw it last: pulse, py-spy, wait, last operation."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import (
    CallSite,
    Op,
    OpView,
    ProcessState,
    ProcessView,
    RankView,
    StackDump,
    StackFrame,
    ThreadView,
    WaitKind,
    WaitView,
)
from ncclwatch_server.judge.theory.case import open_case
from ncclwatch_server.judge.theory.places import cannot_look, place_of
from tests.unit.server.server_values import view

PULSE = CallSite(file="/u/train.py", line=10, function="by_pulse")
WAIT = CallSite(file="/u/train.py", line=20, function="by_wait")
OPERATION = CallSite(file="/u/train.py", line=30, function="by_operation")
PY_SPY = CallSite(file="/u/train.py", line=1, function="by_py_spy")
LIBRARY = StackFrame(function="wait", file="/usr/lib/python3.11/threading.py", line=327)
UNREADABLE = StackFrame(function="lost", file="/u/train.py", line=0)
SEEN = StackFrame(function=PY_SPY.function, file=PY_SPY.file, line=PY_SPY.line)


def rank(doing: CallSite | None, waits_at: CallSite | None, pulse_age_s: float = 0.2) -> RankView:
    """Return a rank that did an operation once, and stands where its pulse or its wait says."""
    wait = WaitView(kind=WaitKind.DATA, age_s=3.0, site=waits_at) if waits_at else None
    thread = ThreadView(tid=1, main=True, issued=1, doing=doing, wait=wait)
    done = OpView(group="dp", seq=1, op=Op.ALL_REDUCE, site=OPERATION)
    return replace(view(0), threads=(thread,), history=(done,), pulse_age_s=pulse_age_s)


def place(of: RankView, *threads: tuple[str, tuple[StackFrame, ...]]) -> CallSite | None:
    """Return where it is said to stand, with these stacks by py-spy if any."""
    stacks = {of.rank: StackDump(rank=of.rank, threads=threads)} if threads else {}
    snapshot = JobSnapshot(job="job", world_size=4, ranks={of.rank: of}, stacks=stacks, silent={})
    return place_of(open_case(snapshot), of)


@pytest.mark.parametrize(
    ("doing", "waits_at", "said"),
    [(PULSE, WAIT, PULSE), (None, WAIT, WAIT), (None, None, OPERATION)],
)
def test_a_rank_with_a_pulse_stands_where_that_saw_it(
    doing: CallSite | None, waits_at: CallSite | None, said: CallSite
):
    assert place(rank(doing, waits_at)) == said


@pytest.mark.parametrize(("pulse_age_s", "said"), [(2.9, PULSE), (3.0, PY_SPY)])
def test_a_rank_that_holds_the_gil_stands_where_py_spy_saw_it(pulse_age_s: float, said: CallSite):
    assert place(rank(PULSE, WAIT, pulse_age_s), ("MainThread", (LIBRARY, SEEN))) == said


@pytest.mark.parametrize("state", [ProcessState.STOPPED, ProcessState.TRACED])
def test_a_stopped_rank_stands_where_py_spy_saw_it(state: ProcessState):
    stopped = replace(rank(PULSE, WAIT), process=ProcessView(state=state))
    assert place(stopped, ("MainThread", (SEEN,))) == PY_SPY


@pytest.mark.parametrize(
    ("doing", "waits_at", "said"),
    [(PULSE, WAIT, WAIT), (PULSE, None, PULSE), (None, None, OPERATION)],
)
def test_without_py_spy_a_lost_pulse_is_older_than_the_wait(
    doing: CallSite | None, waits_at: CallSite | None, said: CallSite
):
    assert place(rank(doing, waits_at, 9.0)) == said


def test_py_spys_other_threads_and_frames_it_could_not_read_tell_nothing():
    assert place(rank(None, WAIT, 9.0), ("Thread-1", (SEEN,))) == WAIT
    assert place(rank(None, WAIT, 9.0), ("MainThread", (UNREADABLE, LIBRARY))) == WAIT
    assert place(rank(None, WAIT, 9.0), ("Thread-1", (UNREADABLE,)), ("MainThread", (UNREADABLE, SEEN))) == PY_SPY


@pytest.mark.parametrize("pulse_age_s", [0.2, 9.0])
def test_a_rank_of_which_no_thread_was_seen_stands_at_its_last_operation(pulse_age_s: float):
    unseen = replace(rank(None, None, pulse_age_s), threads=())
    assert place(unseen) == OPERATION
    assert place(replace(unseen, history=())) is None


def test_a_sleeping_rank_with_a_pulse_can_look():
    assert not cannot_look(rank(PULSE, None))
