"""Lets a server hear a situation: digests, views and words of real rings come over the wire to its own watch.

The job of a situation may be part of a bigger one: then other ranks are at work besides it, in no group of theirs.
The same instant is told again and again, as long as the server takes to be sure; so ages are what the text says.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from ncclwatch.contract import digests, wire
from ncclwatch.contract.digests import SAVE_TROUBLE
from ncclwatch.contract.groups import text_key
from ncclwatch.contract.machine import boot
from ncclwatch.contract.model.job import Contact, JobSnapshot
from ncclwatch.contract.model.rank import ProcessState, ProcessView, RankView, StackDump, ThreadView
from ncclwatch.contract.model.verdict import Verdict
from ncclwatch_server.evidence.agent_link import Link, no_contact
from ncclwatch_server.incidents.book import Incident, IncidentBook
from ncclwatch_server.ingest.agent_news import AgentNews
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.judge import judge
from ncclwatch_server.judge.theory.waits.rank_standing import GONE_STATES
from ncclwatch_server.state.waits.learning import Patience
from ncclwatch_server.store.no_store import NoStore
from ncclwatch_server.watch.tick import Watch
from tests.scenarios.situation import Situation
from tests.scenarios.through_rings import read_back

MOMENTS_S = (-4.0, -2.0, -1.0, 0.0)  # of digests, before the moment that the text is about
_FIELDS = tuple(name for name, _ in digests.RANK_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What a server made of a situation."""

    said: tuple[Verdict, ...]  # of its last judgement; () if it never took a closer look
    incidents: tuple[Incident, ...]  # opened


@dataclass(slots=True, kw_only=True)
class _Rank:
    """One rank as its agent tells of it."""

    view: RankView
    row: tuple[float, ...] | None = None  # of a digest; None: only seen from outside
    groups: tuple[tuple[float, ...], ...] = ()
    loop: wire.Loop | None = None


class _Known(Patience):
    """What the job has done before, as the situation says."""

    def __init__(self, snapshot: JobSnapshot) -> None:
        super().__init__()
        self._told = snapshot

    @property
    def habits(self):
        """What this job has done before."""
        return self._told.habits

    @property
    def under_way(self):
        """What the ranks that are waited for have done since each wait began."""
        return self._told.under_way


def hear(situation: Situation, others: int = 0) -> Heard:
    """Let a server hear a situation, with so many more ranks at work in the same job."""
    return asyncio.run(Telling(situation.snapshot(), others).until_settled())


class Telling:
    """The nodes of one job, and the server that they tell of it."""

    def __init__(self, snapshot: JobSnapshot, others: int) -> None:
        self.snapshot, self.clock_s = snapshot, 0.0
        self.world_size = snapshot.world_size + others
        self.ranks = {rank: _told(view, self.world_size) for rank, view in snapshot.ranks.items()}
        self.mute = {*snapshot.unasked, *snapshot.silent}  # they do not answer
        others = (*sorted(snapshot.unasked), *range(snapshot.world_size, self.world_size))
        self.ranks |= _at_work(others, self.world_size, tuple(sorted({view.host for view in snapshot.ranks.values()})))
        for quiet in snapshot.quiet_nodes:
            self.ranks |= _at_work(quiet.ranks, self.world_size, (quiet.host,))
        self.judged: list[tuple[Verdict, ...]] = []
        self.watch = Watch(self._judge, IncidentBook(()), NoStore(), self.clock, self.clock)
        self.nodes = [_Node(self, number, host, ranks) for number, (host, ranks) in enumerate(self._hosts().items(), 1)]

    def clock(self) -> float:
        """Return the server's time."""
        return self.clock_s

    def _judge(self, snapshot: JobSnapshot) -> tuple[Verdict, ...]:
        self.judged.append(judge(snapshot))
        return self.judged[-1]

    def _hosts(self) -> Mapping[str, list[int]]:
        hosts: dict[str, list[int]] = {}
        for rank, told in sorted(self.ranks.items()):
            hosts.setdefault(told.view.host, []).append(rank)
        return hosts

    async def until_settled(self) -> Heard:
        """Tell of the same instant until the server has said all that it will say of it."""
        for node in self.nodes:
            self.clock_s = max((self.snapshot.absent_s - self.snapshot.silent[rank] for rank in node.quiet), default=0)
            node.announce()
        for moment_s in MOMENTS_S:
            self.clock_s = max(0.0, self.snapshot.absent_s + moment_s)
            await self.look()
        return Heard(said=self.said, incidents=tuple(self.watch.book.all()))

    @property
    def job(self) -> Job:
        """The job, as the server has it."""
        return self.nodes[0].job

    @property
    def said(self) -> tuple[Verdict, ...]:
        """What the last judgement said."""
        return tuple(map(self.job.counted, self.judged[-1])) if self.judged else ()

    async def look(self) -> None:
        """Let the nodes tell, and the server look, ask, and judge the answers, at one moment."""
        for node in self.nodes:
            node.digest()
        await self.watch._look_at(self.job)
        while sum(node.answers() for node in self.nodes):
            await self.watch._look_at(self.job)

    def is_now(self, snapshot: JobSnapshot) -> None:
        """Let the ranks be what they are by now; those whose nodes are silent stay what they were."""
        self.snapshot, self.mute = snapshot, {*snapshot.unasked, *snapshot.silent}
        self.ranks |= {rank: _told(view, self.world_size) for rank, view in snapshot.ranks.items()}


