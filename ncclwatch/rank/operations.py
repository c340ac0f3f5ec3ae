"""Holds what a rank knows of its groups, of each operation between its issue and its end, and of each thread."""

import itertools
import threading
from collections import deque
from typing import Protocol

from ncclwatch.contract.model.rank import Op, WaitKind
from ncclwatch.contract.ring.layout import (
    OPS,
    WAITS,
)
from ncclwatch.rank.ring.ringfile import NO_WAIT

UNSEEN, NO_ROW = -1, -2  # of a thread that has not been asked for its row, or that has found none free
OP_CODES = {op: number for number, op in enumerate(OPS)}
WAIT_CODES = {kind: number + 1 for number, kind in enumerate(WAITS)}
COLLECTIVE = WAIT_CODES[WaitKind.COLLECTIVE]
SEND_WAIT = WAIT_CODES[WaitKind.SEND]
RECV_WAIT = WAIT_CODES[WaitKind.RECV]
ALL_REDUCE = OP_CODES[Op.ALL_REDUCE]
SEND = OP_CODES[Op.SEND]
RECV = OP_CODES[Op.RECV]
ALL_GATHER = OP_CODES[Op.ALL_GATHER]  # its lists may be ragged: the sizes are no part of what ranks agree on
P2P = (SEND, RECV)
BARRIER = OP_CODES[Op.BARRIER]
# No member of these is through before all have come: who waits least for them came last. In the others a root, or all
# but a root, has nothing to wait for.
MEETING = frozenset(OP_CODES[op] for op in (Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_TO_ALL, Op.BARRIER))


class Work(Protocol):
    """What is needed of torch's Work."""

    def is_completed(self) -> bool:
        """Whether it is through, successfully or not."""


class Group:
    """One process group as this rank sees it."""

    def __init__(self, number: int, name: str, ranks: list[int], enqueued: int) -> None:
        self.number = number
        self.name = name
        self.ranks = ranks
        self.enqueued = enqueued
        self.completed = enqueued
        self.newest_event = -1
        self.flags = 0  # of its row in the ring
        self.host_waits = True  # whoever returns from wait() on a tensor in host memory has seen the work done
        self.by_account = False  # works on a GPU are NCCL's: never held, never asked; NCCL tells itself how far it is
        self.device = -1  # of the tensor that its newest operation of NCCL got
        self.on_device = False  # all its collectives run on a GPU, in the order of one backend
        self.prefix = 0
        self.seqs = itertools.count(enqueued + 1)
        self.works: deque[tuple[Issued, Work]] = deque()
        self.peers: dict[int, tuple[int, list[int]]] = {}  # global rank -> row, counts
        self.p2p_works: list[tuple[Issued, Work]] = []
        self.buckets: list[tuple[int, int]] = []  # (elements, label) of DDP's gradient buckets, in order
        self.next_bucket = 0
        self.draining = threading.Lock()

    def next_label(self, numel: int) -> int:
        """Return the label of the gradient bucket that DDP reduces next, 0 if this is none; it goes by their order."""
        if self.next_bucket >= len(self.buckets) or self.buckets[self.next_bucket][0] != numel:
            return 0
        self.next_bucket += 1
        return self.buckets[self.next_bucket - 1][1]


class Issued:
    """One operation between its issue and its work."""

    __slots__ = (
        "after", "batch", "before", "done", "group", "kind", "label", "numel", "on_host", "op", "peer", "seq", "site"
    )  # fmt: skip
    after: tuple[int, int]  # only of a message: the row of its thread, and how many collectives that had issued
    batch: "list[Issued] | None"  # only of a message: all those that were issued as one with it

    def __init__(  # noqa: PLR0913 - as many as it has fields
        self, group: Group, op: int, seq: int, site: int, peer: int, before: int, numel: int, label: int
    ) -> None:
        self.group = group
        self.op = op
        self.seq = seq
        self.site = site
        self.peer = peer
        self.before = before  # the group's prefix hash without this operation
        self.on_host = False  # whoever returns from wait() has seen it done
        self.done = False
        self.label = label
        self.numel = numel
        self.kind = SEND_WAIT if op == SEND else RECV_WAIT if op == RECV else COLLECTIVE


def is_through(issued: Issued, work: Work) -> bool:
    """Say whether an operation is complete.

    Some works of gloo (reduce_scatter) never say that they are; returning from wait() says it.
    """
    return issued.done or work.is_completed()


# A backward that has begun: the wait that its thread was in, the line of the backward round it, events until then.
Backward = tuple[bytes, int, int]


class ThreadState(threading.local):
    """What this thread is inside of."""

    def __init__(self) -> None:
        self.row = UNSEEN
        self.issued = 0
        self.messages = 0  # sends and receives among them
        self.batch: list[Issued] | None = None  # those of the batch that it issues
        self.wait = NO_WAIT  # what the ring says now, to be put back when an inner wait is left
        self.newest: Issued | None = None
        self.inside = False  # of something that issues operations and waits for them in C++, where nobody sees it
        self.inside_for: Issued | None = None  # the first of those operations that is not through
        self.label = 0  # what the operations that follow are for
        self.group_wait = False  # inside init_process_group, new_group or destroy_process_group
        self.saving = False  # inside torch.save or the like
