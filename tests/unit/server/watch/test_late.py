"""The life of a wait for a rank that works: shown, warned of, warned of again, over; and what it leaves behind."""

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ncclwatch.contract import wire
from ncclwatch.contract.model.phases import Phase
from ncclwatch.contract.model.rank import CallSite, GroupView, Op, OpView, RankView, ThreadView, WaitKind, WaitView
from ncclwatch.contract.model.verdict import Lateness, Severity
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.incidents.book import IncidentBook, IncidentState
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.jobs.read_model import sight_of
from ncclwatch_server.judge import judge
from ncclwatch_server.state.waits.history import Memory
from ncclwatch_server.store.incident_store import Store
from ncclwatch_server.store.no_store import NoStore
from ncclwatch_server.watch.publisher import Keeper
from ncclwatch_server.watch.tick import Watch
from tests.unit.server.server_values import digest, view

TIMEOUT_S = 600.0
STEP_S = 0.25  # of the clock
BARRIER = CallSite(file="/u/train.py", line=60, function="main")


def group(enqueued: int, pending: OpView | None) -> GroupView:
    return GroupView(
        name="dp", desc="dp", ranks=(0, 1), enqueued=enqueued, completed=enqueued - (pending is not None),
        prefix_hash=0, pending=pending, timeout_s=TIMEOUT_S,
    )  # fmt: skip


def at_work(function: str, line: int, seq: int) -> RankView:
    """Return rank 0, which works in a function of the user and has come to all operations before `seq`."""
    site = CallSite(file="/u/train.py", line=line, function=function)
    thread = ThreadView(tid=1, main=True, issued=seq - 1, doing=site, frames=(site,), leaf=f"{function} /u/train.py:1")
    return replace(view(0), world_size=2, local_world_size=2, threads=(thread,), groups=(group(seq - 1, None),))


def in_barrier(seq: int, age_s: float) -> RankView:
    """Return rank 1, which has waited in a barrier for so long."""
    issued = OpView(group="dp", seq=seq, op=Op.BARRIER, site=BARRIER, age_s=age_s)
    wait = WaitView(kind=WaitKind.COLLECTIVE, age_s=age_s, group="dp", seq=seq, op=Op.BARRIER, site=BARRIER)
    thread = ThreadView(
        tid=2, main=True, issued=seq, wait=wait, doing=BARRIER, frames=(BARRIER,), leaf="wait /t:1", same_s=age_s,
        cpu_still_s=age_s,
    )  # fmt: skip
    return replace(
        view(1), pid=2, world_size=2, local_world_size=2, threads=(thread,), groups=(group(seq, issued),),
        process=replace(view(1).process, cpu_still_s=age_s, io_still_s=age_s),
    )  # fmt: skip


@dataclass
class Node:
    """Two ranks on one node: rank 1 waits in barriers while rank 0 does what it is told."""

    watch: Watch
    clock: list[float]
    name: str = "job"
    link: Link = field(init=False)
    job: Job = field(init=False)
    seq: int = 1

    def __post_init__(self) -> None:
        self.link = Link(number=1, agent="a", host="h", version="1")
        said = wire.Announce(index=0, job=self.name, instance="i", attempt=0, world_size=2, ranks=(0, 1), terminal=True)
        self.job = self.watch.jobs.announce(self.link, said, self.clock[0])
        self.printed: list[str] = []

    async def wait_for(
        self, seconds: float, doing: Callable[[float], tuple[str, int]], seen_from_s: float = 0.0
    ) -> list[str]:
        """Let rank 1 wait for so long, seen from some second of it on; returns what the API said each second."""
        self.seq += 1
        said = []
        for step in range(1 + int(seen_from_s / STEP_S), int(seconds / STEP_S) + 1):
            waited_s = step * STEP_S
            self.clock[0] += STEP_S
            digest(self.job.state, 1, self.clock[0], {0: 0.0, 1: waited_s}, enqueued=self.seq)
            self._answer([at_work(*doing(waited_s), self.seq), in_barrier(self.seq, waited_s)])
            await self.watch._look_at_safely(self.job)
            if waited_s % 1 == 0:
                said += sight_of(self.job, self.watch.book.open_of(self.job.key), self.clock[0]).waiting
        return said

    async def train(self, seconds: float) -> None:
        """Let both ranks train, operation after operation."""
        for _ in range(int(seconds / STEP_S)):
            self.clock[0] += STEP_S
            self.seq += 1
            digest(self.job.state, 1, self.clock[0], {0: 0.0, 1: 0.0}, enqueued=self.seq)
            self._answer([])
            await self.watch._look_at_safely(self.job)

    def _answer(self, views: list[RankView]) -> None:
        while self.link.outbox:
            command = self.link.outbox.popleft()
            assert isinstance(command, wire.Command)
            if command.kind is wire.CommandKind.INSPECT:
                self.job.inspection.receive_views(views, (1, command.id), self.clock[0])
            elif command.kind is wire.CommandKind.PRINT:
                self.printed.append(command.text)


