"""Runs a program as c10d does, step by step, and writes down when each rank did what.

Operations meet by the number that each rank counts in a group for itself, whatever they are. With gloo a call blocks
its thread until it is through. A synchronising collective needs all members. The root of a broadcast or a scatter, and
whoever sends to the root of a gather, is through once its bytes are with the kernel; who receives a broadcast needs
those from whom it gets the bytes, along gloo's binomial tree.

A send meets the receive of the same number between the two ranks. By the program it is through at once, as small ones
are, or when it is received.

A key of the store has a name of its own in each group, at each line and turn. Its root sets it and goes on; the others
wait until it is set.

What is issued asynchronously runs beside its rank, which waits for it later, see `backends`. Of a process that has
ended nothing runs on.

All ranks make each group, and count them. Its members wait for each other under the number that each has counted, as
with gloo; the others go on at once.

A file lock is one for each node. Of those who wait for it, any one gets it next.

What a rank does depends on no other rank but through waits. Without file locks no wait has a choice between two ends:
every order of events leads to the same last state, and a wait that ends in one run ends in all. With them it may: what
never ends in this run may end in another. What ends in this run, nobody may call proven.

Not modelled: gloo closes connections when a process ends, of which its peers' calls fail; here they wait on, as with
NCCL. Members that enter with parts that do not fit wait for ever; the bytes of some would pair in truth. Large messages
of a root need receivers. Timeouts are longer than any run.
"""

import heapq
import random
from collections.abc import Callable, Sequence

from ncclwatch.contract.model.rank import Op
from tests.spmd.backends import NEVER, Backend, Call, Streams, Threads
from tests.spmd.program import RANKS_PER_HOST, Kind, Program, Ranks, Step

CALL_S = 0.001
_TO_ROOT = (Op.GATHER,)
_FROM_ROOT = (Op.BROADCAST, Op.SCATTER)
_NUMBERS = {op: number for number, op in enumerate(Op)}


Key = tuple[str, int, int]  # group, line, turn
Lock = tuple[int, int]  # node, line
Making = tuple[int, Ranks]  # the number of the group among those that a rank has made, and its members


class Run:
    """What happened: for each rank when it began which step, and all calls."""

    def __init__(self, program: Program, steps: Sequence[Sequence[Step]]) -> None:
        self.program, self.steps, self.groups = program, steps, program.groups
        self.began_s: list[list[float]] = [[] for _ in steps]  # of each step that was begun, by its position
        self.ended_s: list[float] = [NEVER] * len(steps)  # when the process was gone
        self.how: list[str] = [""] * len(steps)
        self.calls: list[list[Call]] = [[] for _ in steps]
        self.awaits: list[dict[int, tuple[Call, ...]]] = [{} for _ in steps]  # by position: what the host waits for
        self.key_set_s: dict[Key, float] = {}
        self.holders: dict[Lock, list[tuple[float, int]]] = {}  # since when which rank has held it; -1: nobody
        self.rest_s = 0.0  # since when nothing has happened any more


class _Meeting:
    """One operation of a group, as its members come to it."""

    __slots__ = ("entered", "waiting")

    def __init__(self) -> None:
        self.entered: dict[int, Call] = {}
        self.waiting: list[Call] = []


def run(program: Program, steps: Sequence[Sequence[Step]], rng: random.Random) -> Run:
    """Let all ranks go as far as they can."""
    return _Machine(program, steps, rng).run


class _Channel:
    """Messages from one rank to another in a group, in their order."""

    __slots__ = ("recvs", "sends")

    def __init__(self) -> None:
        self.sends: list[Call] = []
        self.recvs: list[Call] = []


