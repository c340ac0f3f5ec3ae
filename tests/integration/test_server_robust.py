"""A judge, a stack or a store that fails on one job leaves the other jobs watched."""

import asyncio
import logging
from dataclasses import replace

import pytest

from ncclwatch.contract import wire
from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import StackDump, StackFrame
from ncclwatch.contract.model.verdict import Verdict
from ncclwatch_server import limits
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.incidents.book import IncidentBook
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.store.no_store import NoStore
from ncclwatch_server.watch.tick import Watch
from tests.unit.server.server_values import VERDICT, digest, view

HOSTILE = StackFrame(function="f\x00\x1b[2J", file="/nfs/\x00\ud800", line=-1)


def judge(snapshot: JobSnapshot) -> tuple[Verdict, ...]:
    """Fail on one job, blame rank 1 of all others."""
    if snapshot.job == "indigestible":
        raise ZeroDivisionError
    return (replace(VERDICT, victims=(0,)),)


def join(watch: Watch, number: int, name: str) -> tuple[Link, Job]:
    """Let a node with two ranks join, of which rank 0 waits."""
    link = Link(number=number, agent=name, host="h", version="1")
    said = wire.Announce(index=0, job=name, instance="i", attempt=0, world_size=2, ranks=(0, 1), terminal=False)
    job = watch.jobs.announce(link, said, 0.0)
    digest(job.state, number, 0.0, {0: 9.0, 1: 0.0})
    return link, job


def answer(link: Link, job: Job, now: float) -> None:
    """Answer all commands, with stacks that no terminal should see."""
    while link.outbox:
        command = link.outbox.popleft()
        assert isinstance(command, wire.Command)
        question = (link.number, command.id)
        if command.kind is wire.CommandKind.INSPECT:
            job.inspection.receive_views([view(0), view(1)], question, now)
        elif command.kind is wire.CommandKind.STACKS and job.gathering is not None:
            job.gathering.receive_stacks([StackDump(rank=1, threads=(("MainThread", (HOSTILE,)),))], question)


async def watched(watch: Watch, nodes: list[tuple[Link, Job]], seconds: float, clock: list[float]) -> None:
    """Let the watch look at its jobs while its clock runs in steps of a tenth of a second."""
    for _ in range(int(seconds * 10)):
        clock[0] += 0.1
        for link, job in nodes:
            digest(job.state, link.number, clock[0], {0: 9.0 + clock[0], 1: 0.0})
            answer(link, job, clock[0])
            await watch._look_at_safely(job)


def test_a_job_that_cannot_be_judged_leaves_the_others_watched(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        clock = [0.0]
        watch = Watch(judge, IncidentBook(), NoStore(), clock=lambda: clock[0], wall=lambda: clock[0])
        nodes = [join(watch, 1, "indigestible"), join(watch, 2, "job")]
        with caplog.at_level(logging.ERROR):
            await watched(watch, nodes, 5.0, clock)
        assert [(i.job, len(i.stacks)) for i in watch.book.all()] == [("job", 1)]
        assert watch.counters.judge_failures > 2
        assert watch.counters.look_failures == 0
        assert len(caplog.records) == 1

    asyncio.run(scene())


def test_a_look_that_fails_is_told_once_and_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        clock = [0.0]
        watch = Watch(judge, IncidentBook(), NoStore(), clock=lambda: clock[0], wall=lambda: clock[0])
        nodes = [join(watch, 1, "broken"), join(watch, 2, "job")]
        monkeypatch.setattr(nodes[0][1].state, "fold", None)
        await watched(watch, nodes, 5.0, clock)
        assert [i.job for i in watch.book.all()] == ["job"]
        assert watch.counters.look_failures == 50
        assert len([r for r in caplog.records if "looking at job broken failed" in r.message]) == 1

    asyncio.run(scene())


def test_without_answers_and_without_news_nothing_is_judged_before_patience_ends() -> None:
    async def scene() -> None:
        clock = [0.0]
        watch = Watch(judge, IncidentBook(), NoStore(), clock=lambda: clock[0], wall=lambda: clock[0])
        link, job = join(watch, 1, "job")
        clock[0] = 2.0
        await watch._look_at_safely(job)  # lays out: whoever is new has moved
        clock[0] = 3.0
        await watch._look_at_safely(job)
        assert job.inspection.asking
        clock[0] = 3.0 + limits.ANSWER_S - 0.01
        await watch._look_at_safely(job)
        assert watch.counters.judgements == 0
        clock[0] = 3.0 + limits.ANSWER_S
        await watch._look_at_safely(job)
        assert watch.counters.judgements == 1
        assert link.outbox

    asyncio.run(scene())
