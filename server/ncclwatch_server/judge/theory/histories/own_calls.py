"""Finds a call that some ranks are in, and that those who have left its group never made.

Ranks that have ended well, or have taken a group down, look like the ones that went too early. Where those who still
wait stand in a call of their own, it is that call which is too much: a save on rank 0 as the last step of a program.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ncclwatch.contract.model.rank import OpView, RankView, SourceNote
from ncclwatch_server.judge.theory.histories.exceptions import have_caught_apart
from ncclwatch_server.judge.theory.histories.habits import made_before, never_called_there
from ncclwatch_server.judge.theory.histories.lines.call_sites import is_way_out, parting_condition, route_of
from ncclwatch_server.judge.theory.histories.programs import run_apart
from ncclwatch_server.judge.theory.majority import majority
from ncclwatch_server.judge.theory.waits.rank_standing import group_of


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCall:
    """A call that only these ranks make."""

    ranks: tuple[int, ...]
    op: OpView  # of the first of them
    condition: SourceNote | None  # a test of the rank round it; None: a majority of the group is without it


def own_call(views: Mapping[int, RankView], left: tuple[int, ...], others: Sequence[int]) -> OwnCall | None:
    """Return the call that `others` wait in, if they make it alone: it is new to them, and to `left` unknown.

    That is decided by a test of the rank round the call, or by a majority of the group that has left without it. Where
    they run different programs, neither tells.
    """
    stuck = unfinished(views, left, others)
    if not stuck or len({(op.group, op.seq, op.op, op.site) for op in stuck.values()}) != 1:
        return None
    first = min(stuck)
    op, view = stuck[first], views[first]
    group = group_of(view, op.group)
    if group is None or not group.ranks or made_before(view, op):
        return None
    route = route_of(view, op)
    if not set(group.ranks) <= {*left, *stuck} or not all(never_called_there(views[r], op, route) for r in left):
        return None
    condition = parting_condition(view, op, op.site, route)
    gone = tuple(rank for rank in left if rank in group.ranks)
    most = majority((gone, tuple(stuck))) is gone and not have_caught_apart(views, gone, stuck)
    # `if rank == 2: return` above a call of most ranks: those who took it left too early.
    decided = most or (condition is not None and not is_way_out(condition))
    if not decided or run_apart(views, gone, tuple(stuck)):
        return None
    return OwnCall(ranks=tuple(sorted(stuck)), op=op, condition=condition)


def unfinished(views: Mapping[int, RankView], left: Sequence[int], others: Sequence[int]) -> dict[int, OpView]:
    """Return the first collective of each of some ranks to which some of those who left have not come.

    One that a backend gave up, because a peer was lost, counts as over in its ring.
    """
    come: dict[str, dict[int, int]] = {}  # by group: how far those who left have come in it
    for rank in left:
        for group in reversed(views[rank].groups):
            come.setdefault(group.name, {}).setdefault(rank, group.enqueued)
    fewest = {name: min(counts.values()) for name, counts in come.items()}
    stuck = {}
    for rank in others:
        behind = {
            group.name: fewest[group.name]
            for group in views[rank].groups
            if group.name in come and not come[group.name].keys().isdisjoint(group.ranks)
        }
        ops = (op for op in views[rank].history if op.group in behind and not op.op.is_p2p)
        first = next((op for op in ops if op.seq > behind[op.group]), None)
        if first is not None:
            stuck[rank] = first
    return stuck
