"""What pages show of ranks, groups and batches: pure functions of the tables that digests fill."""

import asyncio
import struct
import zlib

import numpy as np
import pytest

from ncclwatch.contract import digests, wire
from ncclwatch.contract.groups import group_key
from ncclwatch.contract.ring.members import digest_of
from ncclwatch_server.evidence.rank_labels import GroupName
from ncclwatch_server.incidents.book import JobKey
from ncclwatch_server.jobs.group_progress import frontier
from ncclwatch_server.jobs.rank_states import RankState, states_of
from ncclwatch_server.jobs.read_model import sight_of
from ncclwatch_server.simulation.fleet import Fleet
from ncclwatch_server.simulation.hearing import Hearing
from ncclwatch_server.simulation.job.faults import Fault, FaultKind
from ncclwatch_server.simulation.job.layout import Layout
from ncclwatch_server.simulation.job.program import Training
from ncclwatch_server.simulation.run import cruising, run
from ncclwatch_server.state.job_state import JobState
from ncclwatch_server.ui.batches import BUCKETS_MAX, loop_tables
from ncclwatch_server.ui.board import PAINTED_MAX, Strip, to_paint
from ncclwatch_server.ui.matrix import COLUMNS_MAX, HEAD, MAGIC, Matrix, encoded
from ncclwatch_server.ui.panel import panel_of
from ncclwatch_server.ui.step_rate import StepRate

LAYOUT = Layout.parse("tp=2,pp=2,dp=4,ep=2")


def hearing(fault: Fault, hang_s: float) -> Hearing:
    """Return a job that hangs for so long, as the server knows it."""
    found = Hearing(fleet=Fleet(run(LAYOUT, Training(), (fault,), steps=3, from_step=1)))
    for seconds in (0.0, hang_s):
        found.report(seconds)
        found.tick(seconds)
    return found


@pytest.fixture(scope="module")
def one_step() -> int:
    return len(run(LAYOUT, Training(), (), steps=1).courses[0].steps)


def test_a_rank_that_never_came_is_absent_and_one_that_is_blamed_stands_out(one_step: int):
    job = hearing(Fault(kind=FaultKind.STUCK, rank=5, at=one_step), 5.0).job
    states = states_of(job.state.picture(5.0), blamed=(5, 999, -1))
    assert states[5] == RankState.BLAMED
    assert set(states[[0, 1, 2]]) == {RankState.WAITING}
    empty = states_of(JobState(3).picture(0.0))
    assert empty.tolist() == [RankState.ABSENT] * 3


def told(wait_s: float = 0.0, ended: int = 0, detached: int = 0) -> JobState:
    """Return a job of two ranks, of which one digest told at 0 s."""
    state = JobState(2)
    state.announce(1, (0, 1), 0.0)
    rows = [(rank, 0, ended, 1, detached, 0.1, wait_s, 5, 5, 5, *digests.NO_WAIT, *digests.NO_FACTS) for rank in (0, 1)]
    _, ranks, groups = digests.split_digest(digests.pack_digest(0, rows, []))
    state.receive_digest(1, ranks, groups, 0.0)
    state.fold(0.0)
    return state


@pytest.mark.parametrize(
    ("wait_s", "now", "state"),
    [
        (0.0, 1.5, RankState.MOVING),
        (0.0, 1.7, RankState.WORKING),
        (1.0, 1.7, RankState.WORKING),
        (1.01, 1.5, RankState.WAITING),
        (10.0, 1.7, RankState.WAITING),
        (10.01, 1.7, RankState.LONG_WAITING),
    ],
)
def test_the_longer_a_rank_waits_the_worse_its_state(wait_s: float, now: float, state: RankState):
    assert set(states_of(told(wait_s).picture(now)).tolist()) == {state}


def test_a_stopped_rank_and_one_that_is_gone_are_told_apart(one_step: int):
    stopped = hearing(Fault(kind=FaultKind.STOPPED, rank=5, at=one_step), 20.0).job
    assert states_of(stopped.state.picture(20.0))[5] == RankState.FROZEN
    killed = hearing(Fault(kind=FaultKind.KILLED, rank=5, at=one_step), 20.0).job
    assert states_of(killed.state.picture(20.0))[5] == RankState.LOST


