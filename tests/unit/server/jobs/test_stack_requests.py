"""Stacks that a reader asks for: whose, what has come, and what is said of the rest."""

import asyncio

import pytest

from ncclwatch.contract.model.rank import StackDump, StackFrame
from ncclwatch.contract.model.verdict import Cause, Certainty, Culprit, Severity, Verdict
from ncclwatch_server.incidents.book import Incident, IncidentState, JobKey
from ncclwatch_server.jobs.stack_requests import (
    NATIVE_MAX,
    RANKS_MAX,
    SAMPLE_MAX,
    Capture,
    choose,
    deep_ranks,
    why_not_native,
)

FRAME = StackFrame(function="train", file="/home/u/train.py", line=3)


def dump(rank: int, *, native: bool = False, failure: str = "") -> StackDump:
    threads = () if failure else (("MainThread", (FRAME,)),)
    return StackDump(rank=rank, threads=threads, failure=failure, native=(FRAME,) if native else ())


def incident(culprits: tuple[int, ...], victims: tuple[int, ...] = (), *, open_: bool = True) -> Incident:
    verdict = Verdict(
        cause=Cause.HOST_STALL, certainty=Certainty.STALLED, severity=Severity.CRITICAL, summary="s", explanation="e",
        advice="a", culprits=tuple(Culprit(rank=rank) for rank in culprits), victims=victims,
    )  # fmt: skip
    state = IncidentState.OPEN if open_ else IncidentState.RESOLVED
    key = JobKey(name="job", instance="", attempt=0)
    return Incident(
        id="i", key=key, job="job", world_size=4, state=state, verdict=verdict, onset_to_open_s=1.0, opened_at=1.0
    )


def test_all_ranks_of_a_small_job_are_looked_at_and_a_sample_of_a_big_one():
    assert choose(RANKS_MAX, ()).ranks == tuple(range(RANKS_MAX))
    found = choose(RANKS_MAX + 1, ())
    assert len(found.ranks) <= SAMPLE_MAX
    assert found.words == f"{len(found.ranks)} of {RANKS_MAX + 1} ranks: one in 5"


@pytest.mark.parametrize("world_size", [1024, 4096, 16_384, 98_304])
def test_a_sample_meets_every_place_in_a_node(world_size: int):
    places = {rank % 8 for rank in choose(world_size, ()).ranks}
    assert places == set(range(8))


def test_in_a_big_job_the_ranks_of_open_incidents_come_first():
    hung = incident((1001,), tuple(range(2000, 3000)))
    found = choose(16_384, (incident((7,), open_=False), hung))
    assert 1001 in found.ranks
    assert 7 not in found.ranks, "its incident is over"
    assert sum(2000 <= rank < 3000 for rank in found.ranks) >= 8, "some of its victims"
    assert len(found.ranks) <= SAMPLE_MAX
    assert "and 9 of open incidents" in found.words


def test_an_incident_of_thousands_leaves_room_for_the_others():
    found = choose(16_384, (incident(tuple(range(5000, 6000))),))
    assert len(found.ranks) <= SAMPLE_MAX
    assert len([rank for rank in found.ranks if not 5000 <= rank < 6000]) >= SAMPLE_MAX // 4


@pytest.mark.parametrize(
    ("wanted", "named", "deep"),
    [
        (tuple(range(NATIVE_MAX)), False, tuple(range(NATIVE_MAX))),
        (tuple(range(NATIVE_MAX + 1)), False, (3,)),
        (tuple(range(NATIVE_MAX + 1)), True, tuple(range(NATIVE_MAX + 1))),  # refused by the route, not cut in silence
    ],
)
def test_nobody_is_halted_who_was_not_named_nor_is_a_culprit(
    wanted: tuple[int, ...], named: bool, deep: tuple[int, ...]
):
    assert deep_ranks(wanted, named, (incident((3, 99)), incident((4,), open_=False))) == deep


def test_a_capture_is_over_when_all_have_answered():
    capture = Capture(questions={(1, 7): (0, 1), (2, 4): (2,)})
    assert not capture.receive_stacks((dump(5),), (9, 7)), "the answer to somebody else's question"
    assert capture.receive_stacks((dump(0), dump(1, failure="py-spy was refused"), dump(2)), (1, 7))
    assert set(capture.dumps) == {0, 1}, "an agent answers for the ranks it was asked for"
    assert not capture.over.is_set()
    assert capture.receive_stacks((dump(2),), (2, 4))
    assert capture.over.is_set()
    assert capture.unseen(3.0) == {1: "py-spy was refused"}


def test_a_line_that_breaks_ends_the_wait_for_it_and_is_told():
    capture = Capture(questions={(1, 7): (0, 1), (2, 4): (2,)}, unasked={3: "no node speaks for it"})
    capture.lose(1)
    assert not capture.over.is_set()
    assert capture.unseen(20.4) == {
        0: "the connection to its agent broke before it answered",
        1: "the connection to its agent broke before it answered",
        2: "its agent has not answered within 20 s",
        3: "no node speaks for it",
    }
    capture.lose(2)
    assert capture.over.is_set()


def test_a_capture_that_asks_nobody_is_over_at_once():
    capture = Capture(questions={}, unasked={0: "it has ended"})

    async def waited() -> None:
        await asyncio.wait_for(capture.over.wait(), 1.0)

    asyncio.run(waited())


def test_native_frames_that_did_not_come_are_told_of():
    dumps = {0: dump(0, native=True), 1: dump(1), 2: dump(2, failure="refused")}
    assert why_not_native(dumps, (0,)) == ""
    assert "no native frames of rank 1:" in why_not_native(dumps, (0, 1, 2, 3))
