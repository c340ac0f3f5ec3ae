"""What hangs of a period have cost: each second of a job once, and nothing that nobody knows."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclwatch.contract.model.verdict import Cause, Severity
from ncclwatch_server.incidents.book import Incident, IncidentState
from ncclwatch_server.incidents.losses import Fate, Loss, loss_of, summed
from tests.unit.server.server_values import KEY, VERDICT

HUNG = Incident(
    id="i", key=KEY, job="job", world_size=4, state=IncidentState.ENDED, verdict=VERDICT, onset_to_open_s=2.0,
    opened_at=102.0, closed_at=110.0, gpus=3, timeout_s=600.0,
)  # fmt: skip
LOSS = Loss(
    job="job", cause=Cause.PROCESS_FROZEN, fate=Fate.ENDED, onset_at=100.0, closed_at=110.0, over_at=110.0, ranks=4,
    gpus=2, timeout_s=600.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "fate", "over_at"),
    [
        pytest.param({}, Fate.ENDED, 110.0, id="ended"),
        pytest.param({"state": IncidentState.OPEN, "closed_at": None}, Fate.OPEN, None, id="open"),
        pytest.param({"state": IncidentState.RESOLVED}, Fate.WENT_ON, 110.0, id="by itself"),
        pytest.param({"recovered_after_s": 25.0}, Fate.RECOVERED, 125.0, id="started again"),
        pytest.param({"recovered_after_s": 25.0, "came_back_as": "b"}, Fate.CAME_BACK, 125.0, id="in vain"),
        pytest.param({"came_back_as": "b"}, Fate.CAME_BACK, 110.0, id="in vain, at once"),
        pytest.param({"end_seen": False}, Fate.ENDED, None, id="nobody saw the end"),
    ],
)
def test_what_counts_of_a_hang_is_what_became_of_it_and_until_when(
    changes: dict, fate: Fate, over_at: float | None
) -> None:
    loss = loss_of(replace(HUNG, **changes))
    assert loss is not None
    assert (loss.fate, loss.onset_at, loss.over_at) == (fate, 100.0, over_at)
    assert (loss.ranks, loss.gpus, loss.timeout_s) == (4, 3, 600.0)


def test_a_warning_costs_nothing() -> None:
    assert loss_of(replace(HUNG, verdict=replace(VERDICT, severity=Severity.WARNING))) is None


def test_a_hang_that_began_before_the_recovery_was_noticed_is_another_one() -> None:
    again = replace(LOSS, onset_at=124.0, closed_at=134.0, over_at=134.0)
    total = summed((replace(LOSS, fate=Fate.CAME_BACK, over_at=125.0), again), 0.0, 1000.0).total
    assert (total.lost_s, total.saved_s) == (34.0, 2 * 590.0)
    beside = replace(LOSS, onset_at=109.0)  # before the first was over: they stood at one time
    assert summed((LOSS, beside), 0.0, 1000.0).total.saved_s == 590.0


def test_time_is_summed_up_by_cause_with_the_costliest_first() -> None:
    other = replace(LOSS, job="big", cause=Cause.NODE_LOST, fate=Fate.RECOVERED, over_at=160.0, ranks=16, gpus=16)
    again = replace(LOSS, onset_at=200.0, closed_at=230.0, over_at=230.0, fate=Fate.CAME_BACK)
    report = summed((LOSS, other, again), 0.0, 1000.0)
    assert (report.since, report.until) == ("1970-01-01T00:00:00+00:00", "1970-01-01T00:16:40+00:00")
    assert [each.cause for each in report.causes] == [Cause.NODE_LOST, Cause.PROCESS_FROZEN]
    total, (lost, frozen) = report.total, (each.losses for each in report.causes)
    assert (total.hangs, total.jobs, frozen.hangs, frozen.jobs, lost.jobs) == (3, 2, 2, 1, 1)
    assert (total.ended, total.recovered, total.came_back, total.open, total.went_on) == (1, 1, 1, 0, 0)
    assert (frozen.lost_s, frozen.rank_s, frozen.gpu_s) == (40.0, 160.0, 80.0)
    assert (lost.lost_s, lost.rank_s, lost.gpu_s) == (60.0, 960.0, 960.0)
    assert (total.lost_s, total.rank_s, total.gpu_s) == (100.0, 1120.0, 1040.0)
    assert (total.saved_s, lost.saved_s) == (590.0 + 570.0 + 590.0, 590.0)


def test_of_two_hangs_of_a_job_at_one_time_the_time_counts_once() -> None:
    inside = replace(LOSS, cause=Cause.TRANSPORT, onset_at=104.0)
    longer = replace(LOSS, cause=Cause.HOST_STALL, onset_at=106.0, closed_at=115.0, over_at=115.0)
    report = summed((longer, inside, LOSS), 0.0, 1000.0)
    assert {each.cause: each.losses.lost_s for each in report.causes} == {
        Cause.PROCESS_FROZEN: 10.0, Cause.TRANSPORT: 0.0, Cause.HOST_STALL: 5.0
    }  # fmt: skip
    assert (report.total.hangs, report.total.lost_s, report.total.saved_s) == (3, 15.0, 590.0)
    elsewhere = summed((LOSS, replace(inside, job="other")), 0.0, 1000.0).total
    assert (elsewhere.lost_s, elsewhere.jobs) == (16.0, 2)


@pytest.mark.parametrize(
    ("changes", "saved_s", "unknown"),
    [
        pytest.param({}, 590.0, 0, id="ended before its timeout"),
        pytest.param({"closed_at": 800.0, "over_at": 800.0}, 0.0, 0, id="ended after it"),
        pytest.param({"timeout_s": 0.0}, 0.0, 1, id="the timeout is unknown"),
        pytest.param({"fate": Fate.WENT_ON}, 0.0, 0, id="went on by itself"),
        pytest.param({"fate": Fate.OPEN, "closed_at": None, "over_at": None}, 0.0, 0, id="still hangs"),
        pytest.param({"cause": Cause.RANK_CRASHED}, 0.0, 0, id="its launcher saw it"),
        pytest.param({"cause": Cause.RANK_CRASHED, "timeout_s": 0.0}, 0.0, 0, id="and has no timeout"),
        pytest.param({"over_at": None}, 0.0, 0, id="nobody saw the end"),
    ],
)
def test_time_is_saved_where_a_hang_was_ended_before_the_timeout_of_its_group(
    changes: dict, saved_s: float, unknown: int
) -> None:
    total = summed((replace(LOSS, **changes),), 0.0, 1000.0).total
    assert (total.saved_s, total.timeout_unknown) == (saved_s, unknown)


def test_what_is_open_counts_until_now_and_what_nobody_knows_not_at_all() -> None:
    open_ = replace(LOSS, fate=Fate.OPEN, closed_at=None, over_at=None)
    assert summed((open_,), 0.0, 160.0).total.lost_s == 60.0
    total = summed((replace(LOSS, over_at=None), replace(LOSS, onset_at=105.0)), 0.0, 160.0).total
    assert (total.hangs, total.end_unknown, total.lost_s) == (2, 1, 5.0)


SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.sampled_from("ab")), max_size=12)


@given(SPANS)
def test_the_time_of_a_job_is_that_for_which_any_of_its_hangs_stood(spans: list[tuple[int, int, str]]) -> None:
    losses = [replace(LOSS, job=job, onset_at=at, closed_at=at + s, over_at=at + s) for at, s, job in spans]
    seconds = {(job, second) for at, s, job in spans for second in range(at, at + s)}
    assert summed(losses, 0.0, 100.0).total.lost_s == len(seconds)
