"""The recorder whose hot paths are native: kernels and Work.wait in C++, everything rare as in Python.

`ncclwatch/native/sources` keeps the books of groups, works and waits, straight in the ring's memory. It asks this class
about what it meets for the first time: a group, a thread, a line.

Where no torch side fits, the recorder stays the one in Python, and all that it knows stays where it is: `hot_path.h`
reads and sets the same objects.
"""

import time
from types import CodeType, ModuleType

import torch
from torch.distributed import distributed_c10d as c10d

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.ring import layout
from ncclwatch.contract.ring.layout import DTYPES, REDUCE_OPS, WAITS, Word
from ncclwatch.contract.stacks.ownership import is_users
from ncclwatch.native import probe
from ncclwatch.rank.operations import (
    ALL_GATHER,
    ALL_REDUCE,
    BARRIER,
    MEETING,
    RECV,
    SEND,
    UNSEEN,
    Issued,
    ThreadState,
    Work,
)
from ncclwatch.rank.patches.chosen_device import note_used
from ncclwatch.rank.patches.groups import group_of
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import NO_WAIT, RingFile
from ncclwatch.rank.where.handlers import raised_by_handler

# In the order of Layout and Codes in the C++ sources.
_LAYOUT = (
    layout.HEADER_BYTES, layout.GROUPS_AT, layout.GROUP_BYTES, layout.THREADS_AT, layout.THREAD_BYTES, layout.WAIT_AT,
    layout.PEERS_AT, layout.PEER_BYTES, layout.EVENTS_AT, config.EVENTS_MAX, Word.EVENTS_HEAD, Word.FORWARDS,
    Word.DROPPED, Word.BATCH, Word.BACKWARD_SITE,
    layout.METERS_AT, layout.METER_BYTES, config.METERS_MAX, Word.WAITED_NS, Word.PEERS_WAITED_NS,
)  # fmt: skip
_CODES = (
    SEND, RECV, ALL_REDUCE, ALL_GATHER,
    *(WAITS.index(kind) + 1 for kind in (WaitKind.COLLECTIVE, WaitKind.SEND, WaitKind.RECV)),
    len(REDUCE_OPS), len(DTYPES) - 1,
    sum(1 << op for op in MEETING), BARRIER,
)  # fmt: skip


_library: torch.library.Library | None = None


def _answer_for_groups(module: ModuleType) -> None:
    """See to it that the torch side can ask about a group: through an op, so that torch makes the object of it."""
    global _library
    if _library is None:
        _library = torch.library.Library("ncclwatch", "IMPL")  # type: ignore[no-untyped-call]
        _library.impl("new_group", module.new_group, "CPU")  # type: ignore[no-untyped-call]


def _dtype_codes() -> list[int]:
    """Return the codes of the ring by the numbers of torch's C++."""
    known = {probe.scalar_type(getattr(torch, name)): code for code, name in enumerate(DTYPES) if hasattr(torch, name)}
    return [known.get(number, len(DTYPES) - 1) for number in range(max(known) + 1)]


def quicken(recorder: Recorder, module: ModuleType) -> None:
    """Give a recorder what the hot path in C keeps of it."""
    ring = recorder.ring
    clock = None if ring.clock is time.monotonic_ns else ring.clock
    recorder.hot = module.make_hot(recorder, ring.memory, _LAYOUT, _CODES, *ring.counters, clock)


class NativeRecorder(Recorder):
    """A `Recorder` for one ring; only one of them records at a time in a process."""

    def __init__(self, ring: RingFile, module: ModuleType) -> None:
        super().__init__(ring)
        self._native = module
        _answer_for_groups(module)
        module.begin(ring.memory, _LAYOUT, _CODES, _dtype_codes(), self)

    def close(self) -> None:
        """Stop recording; the ring's memory stays mapped, for a thread that is still inside."""
        self._native.end()

    # -- what the C++ asks, with the GIL held ----------------------------------------------------------

    def new_thread(self) -> int:
        """Return this thread's row."""
        return self._new_row()

    def new_group(self, boxed: "torch.ScriptObject") -> list[int]:
        """Return a group's row, the collectives that went unseen, host_waits, by_account and its ranks."""
        group = group_of(self, c10d.ProcessGroup.unbox(boxed))
        return [group.number, group.enqueued, group.host_waits, group.by_account, *group.ranks]

    def new_peer(self, group: int, peer: int) -> int:
        """Return a row of p2p counters."""
        return self.ring.add_peer(group, peer)

    def is_users(self, code: CodeType) -> int:
        """Return 1 for the user's own code."""
        return int(is_users(code.co_filename))

    def site(self, code: CodeType, line: int, callers: list[tuple[CodeType, int]]) -> int:
        """Return the id of a line together with those that called it."""
        return self.sites.route(code, line, callers)

    def labelled(self, site: int, label: int) -> int:
        """Return the id of a site together with what its operation is for."""
        return self.sites.labelled(site, label)

    def note_device(self, index: int) -> None:
        """Note the device of a tensor that a collective of NCCL is about to get."""
        note_used(self, index)

    def note_exception(self) -> None:
        """Record the exception that is being handled on this thread."""
        self._note_exception()

    def is_of_signal(self, error: BaseException) -> bool:
        """Say whether an exception came out of the user's signal handler while one of these was asked."""
        return not isinstance(error, Exception) or raised_by_handler(error)

    # -- what the patches and the pulse call -------------------------------------------------------------

    def thread(self) -> ThreadState:
        """Return this thread's state."""
        state = self._thread
        if state.row == UNSEEN:
            state.row = self._native.thread_row()
        return state

    def enter(self, kind: WaitKind, site: int = 0, issued: Issued | None = None, number: int = 0) -> bytes:
        """Say that this thread enters a wait of its own (not one for an operation)."""
        self._native.enter_wait(WAITS.index(kind) + 1, site, number)
        return NO_WAIT

    def leave(self, outer: bytes) -> None:
        """Say that this thread left its wait."""
        self._native.leave_wait()

    def enter_region(self) -> object:
        """Enter what issues operations and waits for them before it returns."""
        return self._native.enter_region()

    def leave_region(self, outer: object) -> None:
        """Leave it."""
        self._native.leave_region(outer)

    def forget_group(self, name: str) -> None:
        """Record that this rank destroyed a group."""
        self._native.forget_group(name)
        super().forget_group(name)

    def drain_all(self) -> None:
        """Note what is complete in all groups."""
        self._native.drain_all()

    def set_label(self, label: int) -> int:
        """Say what this thread's next operations are for; returns what it was."""
        return int(self._native.set_label(label))

    def set_buckets(self, name: str, buckets: list[tuple[int, int]]) -> None:
        """Say which gradient buckets a group has."""
        self._native.set_buckets(name, buckets)

    def _begin_buckets(self) -> None:
        self._native.begin_backward()

    def begin_batch(self) -> None:
        """Say that this thread begins to issue messages as one."""
        self._native.begin_batch()

    def end_batch(self, work: Work | None) -> None:
        """Say that it has, and which work stands for all of them."""
        self._native.end_batch(work)

    def set_completed(self, name: str, seq: int) -> None:
        """Record how far a group is by its backend's own account."""
        self._native.set_completed(name, seq)

    def count_batch(self, loader: int, drawn: int) -> None:
        """Remember which batch of which loader the following operations belong to."""
        super().count_batch(loader, drawn)
        self.ring.set_word(Word.BATCH, self.batch_word)

    def forget(self) -> None:
        """In a forked child: be off."""
        self._native.forget()
