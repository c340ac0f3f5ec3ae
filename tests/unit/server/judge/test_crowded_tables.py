"""What the judge does for the tables of one rank does not grow with those of all others."""

import sys
from dataclasses import replace
from types import FrameType

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import GroupView, Op, RankView, ThreadView, WaitKind, WaitView
from ncclwatch_server.judge import judge
from ncclwatch_server.judge.theory.waits.rank_standing import group_of
from tests.unit.server.server_values import view

THREADS = 16


def crowded(rank: int, ranks: int) -> RankView:
    waits = (
        WaitView(kind=WaitKind.COLLECTIVE, age_s=900.0, group="g0", seq=number + 2, op=Op.ALL_REDUCE)
        for number in range(THREADS)
    )
    threads = (ThreadView(tid=n + 1, main=n == 0, issued=1, wait=wait) for n, wait in enumerate(waits))
    group = GroupView(name="g0", desc="", ranks=tuple(range(ranks)), enqueued=1, completed=1, prefix_hash=1)
    return replace(view(rank), world_size=ranks, threads=tuple(threads), groups=(group,))


def looks(ranks: int) -> int:
    """Return how often the judge looks for a group in the table of a rank, for each of so many ranks."""
    found = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal found
        found += event == "call" and frame.f_code is group_of.__code__

    views = {rank: crowded(rank, ranks) for rank in range(ranks)}
    snapshot = JobSnapshot(job="j", world_size=ranks, ranks=views, stacks={}, silent={})
    sys.setprofile(count)
    try:
        judge(snapshot)
    finally:
        sys.setprofile(None)
    return found // ranks


def test_a_group_is_looked_for_as_often_for_each_rank_of_many_as_for_each_of_few() -> None:
    assert 0 < looks(24) <= 1.2 * looks(6)