def test_a_rank_that_is_not_watched_any_more_is_shown_so_until_it_ends():
    assert set(states_of(told(wait_s=99.0, detached=1).picture(0.0)).tolist()) == {RankState.DETACHED}
    assert set(states_of(told(detached=1).picture(9.0), silent=(0, 1)).tolist()) == {RankState.DETACHED}
    assert set(states_of(told(ended=1, detached=1).picture(5.0)).tolist()) == {RankState.ENDED}


def test_a_job_of_which_a_rank_is_not_watched_says_so(one_step: int):
    job = hearing(Fault(kind=FaultKind.STUCK, rank=5, at=one_step), 20.0).job
    sight = sight_of(job, (), 20.0)
    states = states_of(sight.picture)
    states[7] = RankState.DETACHED
    said = panel_of(sight, states, StepRate()).sentence
    assert said.startswith("rank 7 is not watched any more, and a wait for it is not judged: detach() was called there")


def test_a_job_in_which_all_have_ended_has_lost_nobody():
    assert set(states_of(told(ended=1).picture(5.0)).tolist()) == {RankState.ENDED}


def test_ranks_of_a_silent_node_are_silent_however_they_were(one_step: int):
    job = hearing(Fault(kind=FaultKind.STUCK, rank=5, at=one_step), 5.0).job
    assert states_of(job.state.picture(5.0), silent=(3,))[3] == RankState.SILENT
    job.state.lose(0, 5.0)
    job.state.fold(5.0)
    assert states_of(job.state.picture(5.0))[3] == RankState.SILENT


def test_a_job_that_waits_is_not_called_well_before_its_verdict(one_step: int):
    job = hearing(Fault(kind=FaultKind.STUCK, rank=5, at=one_step), 20.0).job
    waits = sight_of(job, (), 20.0)
    said = panel_of(waits, states_of(waits.picture), StepRate()).sentence
    assert "15 of 16 ranks have waited for others for over 10 s, without a verdict yet" in said
    healthy = sight_of(Hearing(fleet=Fleet(cruising(LAYOUT, Training(), steps=2, at_step=1))).job, (), 0.0)
    assert (
        "no rank is waited for longer than usual" in panel_of(healthy, states_of(healthy.picture), StepRate()).sentence
    )


def test_the_frontier_names_who_is_behind_and_shows_those_groups_first(one_step: int):
    job = hearing(Fault(kind=FaultKind.STUCK, rank=5, at=one_step), 20.0).job
    found = frontier(job.state.picture(20.0), {group_key("3", digest_of((4, 5))): GroupName(name="3", desc="tp")}, 4)
    assert found.total == sum(len(members) for members in LAYOUT.members.values())
    assert len(found.groups) == 4
    first = next(group for group in found.groups if group.name)
    assert (first.name, first.size, first.behind, first.behind_count) == ("tp (3)", 2, (5,), 1)
    assert first.issued - first.issued_least == 1
    assert first.oldest_s >= 20.0
    assert [group.behind_count > 0 for group in found.groups] == sorted(
        (group.behind_count > 0 for group in found.groups), reverse=True
    )


def test_the_frontier_is_what_a_naive_count_says(one_step: int):
    job = hearing(Fault(kind=FaultKind.SKIP, rank=5, at=one_step), 20.0).job
    rows = job.state.picture(20.0).groups
    naive: dict[int, list[int]] = {}
    for row in rows:
        naive.setdefault(int(row["group"]), []).append(int(row["enqueued"]))
    found = frontier(job.state.picture(20.0), {}, 1000)
    assert {int(group.key, 16): (group.issued, group.issued_least, group.size) for group in found.groups} == {
        key: (max(counts), min(counts), len(counts)) for key, counts in naive.items()
    }
    assert found.apart == sum(len(set(counts)) > 1 for counts in naive.values())


def test_a_job_without_groups_has_an_empty_frontier():
    assert frontier(JobState(2).picture(0.0), {}, 5).groups == ()


