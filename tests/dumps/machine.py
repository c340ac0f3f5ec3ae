"""Runs a job in small steps: hosts issue ahead, devices execute in the order of their streams, collectives meet.

A rank has one compute stream, and one stream for each group (for each pair, with sends and receives), as in torch's
ProcessGroupNCCL. An operation begins when what its host had issued before on the compute stream, and all that was
issued before it in its own stream, is finished; it ends when all members have begun. Nothing here knows what a fault
looks like in a file, nor who judges it. Times are microseconds.
"""

import heapq
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ncclwatch.contract.model.rank import Op
from tests.dumps.program import Action, Job, Kind

CALL_US = 300.0  # on the host, for anything
WATCHDOG_US = 100_000.0  # between two looks of NCCL's watchdog at what is finished
STEPS = 4
NEVER = float("inf")


class Doing(Enum):
    """What holds a host up."""

    RUNS = "runs"
    LOADS = "loads"
    READS = "reads"  # waits for its compute stream
    QUEUES = "queues"  # too far ahead of its device
    STOPPED = "stopped"
    DONE = "done"


@dataclass(slots=True, eq=False)
class Call:
    """One operation as one rank issued it."""

    rank: int
    action: Action
    record: int  # running number on its rank
    seq: int  # of collectives in the group so far, this one included if it is one
    p2p: int  # the same of sends and receives
    issued_us: float
    meeting: "Meeting"
    begun_us: float = NEVER
    done_us: float = NEVER


@dataclass(slots=True, eq=False)
class Meeting:
    """An operation of a group, with the members that have begun it."""

    members: tuple[int, ...]
    begun: dict[int, "Node"] = field(default_factory=dict)
    cut: bool = False  # a link between members is down
    at_odds: bool = False  # members came with different calls

    @property
    def calls(self) -> list[Call]:
        """The parts that have begun."""
        return [node.call for node in self.begun.values() if node.call is not None]


