"""Keeps what this rank has issued, what is through and who waits, and writes it to the ring.

Each operation is recorded once, before it is handed to the backend, with the sequence number
it gets in its group. A work is held until it is seen to be complete, and at most WORKS_MAX of
a group at a time, so that tensors are not kept alive for long.
"""

import ctypes
import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.ring.layout import BATCH_BITS, IN_ORDER, NO_GROUP, NO_THREAD, Flag, Word, signature_word
from ncclwatch.rank.checks.facts import Facts
from ncclwatch.rank.checks.preflight import Preflight
from ncclwatch.rank.data.loaders import Loaders, Pass, bucket_of
from ncclwatch.rank.messages import Messages
from ncclwatch.rank.operations import (
    ALL_GATHER,
    ALL_REDUCE,
    BARRIER,
    COLLECTIVE,
    MEETING,
    NO_ROW,
    P2P,
    UNSEEN,
    WAIT_CODES,
    Backward,
    Group,
    Issued,
    ThreadState,
    Work,
    is_through,
)
from ncclwatch.rank.ring.ringfile import RingFile
from ncclwatch.rank.where.call_sites import Sites, describe_exception, started_by_python

Batch = TypeVar("Batch")

NAMELESS = "nameless"  # of groups that torch gives no name
WORKS_MAX = 256
P2P_MAX = 4096  # sends and receives of a group that are under way at once; of what is beyond the end is never told
DRAIN_ABOVE = 8  # works of a group; fewer are looked at by the pulse and by whoever waits
RETIRED_S = 2.0  # a backend drops a finished work within microseconds, on a machine that has a core for it
RETIRED_NUMEL_MAX = 262_144  # elements that retired works may hold, but for the newest: memory is wanted back
NEWEST_KEPT = 3  # of the retired works, however large
FORGOTTEN_KEPT = 7  # destroyed groups of which works may be retired: a work of gloo keeps its group's connections open
_MASK = 0xFFFFFFFFFFFFFFFF