class _Node:
    """One agent, on its connection."""

    def __init__(self, telling: Telling, number: int, host: str, ranks: list[int]) -> None:
        self.telling, self.ranks = telling, ranks
        clocks_s = telling.snapshot.setup.clocks_s
        self.link = Link(
            number=number, agent=f"agent {number}", host=host, version="1", clock=telling.clock,
            ahead_s=clocks_s.get(host), contact=self._contact,
            machine=boot.machine() if host == telling.snapshot.cut_off_host else "elsewhere",
        )  # fmt: skip
        self.news = AgentNews(link=self.link, watch=telling.watch, clock=telling.clock)

    @property
    def job(self) -> Job:
        """The job, as the server has it."""
        return self.news.jobs[0]

    @property
    def address(self) -> str:
        """Where other nodes reach it."""
        return f"10.0.0.{self.link.number}"

    @property
    def quiet(self) -> list[int]:
        """The ranks here that are silent: all, or none of them."""
        return [rank for rank in self.ranks if rank in self.telling.snapshot.silent]

    def _contact(self) -> tuple[Contact, float]:
        quiet = self.telling.snapshot.quiet_nodes
        contact, lasted_s = next(
            ((node.contact, node.contact_s) for node in quiet if node.host == self.link.host), no_contact()
        )
        return Contact.MUTE if contact is Contact.REACHED else contact, lasted_s

    def say(self, message: wire.AgentMessage) -> None:
        """Let the server take a message, as it comes over the wire."""
        unread = self.news.take_message(wire.open_from_agent(wire.encode(message)), self.telling.clock_s)
        if unread is not None:
            self.news.take_views(self.job, unread.read(), self.telling.clock_s)

    def announce(self) -> None:
        """Say which ranks run here, how they were set up, and how some have ended."""
        telling = self.telling
        self.say(wire.Announce(index=0, job="job", instance="i", attempt=0, world_size=telling.world_size,
                               ranks=tuple(self.ranks), terminal=False,
                               addresses=(self.address,)))  # fmt: skip
        self.job.patience = _Known(telling.snapshot)
        setup = telling.snapshot.setup
        alike = tuple(
            wire.Alike(tuple(rank for rank in each.ranks if rank in self.ranks), each.facts) for each in setup.alike
        )
        joined = tuple(rank for rank in self.ranks if telling.ranks[rank].view.initialised)
        self.say(wire.Facts(index=0, alike=tuple(each for each in alike if each.ranks), joined=joined))
        loops = [loop for rank in self.ranks if (loop := telling.ranks[rank].loop) is not None]
        self.say(wire.Loops(index=0, ranks=tuple(loops)))

    def digest(self) -> None:
        """Tell of all ranks; of those that have ended all is said, and of nobody else there is more to come."""
        if self.quiet:
            return
        told = [self.telling.ranks[rank] for rank in self.ranks]
        over = (each.view for each in told if each.view.process.state in GONE_STATES)
        ended = tuple(view for view in over if view.ending is not None)
        if ended and self.link.number not in self.news.over:
            self.say(wire.Views(index=0, ranks=ended))
        rows = [each.row for each in told if each.row is not None]
        groups = [row for each in told for row in each.groups]
        if len(ended) == len(told):
            self.say(wire.Gone(index=0))
        else:
            self.news.take_digest(digests.pack_digest(0, rows, groups))

    def answers(self) -> bool:
        """Answer all that the server has asked. Returns whether it has asked anything."""
        asked = [command for command in self.link.outbox if isinstance(command, wire.Command)]
        self.link.outbox.clear()
        if self.quiet:
            return False
        for command in asked:
            self._answer(command)
        return bool(asked)

    def _answer(self, command: wire.Command) -> None:
        telling, snapshot, head = self.telling, self.telling.snapshot, {"index": 0, "reply_to": command.id}
        asked = [rank for rank in command.ranks if rank in telling.ranks and rank not in telling.mute]
        if command.kind is wire.CommandKind.INSPECT:
            self.say(wire.Views(ranks=tuple(telling.ranks[rank].view for rank in asked), **head))
        elif command.kind is wire.CommandKind.STACKS:
            dumps = tuple(snapshot.stacks.get(rank, StackDump(rank=rank, failure="not asked")) for rank in asked)
            self.say(wire.Stacks(dumps=dumps, **head))
        elif command.kind is wire.CommandKind.WITNESS:
            known = tuple(snapshot.testimonies[rank] for rank in asked if rank in snapshot.testimonies)
            self.say(wire.Testimonies(ranks=known, communicators=snapshot.communicators, **head))
        elif command.kind is wire.CommandKind.PARAMETERS:
            kind, _, members = command.text.partition(" ")
            names = snapshot.setup.parameters.get((kind, members), {})
            said = tuple((rank, names[rank]) for rank in asked if rank in names)
            self.say(wire.Parameters(key=(kind, members), ranks=said, **head))
        elif command.kind is wire.CommandKind.PROBE:
            reached = {node.host for node in snapshot.quiet_nodes if node.reached_from == self.link.host}
            known = [each.address for each in telling.nodes if each.link.host in reached]
            places = tuple(place for place, each in enumerate(command.text.split("; ")) if each in known)
            self.say(wire.Probed(answering=places, **head))