class _Machine:
    def __init__(self, program: Program, steps: Sequence[Sequence[Step]], rng: random.Random) -> None:
        self.run, self.rng = Run(program, steps), rng
        self.groups = self.run.groups
        self.counts: dict[tuple[int, str], tuple[int, int]] = {}  # (rank, group): calls and the hash over them
        self.meetings: dict[tuple[str, int], _Meeting] = {}
        self.backend: Backend = Streams() if program.device else Threads()
        self.awaited: dict[int, set[Call]] = {}  # what hosts wait for
        self.channels: dict[tuple[str, int, int], _Channel] = {}
        self.waiting_for: dict[Key, list[int]] = {}
        self.made = [program.begun_with] * program.world  # groups
        self.making: dict[Making, list[int]] = {}
        self.queued_up: dict[Lock, list[int]] = {}
        self.doing: dict[Kind, Callable[[float, int, Step], None]] = {
            Kind.CALL: self._call, Kind.KEY: self._key, Kind.MAKE: self._make, Kind.TAKE: self._take,
            Kind.GIVE: self._give, Kind.WAIT: self._wait, Kind.READ: self._read,
        }  # fmt: skip
        self.queue = [(rng.uniform(0.0, 0.05), rank, 0) for rank in range(program.world)]
        heapq.heapify(self.queue)
        while self.queue:
            now_s, rank, at = heapq.heappop(self.queue)
            self.run.rest_s = now_s
            self._step(now_s, rank, at)

    def _step(self, now_s: float, rank: int, at: int) -> None:
        run, steps = self.run, self.run.steps[rank]
        run.began_s[rank].append(now_s)
        step = steps[at] if at < len(steps) else None
        if step is None:
            self._leave(now_s, rank, "exit")
        elif step.kind is Kind.CALL and step.root >= 0 and step.root not in self.groups[step.group]:
            self._leave(now_s, rank, "crash")  # c10d raises: that rank is not part of the group
        elif step.kind is Kind.END:
            self._leave(now_s, rank, step.how)
        elif step.kind in self.doing:
            self.doing[step.kind](now_s, rank, step)
        elif step.how == "stopped" and not run.program.device:  # a device does what it was given before
            self._run_no_more(rank)
        elif step.seconds != NEVER:
            pause_s = step.seconds * self.rng.uniform(0.7, 1.4) if step.seconds else CALL_S
            heapq.heappush(self.queue, (now_s + pause_s, rank, at + 1))

    def _leave(self, now_s: float, rank: int, how: str) -> None:
        """End a process, of which the kernel gives the locks back."""
        self.run.ended_s[rank], self.run.how[rank] = now_s, how
        self._run_no_more(rank)
        for lock, held in self.run.holders.items():
            if held[-1][1] == rank:
                self._pass_on(now_s, lock)

    def _run_no_more(self, rank: int) -> None:
        """Take back what a process has begun and not ended: others wait for it in vain."""
        for call in self.backend.drop(rank):
            meeting = self.meetings.get((call.group, call.seq))
            if meeting is not None and meeting.entered.get(rank) is call:
                del meeting.entered[rank]
                meeting.waiting.remove(call)

    def _call(self, now_s: float, rank: int, step: Step) -> None:
        if step.op.is_p2p:
            self._message(now_s, rank, step)
            return
        count, prefix = self.counts.get((rank, step.group), (0, 1))
        prefix = (prefix * 0x100000001B3 + hash(_agreed(step))) & 0xFFFFFFFFFFFFFFFF
        self.counts[rank, step.group] = count + 1, prefix
        call = Call(rank, step, count + 1, now_s, prefix, _needs(rank, step, self.groups[step.group]))
        self.run.calls[rank].append(call)
        begins = self.backend.issue(call)
        self._await(now_s, rank, [call] if self.backend.host_waits(call) else [])
        if begins:
            self._enter(now_s, call)

    def _await(self, now_s: float, rank: int, calls: Sequence[Call]) -> None:
        """Let the host wait until all of these have ended."""
        if not calls:
            self._go_on(now_s, rank)
            return
        self.awaited[rank] = set(calls)
        self.run.awaits[rank][len(self.run.began_s[rank]) - 1] = tuple(calls)

    def _enter(self, now_s: float, call: Call) -> None:
        """Let an operation meet the others' parts, and end those that have all that they need."""
        meeting = self.meetings.setdefault((call.group, call.seq), _Meeting())
        meeting.entered[call.rank] = call
        meeting.waiting.append(call)
        for other in [each for each in meeting.waiting if _may_end(each, meeting.entered)]:
            if other in meeting.waiting:  # what has ended here may have let others begin, and these have ended more
                meeting.waiting.remove(other)
                self._end(now_s, other)

    def _wait(self, now_s: float, rank: int, step: Step) -> None:
        """Let a rank wait for all that it has issued at a line."""
        works = [call for call in self.run.calls[rank] if call.step.line == step.awaited]
        self._await(now_s, rank, self.backend.join(rank, works))

    def _read(self, now_s: float, rank: int, _step: Step) -> None:
        self._await(now_s, rank, self.backend.read(rank))

    def _key(self, now_s: float, rank: int, step: Step) -> None:
        """Let the root set a key, and the others wait for it."""
        key, freed = key_of(step), [rank]
        if rank == step.root:
            self.run.key_set_s.setdefault(key, now_s)
            freed += self.waiting_for.pop(key, [])
        elif key not in self.run.key_set_s:
            self.waiting_for.setdefault(key, []).append(rank)
            return
        for each in freed:
            self._go_on(now_s, each)

    def _make(self, now_s: float, rank: int, step: Step) -> None:
        """Let a member wait for the others, where they make what counts as the same group."""
        members, together = self.groups[step.group], [rank]
        self.made[rank] += 1
        if rank in members:
            together = self.making.setdefault((self.made[rank], members), [])
            together.append(rank)
            if len(together) < len(members):
                return
        for each in together:
            self._go_on(now_s, each)

    def _take(self, now_s: float, rank: int, step: Step) -> None:
        """Let a rank wait for a lock that another one holds."""
        lock = lock_of(rank, step)
        held = self.run.holders.setdefault(lock, [(0.0, -1)])
        if held[-1][1] >= 0:
            self.queued_up.setdefault(lock, []).append(rank)
            return
        held.append((now_s, rank))
        self._go_on(now_s - CALL_S, rank)

    def _give(self, now_s: float, rank: int, step: Step) -> None:
        self._pass_on(now_s, lock_of(rank, step))
        self._go_on(now_s, rank)

    def _pass_on(self, now_s: float, lock: Lock) -> None:
        """Give a lock to any of those who wait for it."""
        waiting, held = self.queued_up.get(lock, []), self.run.holders[lock]
        held.append((now_s, waiting.pop(self.rng.randrange(len(waiting))) if waiting else -1))
        if held[-1][1] >= 0:
            self._go_on(now_s - CALL_S, held[-1][1])  # at once

    def _go_on(self, now_s: float, rank: int) -> None:
        heapq.heappush(self.queue, (now_s + CALL_S, rank, len(self.run.began_s[rank])))

    def _message(self, now_s: float, rank: int, step: Step) -> None:
        """Let the n-th send meet the n-th receive."""
        sends = step.op is Op.SEND
        ends = (rank, step.root) if sends else (step.root, rank)
        channel = self.channels.setdefault((step.group, *ends), _Channel())
        mine, theirs = (channel.sends, channel.recvs) if sends else (channel.recvs, channel.sends)
        call = Call(rank, step, len(mine) + 1, now_s, 0, None)
        self.run.calls[rank].append(call)
        self._await(now_s, rank, [call])
        mine.append(call)
        met = theirs[call.seq - 1] if len(theirs) >= call.seq else None
        if met is not None or (sends and self.run.program.eager):
            self._end(now_s, call)
        if met is not None and met.done_s == NEVER:
            self._end(now_s, met)

    def _end(self, now_s: float, call: Call) -> None:
        call.done_s = now_s + CALL_S
        awaited = self.awaited.get(call.rank, set())
        if call in awaited:
            awaited.remove(call)
            if not awaited:
                self._go_on(now_s, call.rank)
        for each in self.backend.end(call) if call.needs is not None else ():
            self._enter(now_s, each)