class Recorder:
    """Writes what the patches see. None of its methods may raise for a reason of ours; patches guard anyway."""

    def __init__(self, ring: RingFile) -> None:
        self.ring = ring
        self.sites = Sites(ring)
        self.facts = Facts(ring)
        self.key_names: set[str] = set()  # of the keys that it has waited for
        self.preflight = Preflight(ring)
        self.messages = Messages(ring)
        self.groups: dict[str, Group] = {}
        self.nameless: WeakKeyDictionary[object, Group] = WeakKeyDictionary()  # those of torch's process groups
        self.threads: dict[int, int] = {}  # Python thread id -> row
        self._foreign: dict[int, dict[str, Any]] = {}  # by native id: Python drops the state of a visitor
        self.open_works: dict[int, Issued] = {}  # id of a held Work -> what it belongs to
        self.batch_word = 0
        self.forwards = 0
        self.in_forward = False
        self.wrapping = False  # in the constructor of DDP or FSDP
        self.captures = 0  # CUDA graphs being captured: nobody may ask CUDA for anything
        self.steps_marked = False  # the user calls ncclwatch.step(): optimizer steps are not counted any more
        self.loaders = Loaders(ring, self.sites)
        self.pending_exception: dict[str, object] | None = None  # for the pulse thread to write
        self._thread = ThreadState()
        self._exception_seen = 0
        self._retired: deque[tuple[float, int, object]] = deque()
        self._sweeping = threading.Lock()
        self._weighed = self._retired_numel = 0  # how many of the retired works are counted, and their elements
        self.hot: object = None  # what the hot path in C keeps of this, where there is one: `native.quicken`
        self._unheld: deque[tuple[int, Issued]] = deque()  # works that are known by their ids and not held

    # -- threads and waits -------------------------------------------------------------------

    def state(self) -> ThreadState:
        """Return this thread's state as it is."""
        return self._thread

    def thread(self) -> ThreadState:
        """Return this thread's state, giving it a row in the ring at first sight."""
        if self._thread.row == UNSEEN:
            self._thread.row = self._new_row()
        return self._thread

    def _new_row(self) -> int:
        tid = threading.get_native_id()
        if tid in self._foreign:
            vars(self._thread).update(self._foreign[tid])
            self._foreign[tid] = vars(self._thread)
            return self._thread.row
        row = self.ring.add_thread(tid, threading.get_ident() == threading.main_thread().ident)
        if row < 0:
            return NO_ROW
        for ident in [ident for ident, known in list(self.threads.items()) if known == row]:
            self.threads.pop(ident, None)  # of one that has ended, in a full table
        self._foreign = {other: state for other, state in list(self._foreign.items()) if state["row"] != row}
        if started_by_python():  # one that never rests, or ends at once, is known by its name alone
            self.ring.set_sample(row, 0, {"name": threading.current_thread().name, "issued": -1})
        self.threads[threading.get_ident()] = row
        if not started_by_python():
            self._foreign[tid] = vars(self._thread)
        return row

    def enter(self, kind: WaitKind, site: int = 0, issued: Issued | None = None, number: int = 0) -> bytes:
        """Say that this thread enters a wait; returns what to give to `leave`. `number`: of the group it makes."""
        state = self.thread()
        outer = state.wait
        if state.row >= 0:
            if issued is None:
                state.wait = self.ring.wait(site, number, NO_GROUP, WAIT_CODES[kind], 0, -1)
            else:
                state.wait = self.ring.wait(site, issued.seq, issued.group.number, issued.kind, issued.op, issued.peer)
            self.ring.set_wait(state.row, state.wait)
        return outer

    def leave(self, outer: bytes) -> None:
        """Say that this thread left its wait, and is back in the outer one, if any."""
        self._thread.wait = outer
        if self._thread.row >= 0:
            self.ring.set_wait(self._thread.row, outer)

    def leave_issue(self, outer: bytes, issued: Issued) -> None:
        """Say that an operation has been issued; what issues and waits in one go is said to wait for it now."""
        state = self._thread
        if not state.inside:
            self.leave(outer)
            return
        first = state.inside_for
        if first is not None:
            self.drain(first.group)
            if first.seq > first.group.completed:
                self.leave(outer)  # the wait for the first one
                return
        state.inside_for = issued

    def enter_region(self) -> Any:
        """Enter what issues operations and waits for them before it returns, without a `Work.wait`.

        Returns what `leave_region` takes.
        """
        state = self._thread
        outer = state.wait, state.inside
        state.inside = True
        return outer

    def leave_region(self, outer: Any) -> None:
        """Leave it, and with it the wait for its last operation."""
        state = self._thread
        wait, state.inside = outer
        state.inside_for = None
        self.leave(wait)

    def newest(self) -> Issued | None:
        """Return the operation that this thread issued last."""
        return self.thread().newest

    # -- operations ----------------------------------------------------------------------------

    def add_group(self, name: str, desc: str, ranks: list[int], enqueued: int, site: int = 0) -> Group:
        """Begin recording a group; beyond the ring's table it is counted as dropped and kept in memory only."""
        number = self.ring.add_group(name or NAMELESS, desc, ranks, enqueued, site)
        group = Group(number if number >= 0 else NO_GROUP, name, ranks, enqueued)
        if name:
            self.groups[name] = group
        return group

    def _all_groups(self) -> list[Group]:
        return [*self.groups.values(), *self.nameless.values()]

    def forget_group(self, name: str) -> None:
        """Record that this rank destroyed a group; a later one may have the same name."""
        group = self.groups.pop(name, None)
        if group is not None:
            self.drain(group)
            # What is not through yet is about to be: its backend tells us later than it tells whoever waited.
            for _, work in (*group.works, *group.p2p_works):
                self.open_works.pop(id(work), None)
                self._retired.append((time.monotonic(), 0, work))
            group.works, group.p2p_works = deque(), []  # the pulse may be looking at the old ones
            self._retired.append((time.monotonic(), RETIRED_NUMEL_MAX // FORGOTTEN_KEPT, group))
            self._sweep()
            self.flag(group, Flag.DESTROYED)

    def flag(self, group: Group, flag: int, on: bool = True) -> None:
        """Set or clear a flag of a group."""
        flags = group.flags | flag if on else group.flags & ~flag
        if flags != group.flags and group.number != NO_GROUP:
            group.flags = flags
            self.ring.flag_group(group.number, flags)

    def issue(
        self, group: Group, op: int, numel: int, signature: tuple[int, int, int], site: int, in_order: bool = False
    ) -> Issued:
        """Record an operation before the backend gets it; `signature` is (peer, dtype, reduce op) codes.

        `in_order`: what this thread issues later comes after it, in any group. Members need not agree on that.
        """
        state = self._thread
        if state.row == UNSEEN:
            self.thread()
        label = state.label or (group.next_label(numel) if group.buckets and op == ALL_REDUCE else 0)
        if label:
            site = self.sites.labelled(site, label)
        word = signature_word(*signature)
        peer = signature[0]
        before = prefix = group.prefix
        p2p = op in P2P
        if p2p:
            seq = self.messages.count(group, op, peer)
        else:
            seq = next(group.seqs)
            agreed = 0 if op == ALL_GATHER else numel
            mixed = (op * 0x9E3779B97F4A7C15 ^ agreed * 0xC2B2AE3D27D4EB4F ^ word * 0x165667B19E3779F9) & _MASK
            prefix = group.prefix = (before * 0x100000001B3 + mixed + 1) & _MASK
            group.enqueued = seq
        if sys.exc_info()[1] is not None:
            self._note_exception()
        ring, row, number = self.ring, state.row, group.number
        event = ring.add_event(
            number,
            op,
            row if row >= 0 else NO_THREAD,
            numel,
            site,
            prefix,
            seq,
            self.batch_word,
            self.forwards,
            word | IN_ORDER if in_order else word,
        )
        if not p2p and number != NO_GROUP:
            group.newest_event = event
            ring.set_group(number, (prefix, seq, group.completed, event + 1))
        state.issued += 1
        if row >= 0:
            ring.set_thread_issued(row, state.issued)
        issued = state.newest = Issued(group, op, seq, site, peer, before, numel, label)
        if p2p:
            self.messages.note(state, issued)
        return issued

    def begin_batch(self) -> None:
        """Say that this thread begins to issue messages as one."""
        self._thread.batch = []

    def end_batch(self, work: Work | None) -> None:
        """Say that it has, and which work stands for all of them; None: none does."""
        last = self.messages.end_batch(self._thread)
        if last is not None and work is not None:
            self._know(last, work)

    def refuse(self, issued: Issued) -> None:
        """Take an operation back that the backend refused to take (a wrong argument, say)."""
        group = issued.group
        if issued.kind == COLLECTIVE and group.enqueued == issued.seq:
            group.enqueued -= 1
            group.prefix = issued.before
            group.seqs = itertools.count(issued.seq)
            if group.number != NO_GROUP:
                self.ring.set_group_head(group.number, group.prefix, group.enqueued)
        elif issued.kind != COLLECTIVE:
            self.messages.refuse(issued)
        self._note_exception()

    def track(self, issued: Issued, work: Work | None) -> None:
        """Keep the work of an operation until it is complete; without a work it is complete now."""
        group = issued.group
        if group.by_account and not issued.on_host:
            if work is not None:
                self._know(issued, work)
            return
        if issued.kind != COLLECTIVE:
            if work is not None:
                self._hold_p2p(issued, work)
            return
        if work is None:
            self._complete(group, issued.seq)
            return
        self.open_works[id(work)] = issued
        if not group.host_waits and len(group.works) >= WORKS_MAX:
            # The host is far ahead of a stream that ends its works in order: the newest stands for those before it.
            self.open_works.pop(id(group.works.pop()[1]), None)
        group.works.append((issued, work))
        if len(group.works) > DRAIN_ABOVE:
            self.drain(group)

    def _know(self, issued: Issued, work: Work) -> None:
        """Remember what a work is for without holding it. It leaves no trace when it ends: the oldest are forgotten."""
        self.open_works[id(work)] = issued
        self._unheld.append((id(work), issued))
        while len(self._unheld) > WORKS_MAX:
            known, oldest = self._unheld.popleft()
            if self.open_works.get(known) is oldest:  # else another work has that id by now
                del self.open_works[known]

    def _hold_p2p(self, issued: Issued, work: Work) -> None:
        works = issued.group.p2p_works
        if len(works) >= P2P_MAX:
            self.drain(issued.group)
        if len(works) < P2P_MAX:
            self.open_works[id(work)] = issued
            works.append((issued, work))
        else:
            self.ring.count_dropped()

    def drain(self, group: Group, p2p_max: int = WORKS_MAX) -> None:
        """Note the works of a group that are complete, oldest first. Never waits.

        Of sends and receives so many are asked, the oldest: this is on the path of each, and the pulse asks all.
        """
        if not group.draining.acquire(blocking=False):
            return
        try:
            works = group.works
            completed = group.completed
            while works and (is_through(*works[0]) or len(works) > WORKS_MAX):
                issued, work = works.popleft()
                self.open_works.pop(id(work), None)
                self._retire(issued, work)
                completed = max(completed, issued.seq)
            if completed != group.completed:
                self._complete(group, completed)
            if group.p2p_works:
                self._drain_p2p(group, p2p_max)
        finally:
            group.draining.release()

    def _drain_p2p(self, group: Group, p2p_max: int) -> None:
        works = group.p2p_works
        for entry in [entry for entry in works[:p2p_max] if is_through(*entry)]:
            issued, work = entry
            works.remove(entry)
            self.open_works.pop(id(work), None)
            self._retire(issued, work)
            self.messages.end(issued)

    def _retire(self, issued: Issued, work: Work) -> None:
        """Keep a finished work until its backend has let go of it, so that the last to drop it is Python.

        A work of gloo holds the Python context that backward() leaves in its thread, and its tensors. Were gloo's
        own thread the last to drop it, that thread would need the GIL; and a process group that is destroyed with
        the GIL held (by DDP's reducer, when the model goes) waits for that thread: a deadlock at the end of training.
        """
        if issued.on_host:
            self._retired.append((time.monotonic(), issued.numel, work))
        self._sweep()

    def _sweep(self) -> None:
        if not self._sweeping.acquire(blocking=False):
            return
        try:
            retired, old = self._retired, time.monotonic() - RETIRED_S
            while self._weighed < len(retired):  # any thread appends; only who sweeps counts
                self._retired_numel += retired[self._weighed][1]
                self._weighed += 1
            while self._weighed and (
                retired[0][0] < old
                or (self._weighed > NEWEST_KEPT and self._retired_numel > RETIRED_NUMEL_MAX)
                or self._weighed > WORKS_MAX
            ):
                self._retired_numel -= retired.popleft()[1]
                self._weighed -= 1
        finally:
            self._sweeping.release()

    def keep_works(self) -> None:
        """At the end of the interpreter: let nothing that is held be dropped any more, in whatever order all goes."""
        held = [*self._retired, *((g.works, g.p2p_works) for g in self._all_groups())]
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))

    def set_completed(self, name: str, seq: int) -> None:
        """Record how far a group is by its backend's own account."""
        group = self.groups.get(name)
        if group is not None and group.completed < seq <= group.enqueued:
            self._complete(group, seq)

    def close(self) -> None:
        """Stop recording."""

    def forget(self) -> None:
        """In a forked child: be off, and leave the parent's ring alone."""

    def _complete(self, group: Group, seq: int) -> None:
        group.completed = max(group.completed, seq)
        if group.number != NO_GROUP:
            self.ring.set_group_done(group.number, group.completed, group.newest_event)

    def drain_all(self) -> None:
        """Note what is complete in all groups; the pulse thread's share of the work."""
        for group in self._all_groups():
            if group.works or group.p2p_works:
                self.drain(group, P2P_MAX)
        self._sweep()

    # -- how long it was blocked -------------------------------------------------------------------

    def meter(self, issued: Issued, blocked_ns: int) -> None:
        """Record how long a thread was blocked until an operation was through on the host."""
        group = issued.group
        if group.by_account and issued.kind != COLLECTIVE:
            self.messages.order(self._thread, issued)
        if not group.host_waits:
            return
        if issued.kind != COLLECTIVE:
            self.ring.add_time(Word.PEERS_WAITED_NS, blocked_ns)
        elif issued.op in MEETING and (issued.on_host or issued.op == BARRIER):
            self.ring.meter(group.number, issued.seq, blocked_ns)

    def end_backward(self, begun: Backward) -> None:
        """Record that a backward has ended, and how long its end waited for what was issued in it.

        DDP waits in C++, where nobody sees it: from the issue of its last bucket on there is nothing left to compute.
        """
        outer, outer_site, events = begun
        ring = self.ring
        self.leave(outer)
        ring.set_word(Word.BACKWARD_SITE, outer_site)
        number, issued_ns, group, op, seq = ring.newest_operation()
        if number <= events or op not in MEETING or group == NO_GROUP or ring.group_flags(group) & Flag.ASYNC:
            return
        if ring.metered(group) < seq:
            ring.meter(group, seq, time.monotonic_ns() - issued_ns)

    # -- exceptions ----------------------------------------------------------------------------

    def _note_exception(self) -> None:
        """Record the exception that is being handled while the rank goes on, once for each."""
        error = sys.exc_info()[1]
        if error is None or id(error) == self._exception_seen or isinstance(error, StopIteration):
            return
        self._exception_seen = id(error)
        self.pending_exception = describe_exception(error, self.sites)

    # -- what operations are for -----------------------------------------------------------------

    def set_label(self, label: int) -> int:
        """Say what this thread's next operations are for (the id of a text, 0: unknown); returns what it was."""
        state = self.thread()
        before, state.label = state.label, label
        return before

    def set_buckets(self, name: str, buckets: list[tuple[int, int]]) -> None:
        """Say which (elements, label) the gradient buckets of a group have, in the order of their reduction."""
        group = self.groups.get(name)
        if group is not None:
            group.buckets, group.next_bucket = buckets, 0

    def begin_backward(self, site: int) -> Backward:
        """Record that backward() was called: the next gradient bucket is the first."""
        outer_site, events = self.ring.word(Word.BACKWARD_SITE), self.ring.word(Word.EVENTS_HEAD)
        self.ring.set_word(Word.BACKWARD_SITE, site)
        self._begin_buckets()
        return self.enter(WaitKind.BACKWARD, site), outer_site, events  # last: a signal handler may raise before

    def _begin_buckets(self) -> None:
        for group in self._all_groups():
            group.next_bucket = 0

    # -- progress ------------------------------------------------------------------------------

    def count_step(self, steps: int) -> None:
        """Record optimizer steps."""
        self.ring.set_word(Word.STEPS, steps)

    def count_forward(self) -> None:
        """Record a forward pass of a wrapped model that will be followed by a backward."""
        self.forwards += 1
        self.ring.set_word(Word.FORWARDS, self.forwards)

    def count_batch(self, loader: int, drawn: int) -> None:
        """Record a batch that a loader gave; the following operations belong to it."""
        self.batch_word = (loader + 1) << BATCH_BITS | drawn & (1 << BATCH_BITS) - 1
        self.loaders.count(loader, drawn)

    def count_drawn(self, this: Pass, batch: Batch, bucket: Callable[[Batch], Hashable] = bucket_of) -> None:
        """Record the newest batch of a pass, with its data bucket."""
        this.drawn += 1
        if this.together:
            self.loaders.check_together(this)
        self.count_batch(this.row, this.drawn)
        self.loaders.count_bucket(this, bucket(batch))
