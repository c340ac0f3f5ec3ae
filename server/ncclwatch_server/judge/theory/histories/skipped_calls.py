"""Finds ranks that skipped or added calls long before the hang, by laying the histories of ranks beside each other.

Equal operations pair silently, whatever lines they come from. A rank that skipped one is, from then on, at every
number where the others will be at the next one: its list of (operation, line) is theirs, shifted. Ranks that take
different branches by design ("if rank == 0: broadcast(...) else: broadcast(...)") have lists that differ too, but no
shift makes them agree. Where all collectives go through one helper its callers tell them apart, and where one line runs
all units of FSDP, their names. Both may differ between ranks by design and hide a shift, so lines alone are tried too.

Who leaves a layer out leaves out its calls in the forward and in the backward: its list is the others' without some
calls, not all in one place. In a loop a list that lacks three of twelve calls is also one with nine more. The fewer are
told.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ncclwatch.contract.model.rank import CallSite, OpView, RankView
from ncclwatch_server.judge.theory.histories.habits import departure
from ncclwatch_server.judge.theory.histories.lines.call_sites import route_of
from ncclwatch_server.judge.theory.majority import majority
from ncclwatch_server.judge.theory.waits.rank_standing import op_key

SHIFT_MAX = 32  # calls skipped or added at one place
FEW = 3  # of which one call that agrees afterwards is enough
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """By which calls the list of some ranks is that of the others."""

    ranks: tuple[int, ...]
    seq: int  # the first that differs
    skipped: int  # as in `Shift`
    usual: int  # one of the others
    decided: bool

    @property
    def count(self) -> int:
        """How many calls."""
        return abs(self.skipped)


def find_shift(views: Mapping[int, RankView], group: str, members: Iterable[int]) -> Shift | None:
    """Return which ranks skipped or added calls in a group, None if they did not or nobody can tell."""
    seen = [rank for rank in members if rank in views]
    histories = {
        rank: {op.seq: op for op in views[rank].history if op.group == group and not op.op.is_p2p} for rank in seen
    }
    histories = {rank: ops for rank, ops in histories.items() if ops}
    if len(histories) < 2:
        return None
    # Where no callers are known, routes say no more than lines.
    routes = (True, False) if any(views[rank].routes for rank in histories) else (False,)
    named = any(op.label for ops in histories.values() for op in ops.values())
    found: list[_Found] = []
    for routed in routes:
        plain = _keys(views, histories, routed=routed, labelled=False)
        found += _find(plain, len(seen))
        if named:
            names = _keys(views, histories, routed=routed, labelled=True)
            # Ranks may well use what has different names in another order: names alone accuse nobody.
            found += [replace(each, decided=each.decided and _differ(plain)) for each in _find(names, len(seen))]
    if not found:
        return None
    best = min(found, key=lambda each: abs(each.skipped))
    seq = best.seq
    if named:  # of calls that are alike otherwise, their names tell which of them was the first
        names = _keys(views, histories, routed=False, labelled=True)
        seq = _first_by_name(names[best.usual], names[best.ranks[0]], best)
    maker = best.usual if best.skipped > 0 else best.ranks[0]
    op = histories[maker][seq]
    route = route_of(views[maker], op)
    several = sum(way[0] == op.site for way in views[maker].routes) > 1
    return Shift(
        ranks=best.ranks,
        group=group,
        seq=seq,
        skipped=best.skipped,
        op=op,
        route=route,
        caller=route[1] if several and len(route) > 1 else None,
        decided=best.decided,
    )


def who_shifted(views: Mapping[int, RankView], members: Iterable[int], shift: Shift) -> Shift | None:
    """Return a shift as the doing of those who departed from their habit, None if nobody can tell who did.

    They may have done so in another group: who leaves out the first call of a loop is then at the second one.
    """
    if shift.decided:
        return shift
    others = tuple(rank for rank in members if rank in views and rank not in shift.ranks)
    if not others:
        return None
    left = [ranks for ranks in (shift.ranks, others) if _have_departed(views, ranks)]
    return shift.seen_from(left[0]) if len(left) == 1 else None


def _have_departed(views: Mapping[int, RankView], ranks: tuple[int, ...]) -> bool:
    return departure(views[ranks[0]], [view for rank, view in views.items() if rank not in ranks]) is not None


def _keys(
    views: Mapping[int, RankView], histories: Mapping[int, Mapping[int, OpView]], *, routed: bool, labelled: bool
) -> dict[int, dict[int, Key]]:
    """Return by what calls are compared: with their callers or without, with the names of what they are for or not."""
    return {
        rank: {
            seq: _key(op, route_of(views[rank], op) if routed else (), op.label if labelled else "")
            for seq, op in ops.items()
        }
        for rank, ops in histories.items()
    }


def _differ(histories: Mapping[int, Mapping[int, Key]]) -> bool:
    """Say whether the lists of ranks differ as far as all go."""
    return len(_classes(histories, max(min(ops) for ops in histories.values()))) > 1


def _first_by_name(usual: Mapping[int, Key], odd: Mapping[int, Key], found: _Found) -> int:
    """Return the first number at which two lists differ by name, if that is shortly before they do otherwise.

    Names that have always differed do so by design.
    """
    both = sorted(usual.keys() & odd.keys())
    first = next((n for n in both if usual[n] != odd[n]), found.seq)
    return first if both[0] < first and found.seq - found.count <= first < found.seq else found.seq


def _find(histories: Mapping[int, Mapping[int, Key]], seen: int) -> list[_Found]:
    """Return by which calls the list of some ranks is that of the others, nothing if it is not.

    Of `seen` members some may have forgotten their calls: with them the majority may be another one.
    """
    first = max(min(ops) for ops in histories.values())
    classes = _classes(histories, first)
    if len(classes) < 2:
        return []
    (usual, *others) = sorted(classes, key=lambda ranks: (-len(ranks), ranks))
    decided = majority(classes) is not None and 2 * len(usual) > seen
    if len(others) > 1 and not decided:
        return []
    for odd in others:
        found = _shift_between(_since(histories[usual[0]], first), _since(histories[odd[0]], first))
        if found is not None:
            seq, skipped = found
            return [_Found(ranks=odd, seq=seq, skipped=skipped, usual=usual[0], decided=decided)]
    return []


def _classes(histories: Mapping[int, Mapping[int, Key]], first: int) -> list[tuple[int, ...]]:
    """Return the ranks whose lists agree as far as both go, as sets."""
    by_list: dict[tuple[Key, ...], list[int]] = {}
    last = min(max(ops) for ops in histories.values())
    for rank, ops in sorted(histories.items()):
        by_list.setdefault(tuple(ops[n] for n in range(first, last + 1) if n in ops), []).append(rank)
    return [tuple(ranks) for ranks in by_list.values()]


def _key(op: OpView, route: tuple[CallSite, ...], label: str) -> Key:
    return (op.op, op.site, route, label, *op_key(op))


def _without_lines(key: Key) -> Key:
    return (key[0], *key[4:])


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
    scattered = _fewest(_left_out(usual, odd, start), _left_out(odd, usual, start))
    most = abs(scattered) - 1 if scattered else min(SHIFT_MAX, max(*usual, *odd) - start)
    counts = (skipped for count in range(1, most + 1) for skipped in (count, -count))
    found = next((each for each in counts if _explains(usual, odd, range(start, last + 1), each)), scattered)
    # Who agrees at the same numbers again after no more calls has made them in another order, or others in their place.
    parted = max(differing) + 1 - start
    return (start, found) if found and not parted <= abs(found) < last - max(differing) else None


def _fewest(skipped: int, added: int) -> int:
    """Return how many calls were skipped, negative if added: the fewer, 0 if there is neither or nobody can tell."""
    if skipped == added or not (skipped and added):
        return 0 if skipped == added else skipped or -added
    return skipped if skipped < added else -added


def _left_out(longer: Mapping[int, Key], shorter: Mapping[int, Key], start: int) -> int:
    """Return how many calls of one list the other one lacks, in whatever places; 0 if more is different.

    More calls have to agree after the last that is lacking than are lacking.
    """
    lacking = agreeing = 0
    number = start
    while number in shorter and number + lacking in longer:
        if shorter[number] != longer[number + lacking]:
            lacking, agreeing = lacking + 1, 0
            if lacking > SHIFT_MAX:
                return 0
            continue
        agreeing += 1
        number += 1
    return lacking if agreeing > lacking else 0


def _pairs_by_design(usual: Mapping[int, Key], odd: Mapping[int, Key], number: int) -> bool:
    """Say whether two calls are the same, or the two branches of one: each line is used on one side only."""
    mine, theirs = odd[number], usual[number]
    if mine == theirs or (None in (mine[1], theirs[1]) and _without_lines(mine) == _without_lines(theirs)):
        return True  # a line that nobody knows is not another line
    return mine not in usual.values() and theirs not in odd.values() and mine[0] is theirs[0]


def _explains(usual: Mapping[int, Key], odd: Mapping[int, Key], numbers: Sequence[int], skipped: int) -> bool:
    """Say whether from here on each call of `odd` is the one that `usual` makes that many numbers later.

    Of more than a few calls half as many have to be known to agree: some agree by chance a long way apart.
    """
    if skipped > 0:
        pairs = [(odd.get(n), usual.get(n + skipped)) for n in numbers]
    else:
        pairs = [(odd.get(n - skipped), usual.get(n)) for n in numbers]
    known = [(mine, theirs) for mine, theirs in pairs if mine is not None and theirs is not None]
    enough = len(known) >= (1 if abs(skipped) <= FEW else abs(skipped) / 2)
    return enough and all(mine == theirs for mine, theirs in known)