def test_a_matrix_comes_back_as_it_went_in_and_forgets_the_oldest():
    matrix, rng = Matrix(100), np.random.default_rng(1)
    columns = [rng.integers(0, 10, 100, dtype=np.uint8) for _ in range(COLUMNS_MAX + 3)]
    for number, column in enumerate(columns):
        assert matrix.add(column, 1000.0 + number) == number
    first, kept = matrix.columns()
    data = encoded(100, first, kept)
    assert HEAD.unpack_from(data) == (MAGIC, 100, COLUMNS_MAX, 3)
    times = struct.unpack_from(f"<{COLUMNS_MAX}d", data, HEAD.size)
    assert (times[0], times[-1]) == (1003.0, 1000.0 + COLUMNS_MAX + 2)
    body = np.frombuffer(data, np.uint8, offset=HEAD.size + 8 * COLUMNS_MAX).reshape(COLUMNS_MAX, 100)
    assert (body == np.stack(columns[3:])).all()


def test_a_matrix_keeps_ten_minutes_also_of_a_job_that_is_painted_now_and_then():
    matrix = Matrix(2)
    for second in range(0, 1220, 20):
        matrix.add(np.zeros(2, np.uint8), float(second))
    first, kept = matrix.columns()
    assert (first, kept[0].at, kept[-1].at) == (30, 600.0, 1200.0)


def test_few_jobs_are_all_painted_every_second():
    strips = {JobKey(name=str(n), instance="i", attempt=0): Strip(matrix=Matrix(2)) for n in range(PAINTED_MAX)}
    assert to_paint(strips, ()) == list(strips)


def test_of_many_jobs_those_that_are_looked_at_or_hang_are_painted_every_second_and_the_others_in_turn():
    keys = [JobKey(name=str(n), instance="i", attempt=0) for n in range(2 * PAINTED_MAX + 2)]
    strips = {key: Strip(matrix=Matrix(2)) for key in keys}
    strips[keys[5]].viewers.add(asyncio.Queue())
    first = to_paint(strips, {keys[7]})
    for key in first:
        strips[key].painted_at = 1.0
    second = to_paint(strips, {keys[7]})
    assert len(first) == len(second) == PAINTED_MAX + 2
    assert set(first) & set(second) == {keys[5], keys[7]}
    assert set(first) | set(second) == set(keys)


def test_ten_minutes_of_a_healthy_big_job_take_little_memory():
    matrix = Matrix(16_384)
    for second in range(COLUMNS_MAX):
        states = np.full(16_384, RankState.MOVING, np.uint8)
        states[second * 8 : second * 8 + 8] = RankState.WORKING
        matrix.add(states, float(second))
    assert sum(len(column.packed) for column in matrix.columns()[1]) < 200_000
    assert len(zlib.decompress(matrix.columns()[1][0].packed)) == 16_384


def test_steps_a_second_are_those_of_the_last_minute_and_begin_again_with_the_job():
    step_rate = StepRate()
    assert step_rate.per_s == 0.0
    for second in range(100):
        step_rate.note(second * 2, float(second))
    assert step_rate.per_s == pytest.approx(2.0)
    step_rate.note(0, 100.0)
    assert step_rate.per_s == 0.0


def loop(rank: int, drawn: int, **changes: object) -> wire.Loop:
    given = {"loader": "t.py:1", "number": 1, "length": 9, "ended": False, "even": False, "buckets": (("a", drawn),)}
    return wire.Loop(rank=rank, drawn=drawn, **(given | changes))


def test_ranks_with_equal_batches_are_one_row_and_the_fewest_come_first():
    (table,) = loop_tables([loop(0, 8), loop(1, 7, ended=True), loop(2, 8)])
    assert [(row.ranks, row.drawn, row.ended) for row in table.rows] == [((1,), 7, True), ((0, 2), 8, False)]
    many = tuple((f"b{n:02}", n) for n in range(BUCKETS_MAX + 5))
    (table,) = loop_tables([loop(0, 8, buckets=many)])
    assert (len(table.buckets), table.more_buckets) == (BUCKETS_MAX, 5)
    assert table.buckets[0] == f"b{BUCKETS_MAX + 4:02}"