@dataclass(slots=True, eq=False)
class Node:
    """A piece of a device's work."""

    rank: int
    us: float
    call: Call | None = None
    left: int = 0  # pieces that have to be finished before
    done: bool = False
    then: list["Node"] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """A host that stops before it carries out its n-th action."""

    rank: int
    action: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A device that stops for ever while it executes its n-th operation: its part has gone out, its end never comes."""

    rank: int
    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A device whose n-th computation never ends."""

    rank: int
    compute: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A link between two ranks that is down from the moment on at which the first one begins its n-th operation."""

    ranks: tuple[int, int]
    call: int


Fault = Halt | Death | Stall | Cut


@dataclass(slots=True)
class _Host:
    """Where a host is in its program."""

    actions: tuple[Action, ...]
    pc: int = 0
    doing: Doing = Doing.RUNS
    tail: Node | None = None  # of the compute stream
    streams: dict[tuple[str, int], Node] = field(default_factory=dict)
    outstanding: int = 0
    computes: int = 0
    calls: list[Call] = field(default_factory=list)
    story: list[tuple[float, int, Doing]] = field(default_factory=list)  # (since, action, doing)
    counts: dict[tuple[str, bool], int] = field(default_factory=dict)  # (group, p2p) -> issued
    pairs: dict[tuple[str, int, int], int] = field(default_factory=dict)  # (group, from, to) -> issued
    earlier: dict[tuple[str, bool], int] = field(default_factory=dict)  # what `counts` was in the beginning

    def before(self, group: str) -> int:
        """Return the number of the last operation of a group before the steps that are simulated."""
        return max(self.earlier.get((group, False), 0), self.earlier.get((group, True), 0))


class Machine:
    """A job that runs. `programs` replaces what some ranks do in all of their steps."""

    def __init__(
        self, job: Job, rng: random.Random, faults: Iterable[Fault] = (),
        programs: Mapping[int, tuple[Action, ...]] | None = None,
    ) -> None:  # fmt: skip
        changed = programs or {}
        self.job = job
        self.now_us = 0.0
        self.dead: dict[int, float] = {}
        self.stalled: dict[int, float] = {}
        self.hosts = {
            rank: _Host(
                actions=changed.get(rank, step * STEPS), counts=_counts_before(step), earlier=_counts_before(step)
            )
            for rank, step in job.steps.items()
        }
        # A watchdog looks when it likes; it knows nothing of the others.
        self.looks_us = {rank: rng.uniform(0, WATCHDOG_US) for rank in self.hosts}
        faults = tuple(faults)
        self._halts = {fault.rank: fault.action for fault in faults if isinstance(fault, Halt)}
        self._deaths = {fault.rank: fault.call for fault in faults if isinstance(fault, Death)}
        self._stalls = {fault.rank: fault.compute for fault in faults if isinstance(fault, Stall)}
        self._cuts = [fault for fault in faults if isinstance(fault, Cut)]
        self._down: list[tuple[int, int]] = []
        self._rng = rng
        self._meetings: dict[tuple[str, int, int, int], Meeting] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        for rank in self.hosts:
            self._at(rng.uniform(0, 20_000.0), lambda rank=rank: self._host(rank))

    def run(self, until_us: float = NEVER) -> None:
        """Go on until nothing happens any more, or until a moment."""
        while self._queue and self._queue[0][0] <= until_us:
            self.now_us, _, event = heapq.heappop(self._queue)
            event()

    @property
    def finished(self) -> bool:
        """Whether any rank has come to the end of its program."""
        return any(host.doing is Doing.DONE for host in self.hosts.values())

    def _at(self, us: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (us, self._number, event))

    def _host(self, rank: int) -> None:
        """Let a host carry out one action, and come back for the next."""
        host = self.hosts[rank]
        if host.doing is Doing.LOADS:
            host.doing = Doing.RUNS
        doing = self._next(rank, host)
        if doing is not host.doing or not host.story:
            host.doing = doing
            host.story.append((self.now_us, host.pc, doing))

    def _next(self, rank: int, host: _Host) -> Doing:
        if host.pc >= len(host.actions):
            return Doing.DONE
        if host.pc == self._halts.get(rank, -1):
            return Doing.STOPPED
        action = host.actions[host.pc]
        if action.kind is Kind.READ and host.tail is not None and not host.tail.done:
            return Doing.READS
        if action.is_call and host.outstanding >= self.job.ahead:
            return Doing.QUEUES
        host.pc += 1
        self._carry_out(rank, host, action)
        loads = action.kind is Kind.LOAD
        pause_us = action.us if loads else CALL_US
        self._at(self.now_us + pause_us * self._rng.uniform(0.8, 1.3), lambda: self._host(rank))
        return Doing.LOADS if loads else Doing.RUNS

    def _carry_out(self, rank: int, host: _Host, action: Action) -> None:
        if action.is_call:
            self._issue(rank, host, action)
        elif action.kind is Kind.COMPUTE:
            host.computes += 1
            endless = self._stalls.get(rank) == host.computes
            node = Node(rank, NEVER if endless else action.us * self._rng.uniform(0.8, 1.3))
            self._append(node, [host.tail])
            host.tail = node
        elif action.kind is Kind.WAIT:
            node = Node(rank, 0.0)
            self._append(node, [host.tail, host.streams.get((action.group, -1))])
            host.tail = node

    def _issue(self, rank: int, host: _Host, action: Action) -> None:
        p2p = action.kind is not Kind.COLLECTIVE
        key = (action.group, p2p)
        host.counts[key] = host.counts.get(key, 0) + 1
        seq, sent = host.counts.get((action.group, False), 0), host.counts.get((action.group, True), 0)
        if p2p:
            ends = (rank, action.peer) if action.kind is Kind.SEND else (action.peer, rank)
            ordinal = host.pairs[(action.group, *ends)] = host.pairs.get((action.group, *ends), 0) + 1
            found, members = (action.group, *ends, ordinal), tuple(sorted(ends))
        else:
            found, members = (action.group, -1, -1, seq), self.job.groups[action.group].members
        meeting = self._meetings.setdefault(found, Meeting(members))
        call = Call(rank, action, len(host.calls), seq, sent, self.now_us, meeting)
        node = Node(rank, action.us, call)
        stream = (action.group, action.peer if p2p else -1)
        host.calls.append(call)
        host.outstanding += 1
        self._append(node, [host.tail, host.streams.get(stream)])
        host.streams[stream] = node
        if action.blocking:
            after = Node(rank, 0.0)
            self._append(after, [host.tail, node])
            host.tail = after

    def _append(self, node: Node, before: list[Node | None]) -> None:
        for each in before:
            if each is not None and not each.done:
                node.left += 1
                each.then.append(node)
        if node.left == 0:
            self._begin(node)

    def _begin(self, node: Node) -> None:
        if node.rank in self.dead:
            return
        if node.call is None:
            if node.us == NEVER:
                self.stalled[node.rank] = self.now_us
            else:
                self._at(self.now_us + node.us, lambda: self._end(node))
            return
        node.call.begun_us = self.now_us
        self._down += [cut.ranks for cut in self._cuts if (cut.ranks[0], cut.call) == (node.rank, node.call.record)]
        self._meet(node.call.meeting, node)

    def _meet(self, meeting: Meeting, node: Node) -> None:
        meeting.begun[node.rank] = node
        call = node.call
        assert call is not None
        if call.action.op is Op.BROADCAST:
            self._broadcast(meeting, node)
            return
        if len(meeting.begun) < len(meeting.members):
            return
        ends = {each.action.signature for each in meeting.calls if each.action.kind is Kind.COLLECTIVE}
        meeting.at_odds = len(ends) > 1
        members = set(meeting.members)
        meeting.cut = any(members.issuperset(ends) for ends in self._down)
        if not meeting.cut and not meeting.at_odds:
            self._finish(meeting.begun.values())

    def _broadcast(self, meeting: Meeting, node: Node) -> None:
        """A root waits for nobody; the others wait for the root."""
        first = next(iter(meeting.calls))
        if node.call is not None and node.call.action.signature != first.action.signature:
            meeting.at_odds = True
            return
        root = first.action.peer
        if root in meeting.begun:
            self._finish(meeting.begun.values() if node.rank == root else [node])

    def _finish(self, nodes: Iterable[Node]) -> None:
        base = self._rng.uniform(0.8, 1.3)
        for node in nodes:
            call = node.call
            if call is not None and self._deaths.get(node.rank) == call.record:
                self.dead.setdefault(node.rank, self.now_us)
            self._at(self.now_us + node.us * base + self._rng.uniform(0, 150.0), lambda node=node: self._end(node))

    def _end(self, node: Node) -> None:
        if node.rank in self.dead:
            return
        node.done = True
        host = self.hosts[node.rank]
        if node.call is not None:
            node.call.done_us = self.now_us
            host.outstanding -= 1
        for each in node.then:
            each.left -= 1
            if each.left == 0:
                self._begin(each)
        waits_for_this = host.doing is Doing.QUEUES or (host.doing is Doing.READS and host.tail is node)
        if waits_for_this:
            self._host(node.rank)


def _counts_before(step: tuple[Action, ...]) -> dict[tuple[str, bool], int]:
    """Return what a rank had issued in each group before the steps that are simulated."""
    found: dict[tuple[str, bool], int] = {}
    for action in step:
        if action.is_call:
            key = (action.group, action.kind is not Kind.COLLECTIVE)
            found[key] = found.get(key, 0) + 1
    return {key: count * steps_before(step) for key, count in found.items()}


def steps_before(step: tuple[Action, ...]) -> int:
    """Return how many steps a job had made before: the same for all ranks, so that the counters agree."""
    return 1200
