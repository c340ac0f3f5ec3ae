"""Runs the collectives that ranks issue: gloo's by threads of its own, NCCL's on streams of a device.

A call that a backend has begun is with the other members; see `machine` for how they meet. A backend says which call
begins when, and what of it the host waits for.
"""

from collections.abc import Iterable
from typing import Protocol

from ncclwatch.contract.model.rank import Op
from tests.spmd.program import Ranks, Step

NEVER = float("inf")
AT_A_TIME = 2  # operations of a group that gloo runs, with one network device


class Call:
    """One operation that a rank issued."""

    __slots__ = ("behind", "done_s", "group", "issued_s", "needs", "prefix", "rank", "seq", "step")

    def __init__(self, rank: int, step: Step, seq: int, issued_s: float, prefix: int, needs: Ranks | None) -> None:
        self.rank, self.step, self.group = rank, step, step.group
        self.seq = seq  # of the collectives of this rank in the group, or of its sends to one rank; >= 1
        self.issued_s = issued_s
        self.done_s = NEVER
        self.behind: tuple[Call, ...] = ()  # what had not ended when it was issued, and keeps it from beginning
        self.prefix = prefix  # hash over all signatures of this rank in the group up to this one
        self.needs = needs  # members that have to come before it is through; None: it is a send or a receive


class Backend(Protocol):
    """What runs the collectives of all ranks."""

    def issue(self, call: Call) -> bool:
        """Take a call, and say whether it begins at once."""

    def end(self, call: Call) -> list[Call]:
        """Return what begins when a call has ended."""

    def drop(self, rank: int) -> list[Call]:
        """Take back all that a rank has issued and that has not ended."""

    def host_waits(self, call: Call) -> bool:
        """Say whether the host is held up in the call itself."""

    def join(self, rank: int, calls: Iterable[Call]) -> list[Call]:
        """Return for what a host waits in `work.wait()`."""

    def read(self, rank: int) -> list[Call]:
        """Return for what a host waits that reads a value from its device."""


class Threads:
    """Two operations of a group run at a time, those issued first; the others queue."""

    def __init__(self) -> None:
        self._running: dict[tuple[int, str], list[Call]] = {}  # by rank and group, what has not ended

    def issue(self, call: Call) -> bool:
        """Take a call, and say whether a thread is left for it."""
        running = self._running.setdefault((call.rank, call.group), [])
        call.behind = tuple(running) if len(running) >= AT_A_TIME else ()
        running.append(call)
        return not call.behind

    def end(self, call: Call) -> list[Call]:
        """Return the next call of the queue."""
        running = self._running[call.rank, call.group]
        began = running.index(call) < AT_A_TIME
        running.remove(call)
        return [running[AT_A_TIME - 1]] if began and len(running) >= AT_A_TIME else []

    def drop(self, rank: int) -> list[Call]:
        """Take back all that a rank has issued and that has not ended."""
        return [call for (other, _), calls in self._running.items() if other == rank for call in calls]

    def host_waits(self, call: Call) -> bool:
        """Say whether the call was made with async_op=False."""
        return not call.step.is_async

    def join(self, rank: int, calls: Iterable[Call]) -> list[Call]:
        """Return those that have not ended."""
        return [call for call in calls if call.done_s == NEVER]

    def read(self, rank: int) -> list[Call]:
        """Return nothing: a value is there once its operation has been waited for."""
        return []


class Streams:
    """Each group has a stream, and the computing has one, which waits for what is issued with async_op=False.

    An operation begins after what was issued before it in its group, and after what the computing waits for.
    """

    def __init__(self) -> None:
        self._unfinished: dict[int, list[Call]] = {}  # by rank, in the order of their issue
        self._ordered: set[Call] = set()  # what the computing waits for

    def issue(self, call: Call) -> bool:
        """Take a call, and say whether nothing is before it."""
        before = self._unfinished.setdefault(call.rank, [])
        call.behind = tuple(each for each in before if each.group == call.group or each in self._ordered)
        before.append(call)
        if not call.step.is_async:
            self._ordered.add(call)
        return not call.behind

    def end(self, call: Call) -> list[Call]:
        """Return what had nothing else before it."""
        left = self._unfinished[call.rank]
        left.remove(call)
        return [each for each in left if call in each.behind and all(before.done_s != NEVER for before in each.behind)]

    def drop(self, rank: int) -> list[Call]:
        """Take back all that a rank has issued and that has not ended."""
        return self._unfinished.pop(rank, [])

    def host_waits(self, call: Call) -> bool:
        """Say whether it is a barrier: all others return once they are enqueued."""
        return call.step.op is Op.BARRIER and not call.step.is_async

    def join(self, rank: int, calls: Iterable[Call]) -> list[Call]:
        """Let the computing wait for these, and the host for nothing."""
        self._ordered.update(calls)
        return []

    def read(self, rank: int) -> list[Call]:
        """Return all that the computing waits for."""
        return [call for call in self._unfinished.get(rank, ()) if call in self._ordered]
