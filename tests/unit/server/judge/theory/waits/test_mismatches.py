"""Whom a mismatch in a rooted collective holds up: the bytes of the others may be on their way for a moment."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import GroupView, Op, OpView, RankView, ThreadView, WaitKind, WaitView
from ncclwatch_server.judge.theory.waits.mismatches import SETTLED_S, held_by, mismatch
from ncclwatch_server.judge.theory.waits.rank_standing import Operation, standings
from tests.unit.server.server_values import view

OPERATION = Operation(group="dp", seq=4, members=(0, 1, 2))


def inside(
    rank: int, op: Op, *, numel: int, for_s: float, root: int = 0, told: bool = True, **changes: float
) -> RankView:
    """Return a rank that waits in the fourth collective; `told`: its history tells when it came."""
    group = GroupView(name="dp", desc="", ranks=OPERATION.members, enqueued=4, completed=3, prefix_hash=0)
    issued = OpView(group="dp", seq=4, op=op, numel=numel, peer=root, age_s=for_s if told else 0.0)
    wait = WaitView(kind=WaitKind.COLLECTIVE, age_s=for_s, group="dp", seq=4, op=op, peer=root)
    thread = ThreadView(tid=1, main=True, issued=4, wait=wait)
    return replace(view(rank), groups=(group,), history=(issued,), threads=(thread,), **changes)  # type: ignore


def held(*ranks: RankView) -> frozenset[int]:
    """Return the members that their mismatch holds up."""
    views = {each.rank: each for each in ranks}
    found = standings(JobSnapshot(job="job", world_size=3, ranks=views, stacks={}, silent={}))
    unlike = mismatch(OPERATION, found)
    assert unlike is not None
    return held_by(found, unlike)


def entered(op: Op, for_s: float, **changes: float) -> tuple[RankView, ...]:
    return tuple(inside(rank, op, numel=8 if rank < 2 else 9, for_s=for_s, **changes) for rank in OPERATION.members)


@pytest.mark.parametrize(("op", "at_once"), [(Op.REDUCE, {0}), (Op.BROADCAST, {2})])
def test_a_root_is_held_up_at_once_by_what_it_gets_and_others_by_what_they_get(op: Op, at_once: set[int]):
    assert held(*entered(op, SETTLED_S - 0.1)) == at_once
    assert held(*entered(op, SETTLED_S)) == {0, 1, 2}


def test_a_wait_tells_when_a_member_came_where_its_history_does_not():
    assert held(*entered(Op.BROADCAST, SETTLED_S, told=False)) == {0, 1, 2}


def test_only_what_was_seen_since_the_last_member_came_counts():
    """Views that came long ago tell of that moment: each member may have gone on since."""
    assert held(*entered(Op.BROADCAST, 1.0, news_age_s=60.0)) == {2}


def test_a_root_that_has_gone_on_at_a_moment_which_is_not_told_keeps_nothing_open():
    root, *others = entered(Op.BROADCAST, SETTLED_S, told=False)
    gone_on = replace(root, threads=(), groups=tuple(replace(each, completed=4) for each in root.groups))
    assert held(gone_on, *others) == {0, 1, 2}
