"""Finds ranks that have issued different operations though nothing hangs: wrong results today, and a hang to come.

Two ranks that have issued equally much in a group, with different hashes over what they issued, have differed at some
operation: a proof that needs no history. Where the history still holds it, the operation is named.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ncclwatch.contract.model.rank import GroupView, OpView, RankView
from ncclwatch_server.judge.theory.histories.programs import run_apart
from ncclwatch_server.judge.theory.majority import majority
from ncclwatch_server.judge.theory.waits.rank_standing import op_key


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfStep:
    """A group whose members have issued different operations."""

    group: str
    sides: tuple[tuple[int, ...], ...]  # ranks by their histories, the largest side first
    ranks: tuple[int, ...]  # who differs; all where there is no majority
    decided: bool
    usual: OpView | None = None  # the first operation that both remember and that differs, as the largest side made it
    odd: OpView | None = None

    @property
    def others(self) -> tuple[int, ...]:
        """All but the largest side."""
        return tuple(sorted(rank for ranks in self.sides[1:] for rank in ranks))


def comparable(view: RankView) -> Iterator[GroupView]:
    """Yield the groups of a rank whose hash is over all that it issued in what other ranks know by that name.

    A living rank that has destroyed a group may be about to make another one of that name.
    """
    if view.dropped:
        return
    names = Counter(group.name for group in view.groups)
    for group in view.groups:
        anew = group.destroyed and (view.ending is None or names[group.name] > 1)
        if group.enqueued and not (group.late or anew):
            yield group


def find_out_of_step(views: Mapping[int, RankView]) -> OutOfStep | None:
    """Return the first group whose members have issued different operations."""
    issued: dict[str, list[tuple[int, GroupView]]] = {}
    for rank, view in sorted(views.items()):
        for group in comparable(view):
            issued.setdefault(group.name, []).append((rank, group))
    for name in sorted(issued):
        sides = _sides(issued[name])
        if sides:
            usual, *others = sides
            odd = tuple(sorted(rank for ranks in others for rank in ranks))
            decided = majority(sides) is not None and not run_apart(views, usual, odd)
            theirs, mine = _first_difference(views[usual[0]], views[odd[0]], name)
            guilty = odd if decided else tuple(sorted((*usual, *odd)))
            return OutOfStep(group=name, sides=sides, ranks=guilty, decided=decided, usual=theirs, odd=mine)
    return None


def _sides(issued: Iterable[tuple[int, GroupView]]) -> tuple[tuple[int, ...], ...]:
    """Return ranks that have issued equally much, by their histories, the largest set first; () if nothing differs."""
    by_count: dict[int, dict[int, list[int]]] = {}
    for rank, group in issued:
        by_count.setdefault(group.enqueued, {}).setdefault(group.prefix_hash, []).append(rank)
    for hashes in by_count.values():
        if len(hashes) > 1:
            return tuple(sorted((tuple(ranks) for ranks in hashes.values()), key=lambda ranks: (-len(ranks), ranks)))
    return ()


def _first_difference(usual: RankView, odd: RankView, name: str) -> tuple[OpView, OpView] | tuple[None, None]:
    """Return the first operation that both remember and that differs, None if they remember none."""
    theirs = {op.seq: op for op in usual.history if op.group == name and not op.op.is_p2p}
    for mine in odd.history:
        other = theirs.get(mine.seq) if mine.group == name and not mine.op.is_p2p else None
        if other is not None and op_key(mine) != op_key(other):
            return other, mine
    return None, None