def unfinished(run: Run, rank: int, position: int, at_s: float) -> list[Call]:
    """Return for what a host waits in a step, and what has to end before, as far as it has not at a moment.

    The oldest comes first.
    """
    left, found = list(run.awaits[rank].get(position, ())), set[Call]()
    while left:
        call = left.pop()
        if call not in found and call.issued_s <= at_s < call.done_s:
            found.add(call)
            left += call.behind
    return sorted(found, key=lambda call: call.issued_s)


def key_of(step: Step) -> Key:
    """Return the key that a step sets, or waits for."""
    return step.group, step.line, step.turn


def lock_of(rank: int, step: Step) -> Lock:
    """Return the lock that a step takes or gives back."""
    return rank // RANKS_PER_HOST, step.line


def _agreed(step: Step) -> tuple[int, int, int]:
    """Return what members have to agree on."""
    return _NUMBERS[step.op], 0 if step.op is Op.ALL_GATHER else step.numel, step.root


def _may_end(call: Call, entered: dict[int, Call]) -> bool:
    own = _agreed(call.step)
    return all(rank in entered and _agreed(entered[rank].step) == own for rank in call.needs or ())


def _needs(rank: int, step: Step, members: Ranks) -> Ranks:
    op, root = step.op, step.root
    if op in _FROM_ROOT:
        return () if rank == root else (root,) if op is Op.SCATTER else _above(rank, root, members)
    if op in _TO_ROOT and rank != root:
        return ()
    return members


def _above(rank: int, root: int, members: Ranks) -> Ranks:
    """Return from whom, over whom, a member gets the bytes of a broadcast: gloo's binomial tree."""
    size, first = len(members), members.index(root)
    place, found = (members.index(rank) - first) % size, []
    while place:
        place ^= 1 << (place.bit_length() - 1)
        found.append(members[(place + first) % size])
    return tuple(found)
