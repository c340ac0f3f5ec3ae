"""A job that was given up while it hung, because no agent reached the server, and that hangs when they come back."""

import asyncio
from dataclasses import replace

import pytest

from ncclwatch.contract import wire
from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.verdict import Verdict
from ncclwatch_server import limits
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.incidents.book import IncidentBook, IncidentState
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.store.no_store import NoStore
from ncclwatch_server.watch.tick import Watch
from tests.unit.server.server_values import VERDICT, digest, view

HANG = replace(VERDICT, victims=(0,))
KNOWN_BETTER = replace(HANG, seq=HANG.seq + 1, culprits=HANG.culprits[:1])


class Scene:
    """A job of two ranks that hangs, and its agent, whose connection may be lost."""

    def __init__(self) -> None:
        self.now, self.connections = 0.0, 0
        self.said: tuple[Verdict, ...] = (HANG,)
        self.watch = Watch(
            self.judge, IncidentBook(), NoStore(), clock=lambda: self.now, wall=lambda: 1000.0 + self.now
        )

    def judge(self, snapshot: JobSnapshot) -> tuple[Verdict, ...]:
        return () if snapshot.silent else self.said

    def connect(self) -> Job:
        self.connections += 1
        self.link = Link(number=self.connections, agent="a", host="h", version="1")
        said = wire.Announce(
            index=0, job="job", instance="i", attempt=0, world_size=2, ranks=(0, 1), terminal=False, run=1, lives=True
        )
        return self.watch.jobs.announce(self.link, said, self.now)

    def look(self, job: Job, seconds: float, *, waits: bool = True) -> None:
        async def look() -> None:
            for _ in range(int(10 * seconds)):
                self.now += 0.1
                digest(job.state, self.link.number, self.now, dict.fromkeys((0, 1), self.now if waits else 0.0))
                while self.link.outbox:
                    command = self.link.outbox.popleft()
                    if isinstance(command, wire.Command) and command.kind is wire.CommandKind.INSPECT:
                        views = [view(rank) for rank in command.ranks]
                        job.inspection.receive_views(views, (self.link.number, command.id), self.now)
                await self.watch._look_at(job)

        asyncio.run(look())

    def lose(self, job: Job) -> None:
        self.watch.jobs.lose(self.link, self.now)

        async def wait() -> None:
            while not job.ended:
                self.now += 1.0
                await self.watch._look_at(job)

        asyncio.run(wait())


def hung_and_given_up() -> Scene:
    scene = Scene()
    job = scene.connect()
    scene.look(job, 15.0)
    scene.lose(job)
    (incident,) = scene.watch.book.all()
    assert incident.state is IncidentState.ENDED
    return scene


@pytest.mark.parametrize("said", [HANG, KNOWN_BETTER], ids=["the same", "known better"])
def test_the_hang_of_a_job_that_comes_back_is_the_incident_that_it_was(said: Verdict) -> None:
    scene = hung_and_given_up()
    scene.said = (said,)
    scene.look(scene.connect(), 15.0)
    (incident,) = scene.watch.book.all()
    assert incident.open
    assert incident.reopened_at > 1000.0


def test_a_job_that_comes_back_and_goes_on_opens_another_incident_for_its_next_hang() -> None:
    scene = hung_and_given_up()
    job = scene.connect()
    scene.said = ()
    scene.look(job, limits.CALM_S + 5.0, waits=False)
    scene.said = (KNOWN_BETTER,)
    scene.look(job, 15.0)
    later, first = scene.watch.book.all()
    assert (later.open, first.state) == (True, IncidentState.ENDED)


def test_a_job_whose_agent_comes_back_while_it_is_judged_for_the_last_time_is_watched_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    job = scene.connect()
    scene.look(job, 5.0, waits=False)
    came_back: list[Job] = []

    def judge(snapshot: JobSnapshot) -> tuple[Verdict, ...]:
        if job.over_at is not None and not came_back:
            came_back.append(scene.connect())
        return ()

    monkeypatch.setattr(scene.watch._examiner, "_judge", judge)
    scene.watch.jobs.lose(scene.link, scene.now)

    async def wait() -> None:
        while not came_back:
            scene.now += 1.0
            await scene.watch._look_at(job)

    asyncio.run(wait())
    assert (came_back, job.ended) == ([job], False)
    monkeypatch.setattr(scene.watch._examiner, "_judge", scene.judge)
    scene.look(job, 15.0)
    (incident,) = scene.watch.book.all()
    assert incident.open
