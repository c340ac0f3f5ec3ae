"""Turns the recorded histories of all ranks into tapes: calls as numbers, in the order of their issue.

Equal calls of any ranks have one number, so tapes are compared and replayed as tuples of integers.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from ncclwatch.contract.model.rank import CallSite, Op, OpView, RankView, WaitView
from ncclwatch_server.judge.theory.pulse import is_lost
from ncclwatch_server.judge.theory.waits.rank_standing import RankStanding, Standing

Ranks = tuple[int, ...]
Channel = tuple[str, int, int]  # group, and for p2p (source, target); of collectives (-1, -1)


class End(Enum):
    """What a rank does after its last recorded call."""

    BLOCKED = "blocked"  # it waits in one of its calls; what it does after that is unknown
    STANDS = "stands"  # it is in no call
    ELSEWHERE = "elsewhere"  # it waits in something that is no call: a rendezvous, a key of the store, a lock
    GONE = "gone"  # its process ended by itself, and well, or it has destroyed all of its groups
    FAILED = "failed"  # its process was ended by an exception or a signal
    FREE = "free"  # only after an edit: it may do anything next


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One operation with its arguments, whoever issues it."""

    group: str
    op: Op
    peer: int = -1  # global rank: root, or the other side; -1 of a receive: any source
    tag: int = 0
    numel: int = 0
    dtype: str = ""
    reduce_op: str = ""
    site: CallSite | None = None
    way: tuple[CallSite, ...] = ()  # who called the function of `site`, innermost first
    waits: bool = True  # what its thread issues later begins after it is through

    def channel(self, rank: int) -> Channel:
        """Return where this call is counted when `rank` issues it."""
        if self.op is Op.SEND:
            return self.group, rank, self.peer
        if self.op is Op.RECV:
            return self.group, self.peer, rank
        return self.group, -1, -1


class Drawn(NamedTuple):
    """How far a rank has come in a loop over a loader."""

    site: CallSite
    passes: int
    batches: int  # in the newest pass
    ended: bool  # the pass ended because there were no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Tape:
    """The recorded calls of one rank, oldest first."""

    rank: int
    calls: tuple[int, ...]  # numbers of calls, see `Tapes.calls`
    seqs: tuple[int, ...]  # of each call in its channel, as recorded; >= 1
    end: End
    stop: int  # index of the first call that is not through though the rank waits for it; len(calls): none
    through: int = -1  # a device may be anywhere from here to `stop`: of what is between nobody tells; -1: at `stop`
    batches: tuple[
        int, ...
    ] = ()  # of each call: batches that its rank had drawn in this pass of its loader; (): unknown
    drawn: tuple[Drawn, ...] = ()
    lost: Mapping[Channel, int] = field(default_factory=dict)  # calls of channels that are not on the tape any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Tapes:
    """The recorded calls of a job."""

    calls: Sequence[Call]
    groups: Mapping[str, Ranks]  # members in the order of the group
    by_rank: Mapping[int, Tape]
    unseen: frozenset[int] = field(default_factory=frozenset)  # members of groups without any news
    on_device: frozenset[str] = field(default_factory=frozenset)  # groups whose operations run in the order of a stream

    def named(self, tape: Tape) -> list[Call]:
        """Return a tape as calls."""
        return [self.calls[number] for number in tape.calls]