def watch(clock: list[float], keeper: Keeper | None = None, memory: Memory | None = None) -> Watch:
    return Watch(
        judge, IncidentBook(), keeper or NoStore(), clock=lambda: clock[0], wall=lambda: 1e9 + clock[0], memory=memory
    )


def validating(_: float) -> tuple[str, int]:
    return ("validate", 212)


async def known_job(node: Node, waits: int = 3, seconds: float = 8.0) -> None:
    """Let a job validate a few times."""
    for _ in range(waits):
        await node.wait_for(seconds, validating)
        await node.train(4.0)


class LastingStore(NoStore):
    """A store whose incidents outlive the server."""

    lasting = True


@pytest.mark.parametrize("keeper", [NoStore(), LastingStore()], ids=["ends with the job", "is kept"])
def test_the_terminal_gets_all_of_what_cannot_be_asked_for_later(keeper: NoStore) -> None:
    async def scene() -> str:
        clock = [0.0]
        node = Node(watch(clock, keeper), clock)
        await node.wait_for(70.0, validating)
        await node.wait_for(70.0, lambda _: ("forward", 90))
        return node.printed[0]

    text = asyncio.run(scene())
    assert ("  evidence  " in text) != keeper.lasting
    assert ("  more      ncclwatch report " in text) == keeper.lasting
    assert text.startswith("ncclwatch: WARNING waiting for rank 0: ")


