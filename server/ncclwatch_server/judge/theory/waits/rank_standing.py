"""Says each rank's standing: blocked in operations, outside of all, frozen, or gone.

A rank counts as blocked only when each of its threads that issues operations is blocked or
idle: any other thread may still release what the blocked one waits for. Where collectives run on a
device, the host is blocked elsewhere and later than in the call: see `device_order`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ncclwatch.contract import config
from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import (
    UNTOLD,
    UNTOLD_RANK,
    GroupView,
    Op,
    OpView,
    ProcessState,
    RankView,
    ThreadView,
    WaitKind,
    WaitView,
)
from ncclwatch_server.judge.theory.histories.free_threads import is_idle, may_release, unfinished_groups
from ncclwatch_server.judge.theory.waits.device_order import (
    held_back_by,
    launches_in_vain,
    message_held_back_by,
    waits_on_device,
)

BLOCKED_S_MIN = 0.5  # views of one snapshot are taken within this time, so older waits overlap
STORE_RANKS_MAX = 1024  # a wait for a key may need any other rank: too many edges in a bigger job
FROZEN_STATES = (ProcessState.STOPPED, ProcessState.TRACED)
GONE_STATES = (ProcessState.GONE, ProcessState.ZOMBIE)
_MESSAGES = {Op.SEND: WaitKind.SEND, Op.RECV: WaitKind.RECV}


class Standing(Enum):
    """Where a rank stands."""

    BLOCKED = "blocked"
    OUTSIDE = "outside"
    FROZEN = "frozen"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Something that several ranks must enter: a collective, a pair of send and recv, or a rendezvous."""

    group: str
    seq: int
    members: tuple[int, ...]
    kind: WaitKind = WaitKind.COLLECTIVE
    source: int = -1  # of p2p
    target: int = -1
    unnamed: int = 0  # members besides, that nobody knows: whether they have entered cannot be said

    @property
    def size(self) -> int:
        """How many members it has."""
        return len(self.members) + self.unnamed

    def __hash__(self) -> int:
        """Leave the members out: a group may have 100,000, and an operation is looked up many times."""
        return hash((self.group, self.seq, self.kind, self.source, self.target))

    @property
    def from_anyone(self) -> bool:
        """Whether any one of the other members can let it go on: a receive that names no source, a key of the store."""
        return self.kind is WaitKind.STORE or (self.kind is WaitKind.RECV and self.source < 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One thread of one rank, blocked in one operation."""

    rank: int
    operation: Operation
    wait: WaitView
    thread: ThreadView
    issued: OpView | None  # the operation as this rank issued it
    on_device: bool = False  # the device waits in it; the host stands elsewhere, and `wait` is where it was issued


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStanding:
    """One rank's standing, and the operations it is blocked in."""

    rank: int
    standing: Standing
    view: RankView
    blocks: tuple[Block, ...] = ()
    queued: tuple[Block, ...] = ()  # what its device has to do after `blocks`: the oldest unfinished of other groups


def standings(snapshot: JobSnapshot) -> dict[int, RankStanding]:
    """Return the standing of every rank that somebody has seen."""
    unfinished = unfinished_groups(snapshot)
    return {rank: _standing(view, snapshot, unfinished) for rank, view in sorted(snapshot.ranks.items())}


def _standing(view: RankView, snapshot: JobSnapshot, unfinished: frozenset[str] | None) -> RankStanding:
    if view.file is not None and not view.file.saw_host:
        return _standing_in_file(view, snapshot)
    blocks = tuple(block for thread in view.threads if thread.alive for block in _blocks(view, thread, snapshot))
    blocks = blocks or _lock_blocks(view, snapshot)
    if view.ending is not None or view.process.state in GONE_STATES:
        return RankStanding(rank=view.rank, standing=Standing.GONE, view=view, blocks=blocks)
    if view.process.state in FROZEN_STATES:
        return RankStanding(rank=view.rank, standing=Standing.FROZEN, view=view, blocks=blocks)
    standing = Standing.BLOCKED if blocks and not _has_free_thread(view, blocks, unfinished) else Standing.OUTSIDE
    queued = _queued(view, blocks) if standing is Standing.BLOCKED else ()
    return RankStanding(rank=view.rank, standing=standing, view=view, blocks=blocks, queued=queued)


def _queued(view: RankView, blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Return what a device has to do after what the rank is blocked in: the oldest unfinished of other groups."""
    front = next((block for block in blocks if block.on_device), None)
    if front is None:
        return ()
    mentioned = {block.operation.group for block in blocks}
    return tuple(
        device_block(view, front.thread, group.pending)
        for group in view.groups
        if group.pending is not None and group.asynchronous and not group.destroyed and group.name not in mentioned
    )


def _has_free_thread(view: RankView, blocks: Sequence[Block], unfinished: frozenset[str] | None) -> bool:
    """Say whether a thread that issues operations is neither blocked nor idle, nor at work for one that is."""
    blocked = {block.thread.tid for block in blocks}
    return any(
        thread.alive
        and thread.tid not in blocked
        and (thread.main or thread.issued)
        and not is_idle(thread)
        and may_release(view, thread, unfinished)
        and not launches_in_vain(view, thread)
        for thread in view.threads
    )


def _standing_in_file(view: RankView, snapshot: JobSnapshot) -> RankStanding:
    """Return the standing of a rank whose host nobody saw: it waits in the oldest that it has not finished.

    Where a device does its work in the order of its issue, what was issued later has not begun.
    """
    main = next((thread for thread in view.threads if thread.main), None)
    heads = [
        device_block(view, main or ThreadView(tid=0, main=True, issued=0), group.pending)
        for group in view.groups
        if group.pending is not None and not group.destroyed
    ]
    pairs = (block for thread in view.threads if not thread.main for block in _blocks(view, thread, snapshot))
    heads += [replace(block, on_device=True) for block in pairs]
    heads = sorted((each for each in heads if each.wait.age_s >= BLOCKED_S_MIN), key=lambda each: -each.wait.age_s)
    first = 1 if all(group.asynchronous for group in view.groups if group.pending is not None) else len(heads)
    standing = Standing.GONE if view.ending is not None else Standing.BLOCKED if heads else Standing.OUTSIDE
    return RankStanding(
        rank=view.rank, standing=standing, view=view, blocks=tuple(heads[:first]), queued=tuple(heads[first:])
    )


def _blocks(view: RankView, thread: ThreadView, snapshot: JobSnapshot) -> list[Block]:
    wait = thread.wait
    held_up = [each for each in waits_on_device(view, thread) if each.age_s >= BLOCKED_S_MIN]
    if held_up:
        return [device_block(view, thread, issued) for issued in held_up]
    if wait is None or wait.age_s < BLOCKED_S_MIN:
        return []
    if wait.kind is WaitKind.BACKWARD:
        return _blocks_in_backward(view, thread, wait)
    operation = _operation(view, wait, snapshot)
    if operation is None:
        return []
    message = (wait.op, wait.peer) if wait.op.is_p2p else None
    issued = find_issued(view, operation.group, operation.seq, message)
    return [Block(rank=view.rank, operation=operation, wait=wait, thread=thread, issued=issued)]


def _lock_blocks(view: RankView, snapshot: JobSnapshot) -> tuple[Block, ...]:
    """Return the wait for a file lock, or for a lock file to go, that another rank of this node holds."""
    process, file = view.process, view.process.lock_file
    holder = process.lock_holder or (file.writer if file is not None and not file.ended else 0)
    if not holder:  # nearly always, and then nobody is looked for
        return ()
    thread = next((thread for thread in view.threads if thread.main and thread.alive), None)
    rank = next((r for r, other in snapshot.ranks.items() if (other.host, other.pid) == (view.host, holder)), None)
    if thread is None or rank is None or rank == view.rank or not _seen_together(view, snapshot.ranks[rank]):
        return ()
    path = process.lock_path or (file.path if file else "")
    age_s = process.lock_polled_s or thread.cpu_still_s
    wait = WaitView(kind=WaitKind.LOCK, age_s=age_s, site=thread.doing, label=path)
    operation = Operation(group=wait.kind.value, seq=0, members=tuple(sorted((view.rank, rank))), kind=wait.kind,
                          source=view.rank, target=rank)  # fmt: skip
    block = Block(rank=view.rank, operation=operation, wait=wait, thread=thread, issued=None)
    return (block,) if age_s >= BLOCKED_S_MIN else ()


def _seen_together(view: RankView, holder: RankView) -> bool:
    """Say whether what is seen of the holder of a lock is so while it holds that.

    Not if it has ended, which releases the lock, or waits for that lock itself: it has got it since. Nor if it came to
    where it waits after it was seen to hold the lock: it may have let go of it before.
    """
    came_later = holder.process.lock_holder and holder.process.lock_path == view.process.lock_path
    if holder.ending is not None or came_later:
        return False
    waits = (thread.wait for thread in holder.threads if thread.main and thread.wait is not None)
    return all(holder.news_age_s + wait.age_s >= view.news_age_s + view.taken_s for wait in waits)


def device_block(view: RankView, thread: ThreadView, issued: OpView) -> Block:
    """Return the block of a thread whose device is held up in an operation."""
    kind = _MESSAGES.get(issued.op, WaitKind.COLLECTIVE)
    group = group_of(view, issued.group)
    if group is None or kind is WaitKind.COLLECTIVE:
        operation = _collective(view, issued.group, issued.seq)
    else:
        operation = _message(view, group, kind, issued.seq, issued.peer)
    return Block(
        rank=view.rank,
        operation=operation,
        wait=WaitView(
            kind=kind,
            age_s=issued.age_s,
            group=issued.group,
            seq=issued.seq,
            op=issued.op,
            peer=issued.peer,
            site=issued.site,
            label=issued.label,
        ),
        thread=thread,
        issued=issued,
        on_device=True,
    )


def _operation(view: RankView, wait: WaitView, snapshot: JobSnapshot) -> Operation | None:
    if wait.kind is WaitKind.NEW_GROUP and wait.members:
        seq = _made_of(view, wait.members) + 1
        return Operation(group=wait.kind.value, seq=seq, members=wait.members, kind=wait.kind)
    if wait.kind in (WaitKind.INIT, WaitKind.NEW_GROUP):
        everyone = tuple(range(snapshot.world_size))
        seq = generation(view) if wait.kind is WaitKind.INIT else 0
        return Operation(group=wait.kind.value, seq=seq, members=everyone, kind=wait.kind)
    if wait.kind is WaitKind.STORE and snapshot.world_size <= STORE_RANKS_MAX:
        everyone = tuple(range(snapshot.world_size))
        return Operation(group=wait.kind.value, seq=0, members=everyone, kind=wait.kind, target=view.rank)
    if wait.kind not in (WaitKind.COLLECTIVE, WaitKind.SEND, WaitKind.RECV):
        return None
    group = group_of(view, wait.group)
    if group is not None and wait.kind is WaitKind.COLLECTIVE and group.completed >= wait.seq:
        return None
    if group is not None and wait.kind is not WaitKind.COLLECTIVE:
        return _message(view, group, wait.kind, wait.seq, wait.peer)
    return _collective(view, wait.group, wait.seq)


def _made_of(view: RankView, members: tuple[int, ...], *, perhaps: bool = False) -> int:
    """Return how many groups of exactly these members a rank has made; `perhaps`: or of members that are not known."""
    return sum(group.ranks == members or (perhaps and group.unnamed > 0) for group in view.groups)


def _message(view: RankView, group: GroupView, kind: WaitKind, seq: int, peer: int) -> Operation:
    message = message_of(view.rank, group.name, kind, seq, peer)
    if peer >= 0:
        return message
    return replace(message, members=tuple(sorted({view.rank, *group.ranks})), unnamed=group.unnamed)


def message_of(rank: int, group: str, kind: WaitKind, seq: int, peer: int) -> Operation:
    """Return a send of a rank to another one, or its receive from that."""
    source, target = (rank, peer) if kind is WaitKind.SEND else (peer, rank)
    members = tuple(sorted({rank, peer}))
    return Operation(group=group, seq=seq, members=members, kind=kind, source=source, target=target)


def _collective(view: RankView, name: str, seq: int) -> Operation:
    """Return an operation of a group; of one that found no room in the ring it is known that this rank is in it."""
    group = group_of(view, name)
    if group is None:
        return Operation(group=name, seq=seq, members=(view.rank,), unnamed=1)
    return Operation(group=name, seq=seq, members=group.ranks, unnamed=group.unnamed)


def _blocks_in_backward(view: RankView, thread: ThreadView, wait: WaitView) -> list[Block]:
    """DDP waits for its buckets in C++, where no wait is recorded.

    The thread stands in the autograd engine, uses no CPU, and an operation of this rank is
    unfinished: that one is waited for.
    """
    in_engine = thread.leaf.startswith("_engine_run_backward") and thread.cpu_still_s > 0
    # Nobody waits in backward for what even_batches agrees on meanwhile.
    own = config.EVEN_BATCHES_GROUP
    pending = [g for g in view.groups if g.pending is not None and not g.destroyed and g.desc != own]
    if not in_engine or not pending:
        return []
    group = max(pending, key=lambda each: each.pending.age_s if each.pending else 0.0)
    oldest = group.pending
    if oldest is None or oldest.age_s < BLOCKED_S_MIN:
        return []
    operation = _collective(view, group.name, oldest.seq)
    inner = WaitView(
        kind=WaitKind.COLLECTIVE,
        age_s=min(oldest.age_s, wait.age_s),
        group=group.name,
        seq=oldest.seq,
        op=oldest.op,
        peer=oldest.peer,
        site=wait.site or oldest.site,
        label=oldest.label,
    )
    return [Block(rank=view.rank, operation=operation, wait=inner, thread=thread, issued=oldest)]


def generation(view: RankView) -> int:
    """Return how often a rank has destroyed the default group, and so may initialise it again."""
    return sum(group.destroyed and group.name.partition("~")[0] == "0" for group in view.groups)


def group_of(view: RankView, name: str) -> GroupView | None:
    """Return a rank's own frontier in a group, None if it never used that group."""
    for group in reversed(view.groups):
        if group.name == name:
            return group
    return None


def timeout_of(view: RankView, name: str) -> float:
    """Return after how long a group gives an operation up, in seconds; 0: unknown, as for a rendezvous."""
    group = group_of(view, name)
    return 0.0 if group is None else group.timeout_s or view.timeout_s


def find_issued(view: RankView, group: str, seq: int, message: tuple[Op, int] | None = None) -> OpView | None:
    """Return an operation as a rank issued it, from the newest history; `message`: kind and peer of a message."""
    for operation in reversed(view.history):
        made = (operation.op, operation.peer) if operation.op.is_p2p else None
        if operation.group == group and operation.seq == seq and made == message:
            return operation
    found = group_of(view, group)
    if found is not None and found.pending is not None and found.pending.seq == seq and message is None:
        return found.pending
    return _as_entered(view, group, seq) if message is None else None


def _as_entered(view: RankView, group: str, seq: int) -> OpView | None:
    """Return the collective in which a thread waits, of which the record itself cannot be read: damaged, or forgotten.

    What it is stands beside the thread, and its size and type do not.
    """
    last = (found := group_of(view, group)) is None or found.enqueued <= seq  # else it waits at another line
    for thread, wait in ((each, each.wait) for each in view.threads):
        if wait is None or wait.kind is not WaitKind.COLLECTIVE or (wait.group, wait.seq) != (group, seq):
            continue
        if wait.op is Op.UNKNOWN:
            continue
        return OpView(
            group=group, seq=seq, op=wait.op, dtype=UNTOLD, numel=-1, reduce_op=UNTOLD, age_s=wait.age_s,
            site=wait.site if last else None, peer=wait.peer if wait.peer >= 0 else UNTOLD_RANK,
            route=wait.route, thread=thread.tid, number=wait.number, label=wait.label,
        )  # fmt: skip
    return None


def has_entered(standing: RankStanding, operation: Operation) -> bool:
    """Say whether a rank has issued its part of an operation."""
    view = standing.view
    if operation.kind is WaitKind.STORE:
        return view.rank == operation.target  # who has set which key is not recorded
    if operation.kind is WaitKind.LOCK:
        return view.rank == operation.source  # the holder does nothing for it but let go
    if operation.kind is WaitKind.INIT:
        inside = any(thread.wait is not None and thread.wait.kind is WaitKind.INIT for thread in view.threads)
        return (view.initialised or inside) and generation(view) >= operation.seq
    if operation.kind is WaitKind.NEW_GROUP:
        making = [thread.wait for thread in view.threads if thread.wait and thread.wait.kind is WaitKind.NEW_GROUP]
        # `seq` is 0 where all ranks of the job have to come.
        done = 0 < operation.seq <= _made_of(view, operation.members, perhaps=True)
        return done or any(not operation.seq or wait.members in ((), operation.members) for wait in making)
    if operation.kind in (WaitKind.SEND, WaitKind.RECV):
        return has_met(view, operation)
    group = group_of(view, operation.group)
    if group is None:  # a group that nobody recorded, and whose members nobody knows, is no group that it stayed out of
        return operation.unnamed > 0
    return group.enqueued >= operation.seq


def held_back(standing: RankStanding, operation: Operation) -> OpView | None:
    """Return what a member that has issued its part of an operation on a device has to finish first, if anything."""
    if operation.kind in (WaitKind.SEND, WaitKind.RECV):
        view, sent = standing.view, operation.kind is WaitKind.SEND
        receives, peer = (Op.RECV, operation.source) if sent else (Op.SEND, operation.target)
        if view.rank == peer or not has_met(view, operation):
            return None
        return message_held_back_by(view, operation.group, receives, peer, operation.seq)
    if operation.kind is not WaitKind.COLLECTIVE:
        return None
    group = group_of(standing.view, operation.group)
    if group is None or group.enqueued < operation.seq:
        return None
    if not group.asynchronous:
        return _queued_behind(standing, operation)
    return held_back_by(standing.view, group, operation.seq)


def _queued_behind(standing: RankStanding, operation: Operation) -> OpView | None:
    """Return the mismatch behind which a call and all later ones of its group queue, see `in_front_of_queues`."""
    for block in standing.blocks:
        wait = block.thread.wait
        if wait is None or (block.operation.group, wait.group) != (operation.group, operation.group):
            continue
        if block.operation.seq < wait.seq <= operation.seq:
            return block.issued
    return None


def has_met(view: RankView, operation: Operation) -> bool:
    """Say whether a rank has issued its part of a send or a receive."""
    blocked_side = operation.source if operation.kind is WaitKind.SEND else operation.target
    if view.rank == blocked_side:
        return True
    for peer in view.peers:
        if peer.group == operation.group and peer.peer in (blocked_side, -1):
            count = peer.recvs if operation.kind is WaitKind.SEND else peer.sends
            if count >= operation.seq:
                return True
    return False


def op_key(operation: OpView) -> tuple[Op, str, int, int, str]:
    """Return what two ranks' parts of one collective must have in common.

    all_gather is left out with its size: NCCL takes ragged lists.
    """
    numel = 0 if operation.op is Op.ALL_GATHER else operation.numel
    return (operation.op, operation.dtype, numel, operation.peer, operation.reduce_op)


def sides_of(issued: Mapping[int, OpView]) -> tuple[tuple[int, ...], ...]:
    """Return ranks by what they issued as one collective, those together whose parts can be one.

    What a recorder leaves out agrees with anything. Who may belong to several sides is on none.
    """
    by_key: dict[tuple[object, ...], list[int]] = {}
    for rank, operation in issued.items():
        by_key.setdefault(op_key(operation), []).append(rank)
    if len(by_key) < 2 or not any(map(_is_told_partly, issued.values())):
        return tuple(map(tuple, by_key.values()))
    by_likeness = sorted(by_key.values(), key=lambda ranks: _is_told_partly(issued[ranks[0]]))
    sides: list[list[int]] = []
    for ranks in by_likeness:
        alike = [side for side in sides if agree(issued[side[0]], issued[ranks[0]])]
        if not alike:
            sides.append(list(ranks))
        elif len(alike) == 1:
            alike[0] += ranks
    return tuple(sorted(tuple(sorted(side)) for side in sides))


def _is_told_partly(operation: OpView) -> bool:
    untold = UNTOLD in (operation.dtype, operation.reduce_op) or operation.peer == UNTOLD_RANK
    return untold or operation.numel < 0


def agree(one: OpView, other: OpView) -> bool:
    """Say whether two ranks' parts can be one collective, as far as both are told."""
    if one.op is not other.op:
        return False
    sized = one.op is not Op.ALL_GATHER and min(one.numel, other.numel) >= 0
    return not (
        (sized and one.numel != other.numel)
        or (UNTOLD_RANK not in (one.peer, other.peer) and one.peer != other.peer)
        or _differ(one.dtype, other.dtype)
        or _differ(one.reduce_op, other.reduce_op)
    )


def _differ(one: str, other: str) -> bool:
    return one != other and UNTOLD not in (one, other)
