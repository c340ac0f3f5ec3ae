"""Tells ranks that run one program from those that run another one, or another part of it.

A learner and those that play for it meet in their calls, each at lines of its own. What is written once for one of them
is done by all of its ranks: how many there are says nothing of who is wrong.
"""

from collections.abc import Collection, Mapping

from ncclwatch.contract.model.rank import CallSite, RankView

MEETINGS_MIN = 3  # operations that both made, before lines of their own are a way of working


def run_apart(views: Mapping[int, RankView], some: Collection[int], others: Collection[int]) -> bool:
    """Say whether two sets of ranks have met in several operations, and never made a call at one line."""
    one, two = ([views[rank] for rank in ranks if rank in views] for ranks in (some, others))
    if not one or not two or not _sites(one).isdisjoint(_sites(two)):
        return False
    mine, theirs = _made(one[0]), _made(two[0])
    return len(mine & theirs) >= MEETINGS_MIN


def share_a_group(views: Mapping[int, RankView], some: Collection[int], others: Collection[int]) -> bool:
    """Say whether ranks have made calls in a group that has none of the others: what only they have to do.

    Those who evaluate, or who hold the embedding, may be most of the job.
    """
    view = next(views[rank] for rank in some)
    used = {op.group for op in view.history}
    return any(
        group.name in used and set(some) <= set(group.ranks) and set(others).isdisjoint(group.ranks)
        for group in view.groups
    )


def _sites(views: Collection[RankView]) -> set[CallSite]:
    return {op.site for view in views for op in view.history if op.site is not None}.union(
        *(view.sites for view in views)
    )


def _made(view: RankView) -> set[tuple[str, int]]:
    """Return what a rank is through with, of the collectives whose lines are known."""
    return {(op.group, op.seq) for op in view.history if op.completed and not op.op.is_p2p and op.site is not None}