def test_a_long_validation_is_shown_warned_of_twice_and_over(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        clock = [0.0]
        node = Node(watch(clock), clock)
        await known_job(node)
        assert node.watch.book.all() == ()
        with caplog.at_level(logging.WARNING):
            said = await node.wait_for(580.0, lambda s: ("forward", 90) if s < 100 else ("validate", 212))
            assert re.fullmatch(r"waiting for rank 0: forward\(\) train.py:90, [34]\.\d s, working", said[2])
            assert said[150].startswith("waiting for rank 0: validate() train.py:212, ")
            (incident,) = node.watch.book.all()
            assert (incident.state, incident.verdict.severity) == (IncidentState.OPEN, Severity.WARNING)
            assert incident.verdict.lateness is Lateness.DEADLINE
            assert 579 <= incident.verdict.onset_s <= 580
            await node.train(6.0)
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == len(node.printed) == 2
        assert re.search(r"WARNING waiting for rank 0: forward\(\) train.py:90, 6[0-3] s, working", told[0])
        assert "validate() train.py:212, 8 min, working; the group's timeout ends the job in 2 min" in told[1]
        assert [i.state for i in node.watch.book.all()] == [IncidentState.RESOLVED]
        assert all(i.verdict.severity is not Severity.CRITICAL for i in node.watch.book.all())

    asyncio.run(scene())


def test_what_was_learned_is_the_bound_of_the_next_wait() -> None:
    async def scene() -> None:
        clock = [0.0]
        node = Node(watch(clock), clock)
        await known_job(node, waits=3, seconds=20.0)
        said = await node.wait_for(59.0, validating)
        assert node.watch.book.all() == ()
        assert "working" in said[-1]
        said = await node.wait_for(70.0, validating)
        assert node.watch.book.all() == (), "59 s have taught more"
        await node.train(5.0)
        await node.wait_for(215.0, validating, seen_from_s=190.0)
        (incident,) = node.watch.book.all()
        assert incident.verdict.lateness is Lateness.UNUSUAL
        assert "this job has waited for that 70 s at most" in incident.verdict.summary

    asyncio.run(scene())


def test_the_sentence_of_a_warning_follows_the_rank() -> None:
    async def scene() -> None:
        clock = [0.0]
        node = Node(watch(clock), clock)
        await known_job(node)
        await node.wait_for(100.0, lambda s: ("load", int(s)))
        (incident,) = node.watch.book.all()
        (culprit,) = incident.verdict.culprits
        assert culprit.call_site is not None
        assert culprit.call_site.line >= 98

    asyncio.run(scene())


def test_a_warning_stands_until_its_wait_is_over_though_the_rank_begins_something_that_may_take_longer() -> None:
    async def scene() -> None:
        clock = [0.0]
        node = Node(watch(clock), clock)
        await node.wait_for(150.0, lambda s: ("load", 9) if s < 70 else ("save_checkpoint", 9))
        (incident,) = node.watch.book.all()
        assert (incident.state, incident.verdict.lateness) == (IncidentState.OPEN, Lateness.UNUSUAL)
        assert "save_checkpoint() train.py:9" in incident.verdict.summary
        await node.train(5.0)
        assert [i.state for i in node.watch.book.all()] == [IncidentState.RESOLVED]

    asyncio.run(scene())


@pytest.mark.parametrize("function", ["validate", "save_checkpoint", "compile_model"])
def test_the_first_long_work_of_a_job_alarms_nobody_before_the_timeout_is_near(function: str) -> None:
    async def scene() -> None:
        clock = [0.0]
        node = Node(watch(clock), clock)
        await node.wait_for(449.0, lambda _: (function, 9), seen_from_s=430.0)
        assert node.watch.book.all() == ()
        await node.wait_for(455.0, lambda _: (function, 9), seen_from_s=440.0)
        (incident,) = node.watch.book.all()
        assert (incident.verdict.severity, incident.verdict.lateness) == (Severity.WARNING, Lateness.DEADLINE)

    asyncio.run(scene())


def test_habits_survive_the_server_and_belong_to_the_name_of_the_job(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'incidents.db'}"

    async def scene(name: str, seconds: float) -> tuple[str, ...]:
        clock = [0.0]
        with Store(url) as store:
            node = Node(watch(clock, store, Memory(store.lessons())), clock, name)
            await node.wait_for(seconds, validating)
            found = tuple(i.verdict.summary for i in node.watch.book.all())
            await node.train(4.0)
        return found

    assert asyncio.run(scene("train", 40.0)) == ()
    with Store(url) as store:
        (lesson,) = store.lessons()["train"]
        assert (lesson.kind.phase, lesson.kind.op, lesson.kind.size) == (Phase.VALIDATION, "barrier", 2)
        assert lesson.durations_s[0] == pytest.approx(40.0, abs=0.5)
    (told,) = asyncio.run(scene("train", 130.0))
    assert "this job has waited for that 40 s at most" in told
    assert asyncio.run(scene("another", 125.0)) == ()


def test_a_job_that_is_resumed_in_the_same_server_finds_its_habits() -> None:
    async def scene() -> None:
        clock = [0.0]
        watching = watch(clock)
        await known_job(Node(watching, clock), waits=1, seconds=40.0)
        said = wire.Announce(index=1, job="job", instance="i", attempt=1, world_size=2, ranks=(0, 1), terminal=False)
        again = watching.jobs.announce(Link(number=2, agent="a", host="h", version="1"), said, clock[0])
        assert [habit.waits for habit in again.patience.habits.values()] == [1]

    asyncio.run(scene())
