"""How do the members of a big group travel? As runs: the default group of 98,304 ranks is three numbers.

Nearly all groups that programs make are a few arithmetic progressions, and every view of a rank names the members of
all of its groups.
"""

import functools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ncclwatch.contract.errors import WireError
from ncclwatch.contract.model import GroupView, RankView

Run = tuple[int, int, int]  # (first rank, step, how many)
Runs = tuple[Run, ...]

SMALL = 32  # members of a group that travel as they are
MEMBERS_MAX = 4_000_000  # that the runs of one message may stand for, each group counted once


@functools.lru_cache(maxsize=256)
def runs_of(ranks: tuple[int, ...]) -> Runs:
    """Return ranks, in their order, as arithmetic progressions."""
    return tuple(_runs(ranks))


def _runs(ranks: tuple[int, ...]) -> Iterator[Run]:
    at = 0
    while at < len(ranks):
        step = ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 1
        end = at + 1
        while end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        yield ranks[at], step, end - at
        at = end


def packed(view: RankView) -> RankView:
    """Return a view as it travels."""
    if all(len(group.ranks) <= SMALL for group in view.groups):
        return view
    return replace(view, groups=tuple(_packed_group(group) for group in view.groups))


def _packed_group(group: GroupView) -> GroupView:
    if len(group.ranks) <= SMALL:
        return group
    runs = runs_of(group.ranks)
    return replace(group, ranks=(), runs=runs) if 3 * len(runs) < len(group.ranks) else group


def unpacked(views: Iterable[RankView]) -> tuple[RankView, ...]:
    """Return views as they were before they were packed. Raises `WireError` if they stand for too many members.

    The members of one group are one tuple in all views, however many of its ranks these are of.
    """
    left = MEMBERS_MAX
    known: dict[Runs, tuple[int, ...]] = {}
    found = []
    for view in views:
        for group in view.groups:
            if group.runs and group.runs not in known:
                left -= sum(max(0, count) for _, _, count in group.runs)
                if left < 0:
                    raise WireError(f"the groups of one message have more than {MEMBERS_MAX} members")
                known[group.runs] = _ranks_of(group.runs)
        if any(group.runs for group in view.groups):
            groups = (replace(g, ranks=known[g.runs], runs=()) if g.runs else g for g in view.groups)
            view = replace(view, groups=tuple(groups))
        found.append(view)
    return tuple(found)


@functools.lru_cache(maxsize=256)
def _ranks_of(runs: Runs) -> tuple[int, ...]:
    return tuple(first + step * number for first, step, count in runs for number in range(count))
