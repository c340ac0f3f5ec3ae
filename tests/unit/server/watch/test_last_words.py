"""A job that ends while stacks of its hang are awaited: its last words belong to the incident of that hang."""

import asyncio
from dataclasses import replace

import pytest

from ncclwatch.contract import wire
from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import Ending
from ncclwatch.contract.model.verdict import Cause, Verdict
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.incidents.book import Incident, IncidentBook, IncidentState
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.jobs.outcome import Outcome
from ncclwatch_server.store.no_store import NoStore
from ncclwatch_server.watch.tick import Watch
from tests.unit.server.server_values import VERDICT, digest, verdict, view

HANG = replace(VERDICT, victims=(0,))


def look_at_a_job_that_dies(last_words: Verdict) -> tuple[Job, tuple[Incident, ...]]:
    """Return a job that hangs, is judged, and dies before an agent has sent a stack, and its incidents."""
    clock = [0.0]

    def judge(snapshot: JobSnapshot) -> tuple[Verdict, ...]:
        ended = any(each.ending is not None for each in snapshot.ranks.values())
        return (last_words if ended else HANG,)

    async def look(ended: tuple[int, ...]) -> None:
        clock[0] += 0.1
        digest(job.state, link.number, clock[0], {0: 9.0 + clock[0], 1: 0.0}, ended=ended, gpus=(1,))
        while link.outbox:
            _answer_views(link, job, clock[0], ended)
        await watch._look_at(job)

    async def scene() -> None:
        while job.gathering is None:
            await look(ended=())
        assert not job.gathering.opened
        while not job.ended:
            await look(ended=(0, 1))

    watch = Watch(judge, IncidentBook(), NoStore(), clock=lambda: clock[0], wall=lambda: clock[0])
    link = Link(number=1, agent="a", host="h", version="1")
    said = wire.Announce(index=0, job="job", instance="i", attempt=0, world_size=2, ranks=(0, 1), terminal=False)
    job = watch.jobs.announce(link, said, 0.0)
    asyncio.run(scene())
    return job, watch.book.all()


def _answer_views(link: Link, job: Job, now: float, ended: tuple[int, ...]) -> None:
    command = link.outbox.popleft()
    assert isinstance(command, wire.Command)
    if command.kind is wire.CommandKind.INSPECT:
        views = [
            view(rank, Ending(kind="exited", exit_code=1, age_s=0.1) if rank in ended else None) for rank in (0, 1)
        ]
        job.inspection.receive_views(views, (link.number, command.id), now)


@pytest.mark.parametrize(
    "last_words",
    [
        pytest.param(replace(HANG, victims=()), id="the same with other victims"),
        pytest.param(verdict(Cause.RANK_CRASHED, victims=(0,)), id="how it died"),
    ],
)
def test_the_last_words_of_a_job_open_no_second_incident_of_its_hang(last_words: Verdict) -> None:
    job, (incident,) = look_at_a_job_that_dies(last_words)
    assert (job.end.outcome, job.end.incident) == (Outcome.HUNG, incident.id)
    assert incident.state is IncidentState.ENDED
    assert incident.verdict.cause is HANG.cause
    assert incident.gpus == 1