class Writer:
    """Gives numbers to calls while tapes are written. Not thread-safe; one for each job."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._numbers: dict[Call, int] = {}
        self._views: dict[tuple[object, ...], int] = {}

    def number(self, call: Call) -> int:
        """Return the number of a call."""
        found = self._numbers.get(call)
        if found is None:
            found = self._numbers[call] = len(self.calls)
            self.calls.append(call)
        return found

    def number_of(self, op: OpView, view: RankView) -> int:
        """Return the number of a recorded operation of a rank."""
        way = view.routes[op.route - 1] if 0 < op.route <= len(view.routes) else ()
        site = op.site
        place = (site.file, site.line, site.function) if site is not None else None
        key = (op.group, op.op, op.peer, op.numel, op.dtype, op.reduce_op, place, way, op.in_order)
        found = self._views.get(key)
        if found is None:
            call = Call(
                group=op.group, op=op.op, peer=op.peer, numel=op.numel, dtype=op.dtype, reduce_op=op.reduce_op,
                site=op.site, way=way, waits=op.in_order,
            )  # fmt: skip
            found = self._views[key] = self.number(call)
        return found


def read(found: Mapping[int, RankStanding], unseen: Iterable[int] = ()) -> Tapes:
    """Return the tapes of all ranks that were seen. `unseen` are ranks that nobody has news of."""
    writer = Writer()
    groups: dict[str, Ranks] = {}
    on_device = set()
    tapes = {}
    for rank, standing in found.items():
        for group in standing.view.groups:
            if not group.unnamed:
                groups.setdefault(group.name, group.ranks)
            if group.asynchronous:
                on_device.add(group.name)
        tapes[rank] = _tape(rank, standing, writer)
    used = {call.group for call in writer.calls}
    missing = {rank for name, members in groups.items() if name in used for rank in members} - tapes.keys()
    return Tapes(
        calls=tuple(writer.calls), groups=groups, by_rank=tapes, unseen=frozenset({*missing, *unseen}),
        on_device=frozenset(on_device),
    )  # fmt: skip


def _tape(rank: int, standing: RankStanding, writer: Writer) -> Tape:
    view = standing.view
    history = view.history
    on_device = {group.name for group in view.groups if group.asynchronous}
    if any(op.group in on_device for op in history):
        through, stop = _reached_by_device(standing, history, on_device)
    else:
        stop = through = _stop_of(standing, history)
    return Tape(
        rank=rank,
        calls=tuple(writer.number_of(op, view) for op in history),
        seqs=_seqs(view),
        end=_end_of(standing),
        stop=stop,
        through=through,
        batches=tuple(op.batch for op in history),
        drawn=tuple(Drawn(each.site, each.passes, each.drawn, each.exhausted) for each in view.loaders),
        lost=_lost(standing.view),
    )


def _reached_by_device(standing: RankStanding, history: Sequence[OpView], on_device: Set[str]) -> tuple[int, int]:
    """Return up to where a device is through for certain, and the first call that it is not through with.

    Nobody tells of anything in a group that is blind, and of messages on a device not always.
    """
    untold = {group.name for group in standing.view.groups if group.blind}
    messages = {peer.group for peer in standing.view.peers if peer.told}
    waits = {_key(block.operation.group, block.operation.seq, block.wait) for block in standing.blocks}
    through = max((at + 1 for at, op in enumerate(history) if op.completed and op.in_order), default=0)
    if is_lost(standing.view):  # what it last said of itself is older than what its peers say
        return through, len(history)
    unfinished = [
        at
        for at in range(through, len(history))
        if not (op := history[at]).completed
        and op.group not in untold
        and not (op.op.is_p2p and op.group in on_device - messages)
    ]  # fmt: skip
    in_order = (at for at in unfinished if history[at].in_order)
    awaited = (at for at in unfinished if _key(history[at].group, history[at].seq, history[at]) in waits)
    return through, next(in_order, next(awaited, len(history)))


def _key(group: str, seq: int, made: OpView | WaitView) -> tuple[str, int, Op | None, int]:
    """Return what tells an operation from the others of its rank."""
    return (group, seq, made.op, made.peer) if made.op.is_p2p else (group, seq, None, -1)


def _lost(view: RankView) -> Mapping[Channel, int]:
    """Return how many calls a rank issued in channels of which its ring holds none any more."""
    held = {(op.group, op.peer if op.op.is_p2p else -1, op.op if op.op.is_p2p else None) for op in view.history}
    found: dict[Channel, int] = {}
    for group in view.groups:
        if group.enqueued and (group.name, -1, None) not in held:
            found[group.name, -1, -1] = group.enqueued
    for peer in view.peers:
        if peer.sends and (peer.group, peer.peer, Op.SEND) not in held:
            found[peer.group, view.rank, peer.peer] = peer.sends
        if peer.recvs and (peer.group, peer.peer, Op.RECV) not in held:
            found[peer.group, peer.peer, view.rank] = peer.recvs
    return found


def _seqs(view: RankView) -> tuple[int, ...]:
    """Return the number of each call in its channel. Recorders count messages in several ways; how many is the same."""
    left: dict[tuple[str, int, Op], int] = {}
    for peer in view.peers:
        left[peer.group, peer.peer, Op.SEND] = peer.sends
        left[peer.group, peer.peer, Op.RECV] = peer.recvs
    found = []
    for op in reversed(view.history):
        key = op.group, op.peer, op.op
        number = left.get(key, 0) if op.op.is_p2p else 0
        if number:
            left[key] = number - 1
        found.append(number or op.seq)
    return tuple(reversed(found))


def _since(tape: Tape, start: int) -> Tape:
    return replace(
        tape, calls=tape.calls[start:], seqs=tape.seqs[start:], stop=max(tape.stop - start, 0),
        through=max(tape.through - start, -1), batches=tape.batches[start:], lost={},
    )  # fmt: skip


def without_start(tapes: Tapes, start: Mapping[int, int]) -> Tapes:
    """Return tapes without what comes before an index of each."""
    if not any(start.values()):
        return tapes
    cut = {rank: _since(tape, start[rank]) for rank, tape in tapes.by_rank.items()}
    return replace(tapes, by_rank=cut)


def _end_of(standing: RankStanding) -> End:
    if standing.standing is Standing.GONE:
        ending = standing.view.ending
        well = ending is not None and ending.kind == "exited" and not ending.exit_code
        return End.GONE if well else End.FAILED
    if standing.standing is not Standing.BLOCKED:
        groups = standing.view.groups
        return End.GONE if groups and all(group.destroyed for group in groups) else End.STANDS
    return End.BLOCKED if any(block.issued is not None for block in standing.blocks) else End.ELSEWHERE


def _stop_of(standing: RankStanding, history: Sequence[OpView]) -> int:
    """Return the index of the call that a rank is blocked in.

    A rank that waits late, for something it issued with async_op=True, stops there as if it had waited at once: what
    it issued in between is met by its peers all the same, for that does not depend on who waits.
    """
    if standing.standing is not Standing.BLOCKED:
        return len(history)
    waits = {(b.operation.group, b.operation.seq, b.wait.op.is_p2p) for b in standing.blocks if b.issued is not None}
    for index, op in enumerate(history):
        if not op.completed and (op.in_order or (op.group, op.seq, op.op.is_p2p) in waits):
            return index
    return len(history)


def write(
    groups: Mapping[str, Ranks],
    calls: Mapping[int, Sequence[Call]],
    ends: Mapping[int, End],
    stops: Mapping[int, int] | None = None,
    on_device: Iterable[str] = (),
) -> Tapes:
    """Return the tapes of whole histories. A rank that is BLOCKED stops at its last call where `stops` says nothing."""
    writer = Writer()
    tapes = {}
    for rank, made in calls.items():
        counts: dict[object, int] = {}
        seqs = []
        for call in made:
            channel = call.channel(rank)
            counts[channel] = counts.get(channel, 0) + 1
            seqs.append(counts[channel])
        end = ends.get(rank, End.BLOCKED)
        usual = len(made) - 1 if end is End.BLOCKED else len(made)
        tapes[rank] = Tape(
            rank=rank, calls=tuple(map(writer.number, made)), seqs=tuple(seqs), end=end,
            stop=(stops or {}).get(rank, usual),
        )  # fmt: skip
    return Tapes(calls=tuple(writer.calls), groups=groups, by_rank=tapes, on_device=frozenset(on_device))