def _told(view: RankView, world_size: int) -> _Rank:
    """Return what an agent tells of a rank of the situation."""
    if not view.attached:
        return _Rank(view=replace(view, world_size=world_size))
    read = read_back(view)
    seen = replace(read.view, world_size=world_size)
    return _Rank(view=seen, row=_from_outside(read.row, seen), groups=read.groups, loop=read.loop)


def _from_outside(row: tuple[float, ...], view: RankView) -> tuple[float, ...]:
    """Return the row of a digest with what the node sees of a process."""
    found = dict(zip(_FIELDS, row, strict=True))
    found["state"] = digests.PROCESS_STATES.index(view.process.state)
    found["ended"] = int(view.ending is not None and view.process.state in GONE_STATES)
    found["saves_to"] = _saves_to(view)
    return tuple(found.values())


def _saves_to(view: RankView) -> int:
    if any(save.error or (save.refused and save.ended_s is None) or save.lacks_bytes for save in view.saves):
        return SAVE_TROUBLE
    return next((text_key(save.identity) for save in reversed(view.saves) if save.identity), 0)


@cache  # many scenarios have as many ranks on the same hosts
def _at_work(ranks: tuple[int, ...], world_size: int, hosts: tuple[str, ...]) -> Mapping[int, _Rank]:
    """Return ranks that wait for nobody, on these hosts in turn."""
    one = _one_at_work(world_size)
    assert one.row is not None
    return {
        rank: _Rank(view=replace(one.view, rank=rank, host=hosts[number % len(hosts)], pid=5000 + rank),
                    row=(rank, *one.row[1:]))
        for number, rank in enumerate(ranks)
    }  # fmt: skip


@cache
def _one_at_work(world_size: int) -> _Rank:
    view = RankView(
        rank=0, local_rank=0, host="", pid=1, device="", world_size=world_size, local_world_size=world_size, attempt=0,
        process=ProcessView(state=ProcessState.RUNNING), pulse_age_s=0.2, initialised=True,
        threads=(ThreadView(tid=1, main=True, issued=10),),
    )  # fmt: skip
    return _told(view, world_size)
