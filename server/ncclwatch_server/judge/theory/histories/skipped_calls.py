"""Finds ranks that skipped or added calls long before the hang, by laying the histories of ranks beside each other.

Equal operations pair silently, whatever lines they come from. A rank that skipped one is, from then on, at every
number where the others will be at the next one: its list of (operation, line) is theirs, shifted. Ranks that take
different branches by design ("if rank == 0: broadcast(...) else: broadcast(...)") have lists that differ too, but no
shift makes them agree. Where all collectives go through one helper its callers tell them apart; callers that differ
between ranks by design may hide a shift, so lines alone are tried too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ncclwatch.contract.model.rank import CallSite, OpView, RankView
from ncclwatch_server.judge.theory.histories.call_sites import route_of
from ncclwatch_server.judge.theory.histories.habits import departure
from ncclwatch_server.judge.theory.majority import majority
from ncclwatch_server.judge.theory.waits.rank_standing import op_key

SHIFT_MAX = 32  # calls skipped or added at one place
Key = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """Ranks whose calls have not met the others' same calls since one operation."""

    ranks: tuple[int, ...]
    group: str
    seq: int  # the first operation at which they differed
    skipped: int  # calls they skipped; negative: made more
    op: OpView  # the first call that was skipped, or made more
    route: tuple[CallSite, ...]  # the lines that led to it, innermost first; () if unknown
    caller: CallSite | None  # who called its function, where several do
    decided: bool  # whether a majority says who shifted, rather than a choice between two

    @property
    def count(self) -> int:
        """How many calls."""
        return abs(self.skipped)

    def seen_from(self, ranks: tuple[int, ...]) -> "Shift":
        """Return the same as the doing of the other side: what one skipped, the other made more."""
        return self if set(ranks) & set(self.ranks) else replace(self, ranks=ranks, skipped=-self.skipped)


def find_shift(views: Mapping[int, RankView], group: str, members: Iterable[int]) -> Shift | None:
    """Return which ranks skipped or added calls in a group, None if they did not or nobody can tell."""
    histories = {
        rank: {op.seq: op for op in views[rank].history if op.group == group and not op.op.is_p2p}
        for rank in members
        if rank in views
    }
    histories = {rank: ops for rank, ops in histories.items() if ops}
    if len(histories) < 2:
        return None
    # Where no callers are known, routes say no more than lines.
    for routed in (True, False) if any(views[rank].routes for rank in histories) else (False,):
        found = _find(
            {
                rank: {seq: _key(op, route_of(views[rank], op) if routed else ()) for seq, op in h.items()}
                for rank, h in histories.items()
            }
        )
        if found is not None:
            ranks, seq, skipped, maker, decided = found
            op = histories[maker][seq]
            route = route_of(views[maker], op)
            several = sum(way[0] == op.site for way in views[maker].routes) > 1
            return Shift(
                ranks=ranks,
                group=group,
                seq=seq,
                skipped=skipped,
                op=op,
                route=route,
                caller=route[1] if several and len(route) > 1 else None,
                decided=decided,
            )
    return None


def who_shifted(views: Mapping[int, RankView], members: Iterable[int], shift: Shift) -> Shift | None:
    """Return a shift as the doing of those who departed from their habit, None if nobody can tell who did.

    They may have done so in another group: who leaves out the first call of a loop is then at the second one.
    """
    if shift.decided:
        return shift
    others = tuple(rank for rank in members if rank in views and rank not in shift.ranks)
    departed = [ranks for ranks in (shift.ranks, others) if ranks and departure(views[ranks[0]]) is not None]
    return shift.seen_from(departed[0]) if len(departed) == 1 else None


def _find(histories: Mapping[int, Mapping[int, Key]]) -> tuple[tuple[int, ...], int, int, int, bool] | None:
    """Return (ranks, first number that differs, calls they skipped, a rank that made the call, majority or not)."""
    first = max(min(ops) for ops in histories.values())
    classes = _classes(histories, first)
    if len(classes) < 2:
        return None
    (usual, *others) = sorted(classes, key=lambda ranks: (-len(ranks), ranks))
    decided = majority(classes) is not None
    if len(others) > 1 and not decided:
        return None
    for odd in others:
        found = _shift_between(_since(histories[usual[0]], first), _since(histories[odd[0]], first))
        if found is not None:
            seq, skipped = found
            return odd, seq, skipped, usual[0] if skipped > 0 else odd[0], decided
    return None


def _classes(histories: Mapping[int, Mapping[int, Key]], first: int) -> list[tuple[int, ...]]:
    """Return the ranks whose lists agree as far as both go, as sets."""
    by_list: dict[tuple[Key, ...], list[int]] = {}
    last = min(max(ops) for ops in histories.values())
    for rank, ops in sorted(histories.items()):
        by_list.setdefault(tuple(ops[n] for n in range(first, last + 1) if n in ops), []).append(rank)
    return [tuple(ranks) for ranks in by_list.values()]


def _key(op: OpView, route: tuple[CallSite, ...]) -> Key:
    return (op.op, op.site, route, *op_key(op))


def _without_lines(key: Key) -> Key:
    return (key[0], *key[3:])


def _since(keys: Mapping[int, Key], first: int) -> dict[int, Key]:
    return {seq: key for seq, key in keys.items() if seq >= first}


def _shift_between(usual: Mapping[int, Key], odd: Mapping[int, Key]) -> tuple[int, int] | None:
    """Return (first number that differs, calls skipped by `odd`; negative if added)."""
    last = min(max(usual), max(odd))
    differing = [n for n in usual if n in odd and not _pairs_by_design(usual, odd, n)]
    if not differing:
        return None
    start = min(differing)
    if start == min(usual):
        return None  # out of step for as long as anybody remembers: a way of working, or too long ago
    for count in range(1, min(SHIFT_MAX, max(*usual, *odd) - start) + 1):
        for skipped in (count, -count):
            if _explains(usual, odd, range(start, last + 1), skipped):
                return start, skipped
    return None


def _pairs_by_design(usual: Mapping[int, Key], odd: Mapping[int, Key], number: int) -> bool:
    """Say whether two calls are the same, or the two branches of one: each line is used on one side only."""
    mine, theirs = odd[number], usual[number]
    if mine == theirs or (None in (mine[1], theirs[1]) and _without_lines(mine) == _without_lines(theirs)):
        return True  # a line that nobody knows is not another line
    return mine not in usual.values() and theirs not in odd.values() and mine[0] is theirs[0]


def _explains(usual: Mapping[int, Key], odd: Mapping[int, Key], numbers: Sequence[int], skipped: int) -> bool:
    """Say whether from here on each call of `odd` is the one that `usual` makes that many numbers later."""
    if skipped > 0:
        pairs = [(odd.get(n), usual.get(n + skipped)) for n in numbers]
    else:
        pairs = [(odd.get(n - skipped), usual.get(n)) for n in numbers]
    known = [(mine, theirs) for mine, theirs in pairs if mine is not None and theirs is not None]
    return bool(known) and all(mine == theirs for mine, theirs in known)
