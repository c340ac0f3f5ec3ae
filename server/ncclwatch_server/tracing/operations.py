"""Makes slices of the operations that ranks have recorded. Pure.

A ring tells when an operation was issued, not when it was over. A rank that blocks in a collective stays until the
last member has come, and is out before its thread issues its next operation: the slice ends at the earlier of both.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ncclwatch.contract.model.rank import GroupView, Op, OpView, RankView
from ncclwatch_server.tracing.clocks import Passage, align
from ncclwatch_server.tracing.model import Clock, Facts, Slice, Track

FLOW_MEMBERS_MAX = 16  # of a bigger collective the first and the last member to come are linked
# Some members may leave these before all have come: of an all_to_all those that get nothing from who is late.
_LEFT_EARLY = frozenset({Op.BROADCAST, Op.REDUCE, Op.GATHER, Op.SCATTER, Op.ALL_TO_ALL, Op.UNKNOWN})

Key = tuple[str, tuple[int, ...] | int, int]  # group's name, its members or their digest, number of the operation


@dataclass(slots=True, kw_only=True)
class _Made:
    """One operation of one rank, by the clock of its host."""

    rank: int
    clock: str
    op: OpView
    group: GroupView | None
    at_s: float
    next_s: float | None  # when its thread issued its next one; None: it has not
    waits: bool  # its thread is in it
    now_s: float  # when its rank was seen

    @property
    def key(self) -> Key:
        """What all members of a collective have in common."""
        members = (self.group.ranks or self.group.members_digest) if self.group is not None else ()
        return self.op.group, members, self.op.seq

    @property
    def blocks(self) -> bool:
        """Whether its host stays in it until all members have come."""
        asynchronous = self.group is not None and self.group.asynchronous
        return self.op.in_order and not asynchronous and not self.op.op.is_p2p and self.op.op not in _LEFT_EARLY


@dataclass(slots=True, kw_only=True)
class Operations:
    """The operations of all ranks on one clock."""

    clocks: dict[str, Clock]
    by_rank: dict[int, list[Track]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """When a view was taken, in seconds of the clock with this name: that of a host, of a message, of a file."""

    at_s: float
    clock: str


def operations(views: Iterable[RankView], seen: Mapping[int, Seen]) -> Operations:
    """Return the tracks of operations, all on the clock of the lowest rank. `seen`: of each rank."""
    made = [each for view in views for each in _made(view, seen[view.rank])]
    together: dict[Key, list[_Made]] = {}
    for each in made:
        if not each.op.op.is_p2p:
            together.setdefault(each.key, []).append(each)
    names = tuple(dict.fromkeys(each.clock for each in sorted(made, key=lambda each: each.rank)))
    clocks = align(names, (_passages(members) for members in together.values() if all(m.blocks for m in members)))
    for each in made:
        offset_s = clocks[each.clock].offset_s
        each.at_s += offset_s
        each.now_s += offset_s
        each.next_s = each.next_s + offset_s if each.next_s is not None else None
    found = Operations(clocks=clocks)
    by_thread: dict[tuple[int, int], list[_Made]] = {}
    for each in made:
        by_thread.setdefault((each.rank, each.op.thread), []).append(each)
    for (rank, _), mine in by_thread.items():
        slices = tuple(_slice(each, together.get(each.key, [each])) for each in mine)
        tracks = found.by_rank.setdefault(rank, [])
        name = f"operations, thread {len(tracks) + 1}" if tracks else "operations"
        tracks.append(Track(name=name, slices=slices))
    return found


def _passages(members: Iterable[_Made]) -> tuple[Passage, ...]:
    """Return who entered a collective when. Whoever gave up, or is in it still, has not left it as the others do."""
    return tuple(
        Passage(clock=each.clock, entered_s=each.at_s, left_s=each.next_s if each.op.completed else None)
        for each in members
    )


def _made(view: RankView, seen: Seen) -> Iterator[_Made]:
    groups = {group.name: group for group in view.groups}
    waits = {(t.wait.group, t.wait.seq, t.wait.op) for t in view.threads if t.wait is not None}
    newest: dict[int, float] = {}
    found = []
    for op in reversed(view.history):
        at_s = seen.at_s - op.age_s
        found.append(
            _Made(
                rank=view.rank, clock=seen.clock, op=op, group=groups.get(op.group), at_s=at_s,
                next_s=newest.get(op.thread), waits=(op.group, op.seq, op.op) in waits, now_s=seen.at_s,
            )
        )  # fmt: skip
        newest[op.thread] = at_s
    yield from reversed(found)


def _slice(each: _Made, members: list[_Made]) -> Slice:
    op = each.op
    last = max(members, key=lambda member: member.at_s)
    every = each.group is not None and len(members) >= max(each.group.size, len(each.group.ranks)) > 0
    ends = [moment for moment in (each.next_s, last.at_s if every and not op.op.is_p2p else None) if moment is not None]
    stuck = each.waits and not op.completed and each.next_s is None
    end_s = each.now_s if stuck else max(each.at_s, min(ends, default=each.at_s))
    kind = "hang" if stuck else "p2p" if op.op.is_p2p else "collective"
    return Slice(
        begin_s=each.at_s,
        end_s=end_s,
        name=f"{op.op.value} #{op.seq}" if op.seq else op.op.value,
        kind=kind,
        facts=tuple(_facts(each, members, last, every=every)),
        flow=_flow(each, members),
    )


def _facts(each: _Made, members: list[_Made], last: _Made, *, every: bool) -> Iterator[tuple[str, str]]:
    op = each.op
    yield "group", op.group
    if op.label:
        yield "for", op.label
    if op.site is not None:
        yield "line", str(op.site)
    if op.numel > 0:
        yield "elements", f"{op.numel} x {op.dtype}" if op.dtype else str(op.numel)
    if op.peer >= 0:
        yield "peer or root", f"rank {op.peer}"
    if len(members) > 1 and not op.op.is_p2p:
        late_s = last.at_s - min(member.at_s for member in members)
        yield ("last to come" if every else "last to come, of those known"), f"rank {last.rank}, {late_s:.6f} s after"
    if not every and not op.op.is_p2p and each.group is not None:
        yield "members known", f"{len(members)} of {max(each.group.size, len(each.group.ranks))}"


def _flow(each: _Made, members: list[_Made]) -> int:
    """Return the number that links members of a collective; 0 where this one is not linked."""
    if each.op.op.is_p2p or len(members) < 2:
        return 0
    if len(members) > FLOW_MEMBERS_MAX:
        ordered = sorted(members, key=lambda member: member.at_s)
        if each not in (ordered[0], ordered[-1]):
            return 0
    digest = hashlib.blake2b(repr(each.key).encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1


def batches(view: RankView, now_s: float) -> Track | None:
    """Return the batches of a rank until `now_s`, each from its first operation to that of the next one."""
    found: list[Slice] = []
    for op in view.history:
        begin_s = now_s - op.age_s
        name = f"batch {op.batch}"
        if not op.batch or (found and found[-1].name == name):
            continue
        if found:
            found[-1] = replace(found[-1], end_s=begin_s)
        facts: Facts = ()
        if 0 < op.loader <= len(view.loaders):
            facts = (("loader", str(view.loaders[op.loader - 1].site)),)
        found.append(Slice(begin_s=begin_s, end_s=now_s, name=name, kind="batch", facts=facts))
    return Track(name="batches", slices=tuple(found)) if found else None
