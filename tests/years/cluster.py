"""The nodes of one job, each with an agent on a connection to a real watch, in simulated time."""

import asyncio
import random
from dataclasses import dataclass, field

from ncclwatch.contract import digests, wire
from ncclwatch.contract.model.job import Contact
from ncclwatch.contract.model.rank import StackDump
from ncclwatch.contract.model.verdict import Severity, Verdict
from ncclwatch_server import limits
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.incidents.book import Incident, IncidentBook
from ncclwatch_server.ingest.agent_news import AgentNews
from ncclwatch_server.judge import judge
from ncclwatch_server.store.no_store import NoStore
from ncclwatch_server.watch.tick import Watch
from tests.years.plans import Plan
from tests.years.sights import Sights
from tests.years.stretches import Outage
from tests.years.virtual_time import VirtualLoop

EPOCH_S = 1_700_000_000.0
DIGEST_S, ANSWER_S = 1.0, 0.06
GIVES_UP_S = 40.0  # a connection of which nothing comes is ended by the server: limits.PING_S, twice
PASSES_ALL_S = 1e12


@dataclass(frozen=True, slots=True)
class Said:
    """What the server said of an incident, at one moment."""

    at_s: float
    incident: str
    verdict: Verdict
    open: bool

    @property
    def critical(self) -> bool:
        """Whether somebody is woken for it."""
        return self.verdict.severity is Severity.CRITICAL


