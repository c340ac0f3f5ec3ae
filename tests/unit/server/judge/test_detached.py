"""Of a rank that has detached nothing is known, and the others are judged without it."""

import asyncio
import random
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from ncclwatch.contract import wire
from ncclwatch.contract.model.verdict import Cause, Severity, Verdict
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.incidents.book import IncidentBook
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.judge import judge
from ncclwatch_server.simulation.fleet import Fleet
from ncclwatch_server.simulation.hearing import Hearing
from ncclwatch_server.simulation.job.faults import Fault, FaultKind, drawn
from ncclwatch_server.simulation.job.layout import Layout
from ncclwatch_server.simulation.job.program import Training, courses
from ncclwatch_server.simulation.run import run
from ncclwatch_server.store.no_store import NoStore
from ncclwatch_server.watch.tick import Watch
from tests.scenarios import texts
from tests.unit.server.server_values import digest, view

LAYOUT = Layout.parse("tp=2,pp=2,dp=4,ep=2")
TRAINING = Training(microbatches=3)
HANG_S = 20.0
FAULTS = 6  # of each kind


class Detaching(Fleet):
    """Nodes some of whose ranks have detached before the job hung."""

    detached: tuple[int, ...] = ()

    def rows(self, hang_s: float):
        """Return their digests."""
        ranks, groups = super().rows(hang_s)
        ranks["detached"] = np.isin(ranks["rank"], self.detached) & (ranks["ended"] == 0)
        return ranks, groups


def told(fault: Fault, *detached: int) -> tuple[Verdict, ...]:
    """Return the critical verdicts on a job with a fault in which some ranks have detached."""
    fleet = Detaching(run(LAYOUT, TRAINING, (fault,), steps=4))
    fleet.detached = detached
    hearing = Hearing(fleet=fleet)
    for seconds in (0.0, HANG_S):
        hearing.report(seconds)
        suspicious = hearing.tick(seconds)
    found = judge(hearing.snapshot(HANG_S)) if suspicious else ()
    return tuple(each for each in found if each.severity is Severity.CRITICAL)


def test_no_node_is_lost_by_an_error_that_may_have_come_from_a_rank_that_has_detached() -> None:
    """It may have left its groups or its program, and who lost the connection to it ended with their containers."""
    said = """
world 4 hosts 2
group dp 0-3
ended 0 error "RuntimeError: Connection closed by peer [10.0.0.3]:2" train.py:44 ago 7.8
silent 2-3 for 8 closed 7.9
"""
    seen = texts.situation(said).snapshot()
    assert [each.cause for each in judge(seen)] == [Cause.NODE_LOST]
    ranks = {rank: view for rank, view in seen.ranks.items() if rank != 1}
    assert judge(replace(seen, ranks=ranks, silent={**seen.silent, 1: 0.0})) == ()


def look(watch: Watch, job: Job, now: float) -> None:
    """Take a look at a job at this moment."""
    watch._clock = lambda: now
    asyncio.run(watch._look_at(job))


@pytest.mark.parametrize("after", ["the line broke", "the agent came again and has sent no digest yet"])
def test_what_it_said_before_is_forgotten_whatever_becomes_of_its_agent(after: str) -> None:
    watch = Watch(judge, IncidentBook(), NoStore())
    near, far = (Link(number=number, agent=f"a{number}", host=f"h{number}", version="1") for number in (1, 2))
    jobs = watch.jobs
    said = wire.Announce(index=0, job="job", instance="i", attempt=0, world_size=2, ranks=(0,), terminal=False)
    theirs = msgspec.structs.replace(said, ranks=(1,))
    job = jobs.announce(near, said, 0.0)
    jobs.announce(far, theirs, 0.0)
    for link, rank in ((near, 0), (far, 1)):
        job.inspection.receive_views([view(rank)], (link.number, 1), 0.0)
    digest(job.state, near.number, 9.0, {0: 9.0})
    digest(job.state, far.number, 9.0, {1: 0.0}, detached=(1,))
    look(watch, job, 9.0)
    jobs.lose(far, 9.0)
    if after != "the line broke":
        jobs.announce(Link(number=3, agent="a2", host="h2", version="1"), theirs, 9.5)
    digest(job.state, near.number, 10.0, {0: 10.0})
    look(watch, job, 10.0)
    assert set(job.snapshot(10.0).ranks) == {0}


def faults(kind: FaultKind) -> list[Fault]:
    rng = random.Random(f"{kind.value} of a detached rank")
    stages = courses(LAYOUT, TRAINING, 4)
    return [drawn(kind, LAYOUT, stages, 2, rng) for _ in range(FAULTS)]


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind is not FaultKind.KILLED])
def test_of_one_that_has_detached_nothing_is_said_whatever_it_does(kind: FaultKind) -> None:
    for fault in faults(kind):
        assert told(fault), fault
        assert not told(fault, fault.rank), fault


@pytest.mark.parametrize("kind", FaultKind)
def test_a_fault_of_another_rank_is_told_of_it_or_not_at_all(kind: FaultKind) -> None:
    right = 0
    for number, fault in enumerate(faults(kind)):
        other = (fault.rank + 1 + number) % LAYOUT.world_size
        for verdict in told(fault, other):
            named = {culprit.rank for culprit in verdict.culprits}
            assert fault.rank in named and other not in named, (fault, other, verdict.summary)
            assert verdict.one_of or named == {fault.rank}, (fault, other, verdict.summary)
            right += 1
    assert right
