"""Who waits for whom is told as data with each verdict: of every blocked rank, and of nobody else."""

import pytest

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.verdict import Verdict
from ncclwatch_server.judge import judge
from ncclwatch_server.judge.telling.waiters import AWAITED_MAX, ROWS_MAX
from ncclwatch_server.simulation.fleet import Fleet
from ncclwatch_server.simulation.hearing import Hearing
from ncclwatch_server.simulation.job.faults import Fault, FaultKind
from ncclwatch_server.simulation.job.layout import Layout
from ncclwatch_server.simulation.job.program import Training
from ncclwatch_server.simulation.run import run
from tests.scenarios.texts import situation
from tests.unit.server.judge.test_crowded_tables import crowded

LAYOUT = Layout.parse("tp=2,pp=2,dp=4,ep=2")
ONE_STEP = len(run(LAYOUT, Training(), (), steps=1).courses[0].steps)
RANK = 5


def said(kind: FaultKind, place: int = 0) -> Verdict:
    """Return what the judge says of a job in which one rank does this."""
    fault = Fault(kind=kind, rank=RANK, at=ONE_STEP + place)
    hearing = Hearing(fleet=Fleet(run(LAYOUT, Training(), (fault,), steps=3, from_step=1)))
    for seconds in (0.0, 30.0):
        hearing.report(seconds)
        hearing.tick(seconds)
    (verdict,) = judge(hearing.snapshot(30.0))
    return verdict


@pytest.mark.parametrize("kind", [FaultKind.STUCK, FaultKind.STOPPED, FaultKind.KILLED, FaultKind.SKIP, FaultKind.SIZE])
def test_every_victim_is_in_a_row_and_every_way_leads_to_a_culprit(kind: FaultKind):
    verdict = said(kind)
    culprits = {culprit.rank for culprit in verdict.culprits}
    rows = verdict.waiters
    assert set(verdict.victims) <= {rank for row in rows for rank in row.ranks}
    for row in rows:
        assert not (len(row.ranks) == 1 and set(row.ranks) & set(row.awaits))
        assert row.doing
    to = {rank: {other for row in rows if rank in row.ranks for other in row.awaits} for rank in verdict.victims}
    for victim in verdict.victims:
        reached, grown = {victim}, True
        while grown:
            more = {other for rank in reached for other in to.get(rank, ())} - reached
            reached |= more
            grown = bool(more)
        assert reached & culprits, victim


@pytest.mark.parametrize("kind", [FaultKind.STUCK, FaultKind.STOPPED, FaultKind.KILLED])
def test_a_rank_that_is_in_no_operation_waits_for_nobody(kind: FaultKind):
    assert all(RANK not in row.ranks for row in said(kind).waiters)


def test_the_sides_of_a_mismatch_wait_for_each_other():
    verdict = said(FaultKind.SIZE)
    sides = [row for row in verdict.waiters if (row.group, row.seq) == (verdict.group, verdict.seq)]
    mine = next(row for row in sides if RANK in row.ranks)
    other = next(row for row in sides if RANK not in row.ranks)
    assert set(mine.awaits) == set(other.ranks)
    assert RANK in other.awaits


def test_rows_with_a_culprit_come_first_and_all_is_bounded():
    verdict = said(FaultKind.SKIP)
    blamed = [RANK in row.ranks for row in verdict.waiters]
    assert blamed == sorted(blamed, reverse=True)
    assert len(verdict.waiters) <= ROWS_MAX
    assert max(len(row.awaits) for row in verdict.waiters) <= AWAITED_MAX


def test_of_a_big_group_as_many_are_told_as_a_row_may_have():
    late = AWAITED_MAX + 1
    snapshot = situation(f"""
world {late + 1}
group dp 0-{late}
in 0 dp#7 all_reduce train.py:44 for 60
at 1-{late} train.py:50 still 59
""").snapshot()
    (verdict,) = judge(snapshot)
    assert [row.awaits for row in verdict.waiters if row.ranks == (0,)] == [tuple(range(1, late))]


def test_a_rank_two_of_whose_threads_wait_in_one_group_does_not_wait_for_itself():
    ranks = range(3)
    views = {rank: crowded(rank, len(ranks)) for rank in ranks}
    (verdict,) = judge(JobSnapshot(job="j", world_size=len(ranks), ranks=views, stacks={}, silent={}))
    for rank in ranks:
        mine = [row for row in verdict.waiters if row.ranks == (rank,)]
        assert mine
        assert all(row.awaits == tuple(other for other in ranks if other != rank) for row in mine)