class Kept(NoStore):
    """Remembers all that incidents ever said."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self.said: list[Said] = []

    def put(self, incident: Incident) -> None:
        """Remember what an incident says now."""
        self.said.append(Said(self._loop.now_s, incident.id, incident.verdict, incident.open))


class Cluster:
    """One job on its nodes, and the server that watches it."""

    def __init__(self, plan: Plan, loop: VirtualLoop, rng: random.Random) -> None:
        self.plan, self.loop, self.rng = plan, loop, rng
        self.kept = Kept(loop)
        self.watch = Watch(judge, IncidentBook(()), self.kept, loop.time, lambda: EPOCH_S + loop.now_s)
        self.attempt = 0
        self.sights: Sights | None = None
        self.began_s = 0.0  # of the stretch that is seen
        self.links = 0
        self.nodes = [Node(self, number) for number in range(plan.hosts)]

    @property
    def at_s(self) -> float:
        """The second of the stretch."""
        return self.loop.now_s - self.began_s

    def show(self, sights: Sights, outages: list[Outage]) -> None:
        """Begin another stretch now, with what comes between its nodes and the server."""
        self.sights, self.began_s = sights, self.loop.now_s
        if sights.attempt != self.attempt:
            self.attempt = sights.attempt
            for node in self.nodes:
                node.begin_attempt()
        for outage in outages:
            self.nodes[outage.node].outages.append((self.began_s + outage.began_s, self.began_s + outage.ended_s,
                                                    outage.kind))  # fmt: skip

    def jump(self, to_s: float) -> None:
        """Let the time go on to a moment at which all nodes that can have just reported."""
        self.loop.now_s = max(self.loop.now_s, to_s)
        for node in self.nodes:
            node.report()

    async def watches(self) -> None:
        """Run the server until cancelled."""
        beats = [asyncio.ensure_future(node.reports()) for node in self.nodes]
        try:
            await self.watch.run()
        finally:
            for beat in beats:
                beat.cancel()


@dataclass(eq=False)
class Node:
    """One node: the agent, and what can be seen of the ranks there."""

    cluster: Cluster
    number: int
    outages: list[tuple[float, float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Connect."""
        plan, rng = self.cluster.plan, self.cluster.rng
        self.ranks = [rank for rank in range(plan.world) if plan.host(rank) == self.number]
        self.host = f"node{self.number}"
        self.phase_s = rng.random()
        self.ahead_s = rng.gauss(0.0, 0.01) if rng.random() < 0.9 else rng.uniform(-300.0, 300.0)
        self.told_ended: set[int] = set()
        self.loops: dict[int, tuple[int, bool]] = {}
        self.gone = False
        self.heard_s = 0.0
        self.link: Link | None = None
        self.news: AgentNews | None = None
        self.asked_s: float | None = None

    @property
    def address(self) -> str:
        """Return where other nodes reach it."""
        return f"10.0.0.{self.number + 1}"

    def is_up(self) -> bool:
        """Return whether its kernel runs. A machine that moves stands still with it."""
        return self.outage() != "frozen"

    @property
    def now(self) -> float:
        """The simulated time."""
        return self.cluster.loop.now_s

    def outage(self) -> str:
        """Return what keeps the server from hearing the node now, "" if nothing does."""
        self.outages = [each for each in self.outages if each[1] > self.now]
        kinds = [kind for began_s, _, kind in self.outages if began_s <= self.now]
        return next((kind for kind in kinds if kind != "lag"), kinds[0] if kinds else "")

    def begin_attempt(self) -> None:
        """Begin to tell of another attempt."""
        self.told_ended, self.loops, self.gone = set(), {}, False
        if self.link is not None and self.news is not None:
            self._announce()

    def _connect(self) -> None:
        cluster = self.cluster
        cluster.links += 1
        if cluster.rng.random() < 0.05:  # its clock was set
            self.ahead_s += cluster.rng.uniform(-100.0, 100.0)
        self.link = Link(
            number=cluster.links, agent=f"agent {self.number}", host=self.host, version="1", said_host=self.host,
            machine=f"machine {self.number}", clock=cluster.loop.time, ahead_s=self.ahead_s, contact=self._contact(),
        )  # fmt: skip
        self.link.wake = self._wake
        self.news = AgentNews(link=self.link, watch=cluster.watch, clock=cluster.loop.time)
        self.asked_s = None
        self._announce()

    def _contact(self):
        state: list[tuple[Contact, float]] = []

        def contact() -> tuple[Contact, float]:
            if self._lost is not None and self._lost[0] is state:
                kind, since_s = self._lost[1], self._lost[2]
                return kind, self.now - since_s
            outage = self.outage()
            if outage in ("", "lag"):
                self.asked_s = None
                return Contact.ACKNOWLEDGES, 0.0
            self.asked_s = self.asked_s if self.asked_s is not None else self.now
            kind = {"stopped": Contact.ACKNOWLEDGES, "agent": Contact.CLOSED}.get(outage, Contact.MUTE)
            return (kind, self.now - self.asked_s) if self.now > self.asked_s else (Contact.UNKNOWN, 0.0)

        self._state = state
        return contact

    _lost: tuple[object, Contact, float] | None = None

    def _lose(self, contact: Contact, since_s: float) -> None:
        if self.link is not None:
            self._lost = (self._state, contact, since_s)
            self.cluster.watch.lost(self.link)
            self.link = self.news = None

    def _announce(self) -> None:
        cluster = self.cluster
        sights = cluster.sights
        assert sights is not None
        self.say(wire.Announce(index=cluster.attempt, job="job", instance="i", attempt=cluster.attempt,
                               world_size=cluster.plan.world, ranks=tuple(self.ranks), terminal=False,
                               elsewhere=cluster.plan.hosts > 1,
                               addresses=(self.address,)))  # fmt: skip
        self.say(wire.Facts(index=cluster.attempt, alike=(), joined=tuple(self.ranks)))
        self.told_ended = set()

    def say(self, message: wire.AgentMessage) -> None:
        """Let the server take a message."""
        if self.news is not None:
            self.news.take_message(message, self.now)  # type: ignore[arg-type] # views are not encoded: that is tested

    async def reports(self) -> None:
        """Report once a second, until cancelled."""
        loop, rng = self.cluster.loop, self.cluster.rng
        while True:
            due_s = (loop.now_s - self.phase_s) // DIGEST_S * DIGEST_S + DIGEST_S + self.phase_s
            await asyncio.sleep(due_s - loop.now_s + abs(rng.gauss(0.0, 0.02)))
            outage = self.outage()
            if outage == "lag":
                if rng.random() < 0.15:
                    continue  # lost
                await asyncio.sleep(rng.choice((0.1, 0.5, 1.5, 3.0)))
            self.report()

    def report(self) -> None:
        """Send a digest and what else there is to tell."""
        sights, outage = self.cluster.sights, self.outage()
        if sights is None:
            return
        if outage not in ("", "lag"):
            if outage == "agent":
                self._lose(Contact.CLOSED, self.now)
            elif outage in ("cut", "frozen") and self.now - self.heard_s > GIVES_UP_S:
                self._lose(Contact.MUTE, self.heard_s)
            return
        self.heard_s = self.now
        if self.news is None:
            self.told_ended = set()
            self._connect()
        assert self.news is not None
        if self.gone:
            return
        at_s, index = self.cluster.at_s, self.cluster.attempt
        over = [rank for rank in self.ranks if sights.ended(rank, at_s)]
        fresh = [rank for rank in over if rank not in self.told_ended]
        if fresh:
            self.told_ended.update(fresh)
            self._views(tuple(fresh), 0)
        if len(over) == len(self.ranks):
            self.gone = True
            self.say(wire.Gone(index=index))
            return
        self._tell_loops(sights, at_s, index)
        rows, groups = [], []
        for rank in self.ranks:
            row, own = sights.row(rank, at_s)
            rows.append(row)
            groups += own
        self.news.take_digest(digests.pack_digest(index, rows, groups))

    def _tell_loops(self, sights: Sights, at_s: float, index: int) -> None:
        loops = [loop for rank in self.ranks if (loop := sights.loop(rank, at_s)) is not None]
        news = [loop for loop in loops if self.loops.get(loop.rank) != (loop.number, loop.ended)]
        if news:
            self.loops.update({loop.rank: (loop.number, loop.ended) for loop in loops})
            self.say(wire.Loops(index=index, ranks=tuple(loops)))

    def _views(self, ranks: tuple[int, ...], reply_to: int) -> None:
        sights, at_s = self.cluster.sights, self.cluster.at_s
        assert sights is not None
        assert self.news is not None
        views = tuple(sights.view(rank, at_s) for rank in ranks)
        message = wire.Views(index=self.cluster.attempt, ranks=views, reply_to=reply_to)
        self.news.take_message(message, self.now)

    def _wake(self) -> None:
        if self.link is not None and self.link.outbox:
            late_s = self.cluster.rng.choice((0.1, 0.4, 2.0)) if self.outage() == "lag" else 0.0
            self.cluster.loop.call_later(ANSWER_S + late_s, self._answer, self.link)

    def _answer(self, link: Link) -> None:
        if link is not self.link or self.news is None:
            return
        asked = [command for command in link.outbox if isinstance(command, wire.Command)]
        if self.outage() not in ("", "lag"):
            if self.outage() == "agent":
                link.outbox.clear()
            return
        link.outbox.clear()
        for command in asked:
            if command.index not in self.news.jobs:
                continue
            ranks = tuple(rank for rank in command.ranks if rank in self.ranks)
            if command.kind is wire.CommandKind.INSPECT and command.index == self.cluster.attempt:
                self._views(ranks, command.id)
            elif command.kind is wire.CommandKind.STACKS:
                dumps = tuple(StackDump(rank=rank, failure="py-spy may not attach") for rank in ranks)
                self.say(wire.Stacks(index=command.index, reply_to=command.id, dumps=dumps))
            elif command.kind is wire.CommandKind.WITNESS:
                self.say(wire.Testimonies(index=command.index, reply_to=command.id, ranks=(), communicators=()))
            elif command.kind is wire.CommandKind.PROBE:
                up = [node.address for node in self.cluster.nodes if node.is_up()]
                answering = tuple(place for place, each in enumerate(command.text.split("; ")) if each in up)
                self.say(wire.Probed(index=command.index, reply_to=command.id, answering=answering))


assert limits.PING_S * 2 == GIVES_UP_S
