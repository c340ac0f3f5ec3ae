"""Who holds up what all of its members have entered: those that are not through with it."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import GroupView, Op, OpView, PeerView, RankView, ThreadView, WaitKind, WaitView
from ncclwatch_server.judge.theory.waits.rank_standing import standings
from ncclwatch_server.judge.theory.waits.settled import is_settled
from ncclwatch_server.judge.theory.waits.wait_graph import build, victims_of
from tests.unit.server.server_values import view


def waiting(wait: WaitView, group: GroupView, *peers: PeerView) -> RankView:
    """Return rank 0 in a wait."""
    return replace(view(0), threads=(ThreadView(tid=1, main=True, issued=4, wait=wait),), groups=(group,), peers=peers)


def held_up_by_the_other(*ranks: RankView) -> bool:
    """Say whether rank 0 counts as one that waits for rank 1."""
    views = {each.rank: each for each in ranks}
    found = standings(JobSnapshot(job="job", world_size=2, ranks=views, stacks={}, silent={}))
    return victims_of(build(found, ()), {1}) == (0,)


def group(enqueued: int, completed: int) -> GroupView:
    return GroupView(name="dp", desc="", ranks=(0, 1), enqueued=enqueued, completed=completed, prefix_hash=0)


@pytest.mark.parametrize(("completed", "held_up"), [(1, True), (2, False)])
@pytest.mark.parametrize("kind", [WaitKind.SEND, WaitKind.RECV])
def test_a_peer_that_is_through_with_a_message_does_not_hold_it_up(kind: WaitKind, completed: int, held_up: bool):
    receives = kind is WaitKind.RECV
    wait = WaitView(kind=kind, age_s=9.0, group="dp", seq=2, op=Op.RECV if receives else Op.SEND, peer=1)
    one = waiting(wait, group(0, 0), PeerView(group="dp", peer=1, **{"recvs" if receives else "sends": 2}))
    met = {"sends": 2, "sends_completed": completed} if receives else {"recvs": 2, "recvs_completed": completed}
    other = replace(view(1), groups=(group(0, 0),), peers=(PeerView(group="dp", peer=0, **met),))
    assert held_up_by_the_other(one, other) is held_up


@pytest.mark.parametrize(("completed", "held_up"), [(3, True), (4, False)])
def test_a_member_that_is_through_with_a_collective_does_not_hold_it_up(completed: int, held_up: bool):
    wait = WaitView(kind=WaitKind.COLLECTIVE, age_s=9.0, group="dp", seq=4, op=Op.ALL_REDUCE)
    assert held_up_by_the_other(waiting(wait, group(4, 3)), replace(view(1), groups=(group(4, completed),))) is held_up


def op(seq: int, made: Op = Op.ALL_REDUCE, name: str = "dp") -> OpView:
    return OpView(group=name, seq=seq, op=made, age_s=9.0, numel=4)


@pytest.mark.parametrize(
    ("later", "settled"),
    [
        ((), True),
        ((op(5),), True),
        ((op(5, Op.BARRIER),), False),  # they made different calls since, so perhaps before as well
        ((op(5, Op.BARRIER, "other"),), True),
        ((op(3, Op.BARRIER),), True),
    ],
)
def test_what_one_has_completed_tells_that_all_have_come_while_their_calls_agree(
    later: tuple[OpView, ...], settled: bool
):
    wait = WaitView(kind=WaitKind.COLLECTIVE, age_s=9.0, group="dp", seq=4, op=Op.ALL_REDUCE)
    one = replace(waiting(wait, group(5, 3)), history=(op(3), op(4), op(5), op(5, Op.BARRIER, "other")))
    other = replace(view(1), groups=(group(5, 4),), history=later)
    found = standings(JobSnapshot(job="job", world_size=2, ranks={0: one, 1: other}, stacks={}, silent={}))
    (block,) = found[0].blocks
    assert is_settled(found, block) is settled


def test_a_file_that_is_older_than_those_of_others_may_lack_that_its_rank_is_through():
    wait = WaitView(kind=WaitKind.COLLECTIVE, age_s=9.0, group="dp", seq=4, op=Op.ALL_REDUCE)
    other = replace(view(1), groups=(group(4, 4),))
    for untold in (False, True):
        one = waiting(wait, replace(group(4, 3), untold=untold))
        found = standings(JobSnapshot(job="job", world_size=2, ranks={0: one, 1: other}, stacks={}, silent={}))
        (block,) = found[0].blocks
        assert is_settled(found, block) is not untold
