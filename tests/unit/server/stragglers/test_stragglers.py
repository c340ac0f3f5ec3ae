"""From digests to findings: windows, blame, kinds, and the life of an incident about a slow rank."""

import numpy as np
import pytest

from ncclwatch.contract.model.slowness import SlowKind
from ncclwatch.contract.model.verdict import Severity
from ncclwatch.contract.wire import Loop
from ncclwatch_server.state.digest_rows import RANK_DTYPE
from ncclwatch_server.stragglers.pipeline_stages import MORE_MIN, WINDOWS_MIN, Stages
from ncclwatch_server.stragglers.reasons.batches import Mixture, mixture
from ncclwatch_server.stragglers.reasons.kinds import SPENT, kind_of
from ncclwatch_server.stragglers.scores import Bounds, lateness
from ncclwatch_server.stragglers.tracker import GONE_AFTER, Stragglers
from ncclwatch_server.stragglers.windows import Rows, Window, Windows
from ncclwatch_server.stragglers.words import verdict_of
from tests.unit.server.stragglers.fleet import NOWHERE, WORLD, Fleet, S, slow


def window(blocked: list[float], home: list[int] | None = None) -> Window:
    count = len(blocked)
    return Window(
        rank=np.arange(count), home=np.array(home or [1] * count, np.uint64), blocked=np.array(blocked),
        span_s=np.full(count, 2.0), operations=np.full(count, 8),
    )  # fmt: skip


def rows_of(*cuts: tuple[int, int, int, int]) -> tuple[Rows, np.ndarray]:
    """Rows of ranks by (group, boundary, ms, blocked ms)."""
    rows = np.zeros(len(cuts), RANK_DTYPE)
    for row, (group, seq, ms, blocked_ms) in zip(rows, cuts, strict=True):
        row["pace_group"], row["pace_seq"], row["pace_ms"] = group, seq, ms % 2**32
        row["pace_waited_ns"] = blocked_ms * 1_000_000
    return rows, np.arange(len(cuts))


def test_a_window_ends_when_all_members_show_the_same_boundary() -> None:
    windows = Windows(2)
    assert windows.cut(*rows_of((7, 8, 1000, 0), (7, 8, 5000, 0))) is None
    assert windows.cut(*rows_of((7, 16, 3000, 900), (7, 8, 5000, 0))) is None  # one has not told yet
    found = windows.cut(*rows_of((7, 16, 3000, 900), (7, 16, 7500, 500)))
    assert found is not None
    assert found.blocked.tolist() == [0.45, 0.2]
    assert (found.span_s.tolist(), found.operations.tolist()) == ([2.0, 2.5], [8, 8])


def test_a_boundary_that_one_agent_missed_makes_a_longer_window_and_no_wrong_one() -> None:
    windows = Windows(2)
    windows.cut(*rows_of((7, 8, 1000, 0), (7, 8, 1000, 0)))
    assert windows.cut(*rows_of((7, 16, 3000, 900), (7, 24, 5000, 300))) is None
    found = windows.cut(*rows_of((7, 24, 5000, 2000), (7, 24, 5000, 300)))
    assert found is not None
    assert found.blocked.tolist() == [0.5, 0.075]


def test_a_member_that_came_in_the_middle_is_compared_from_the_next_boundary_on() -> None:
    windows = Windows(2)
    windows.cut(*rows_of((7, 8, 1000, 0), (0, 0, 0, 0)))
    windows.cut(*rows_of((7, 16, 3000, 900), (7, 16, 3000, 100)))
    found = windows.cut(*rows_of((7, 24, 5000, 1000), (7, 24, 5000, 1100)))
    assert found is not None
    assert found.blocked.tolist() == [0.05, 0.5]


def test_an_agent_that_cuts_less_often_shows_an_older_boundary_for_a_while() -> None:
    windows = Windows(2)
    windows.cut(*rows_of((7, 8, 1000, 0), (7, 8, 1000, 0)))
    assert windows.cut(*rows_of((7, 24, 4000, 900), (7, 24, 4000, 0))) is not None
    assert windows.cut(*rows_of((7, 16, 3000, 500), (7, 16, 3000, 0))) is None
    found = windows.cut(*rows_of((7, 32, 6000, 1900), (7, 32, 6000, 100)))
    assert found is not None
    assert (found.blocked.tolist(), found.operations.tolist()) == ([0.5, 0.05], [8, 8])


def test_the_clock_of_a_rank_may_wrap() -> None:
    windows = Windows(2)
    windows.cut(*rows_of((7, 8, 2**32 - 500, 0), (7, 8, 1, 0)))
    found = windows.cut(*rows_of((7, 16, 2**32 + 500, 500), (7, 16, 1001, 500)))
    assert found is not None
    assert found.blocked.tolist() == [0.5, 0.5]


def test_ranks_of_groups_of_their_own_wait_for_each_other_s_windows() -> None:
    windows = Windows(4)
    windows.cut(*rows_of((7, 8, 0, 0), (7, 8, 0, 0), (9, 4, 0, 0), (9, 4, 0, 0)))
    assert windows.cut(*rows_of((7, 16, 2000, 0), (7, 16, 2000, 200), (9, 4, 0, 0), (9, 4, 0, 0))) is None
    found = windows.cut(*rows_of((7, 16, 2000, 0), (7, 16, 2000, 200), (9, 8, 3000, 300), (9, 8, 3000, 0)))
    assert found is not None
    assert found.blocked.tolist() == [0.0, 0.1, 0.1, 0.0]
    assert found.home.tolist() == [7, 7, 9, 9]


def test_blame_is_carried_through_groups_to_the_rank_that_waited_nowhere() -> None:
    """Rank 0 is late in its pair with 1; both then are late in their rows with 2 and 3, but 1 has waited for 0."""
    pair_s, row_s = {0: 0.0, 1: 0.4, 2: 0.0, 3: 0.0}, {0: 0.0, 1: 0.0, 2: 0.4, 3: 0.4}
    (finding,) = Fleet(lambda rank, _: pair_s[rank] + row_s[rank]).findings(8)
    assert finding.ranks == (0,)


def test_in_a_group_of_few_a_rank_is_compared_with_the_others() -> None:
    assert lateness(window([0.0, 0.4])).tolist() == [0.4, -0.4]
    assert lateness(window([0.0, 0.4, 0.6])).tolist() == pytest.approx([0.5, -0.1, -0.4])
    alone = lateness(window([0.0, 0.4, 0.3], home=[1, 1, 2]))
    assert np.isnan(alone[2])


@pytest.mark.parametrize(("share", "found"), [(0.09, False), (0.12, True)])
def test_a_small_job_needs_a_loss_of_a_tenth(share: float, found: bool) -> None:
    assert bool(Fleet(slow([2], share)).findings(12)) is found


@pytest.mark.parametrize(("share", "severe"), [(0.12, False), (0.16, True)])
def test_a_small_loss_is_told_and_wakes_nobody(share: float, severe: bool) -> None:
    (finding,) = Fleet(slow([2], share)).findings(12)
    assert finding.severe is severe
    severity = verdict_of(finding, WORLD, NOWHERE, 0.0).severity
    assert severity is (Severity.WARNING if severe else Severity.INFO)


def test_a_pause_that_comes_once_is_nobody_s_fault() -> None:
    assert not Fleet(lambda rank, window: 0.9 if window == 5 and rank != 1 else 0.05).findings(30)


def test_ranks_that_are_late_in_turns_are_not_slow() -> None:
    assert not Fleet(lambda rank, window: 0.0 if window % WORLD == rank else 0.3).findings(40)


def test_two_ranks_that_are_late_for_one_reason_are_one_finding() -> None:
    (finding,) = Fleet(slow([2, 5]), world=8, data_ms={2: 0.5, 5: 0.5}).findings(20)
    assert (finding.ranks, finding.kind) == ((2, 5), SlowKind.DATA_LOADING)


@pytest.mark.parametrize(("name", "kind"), SPENT)
def test_a_rank_is_kept_by_what_it_spends_more_time_in(name: str, kind: SlowKind) -> None:
    spent: dict[str, dict[int, float]] = {name: {1: 0.45, **dict.fromkeys((0, 2, 3), 0.02)}}
    (finding,) = Fleet(slow([1]), **spent).findings(10)
    assert (finding.kind, finding.ranks) == (kind, (1,))


def test_who_has_more_to_do_waits_more_for_a_core_and_is_not_crowded_out() -> None:
    """All get a third of a core that they want; rank 1 is collecting garbage, and wants it most of the time."""
    spent = {
        "gc_ms": {1: 0.8},
        "queued_ms": {1: 0.6, 0: 0.1, 2: 0.1, 3: 0.1},
        "ran_ms": {1: 0.3, 0: 0.05, 2: 0.05, 3: 0.05},
    }
    (finding,) = Fleet(slow([1], 0.8), **spent).findings(10)
    assert finding.kind is SlowKind.GARBAGE_COLLECTION
    spent["queued_ms"] = {1: 0.6, 0: 0.01, 2: 0.01, 3: 0.01}
    (finding,) = Fleet(slow([1], 0.8), **spent).findings(10)
    assert finding.kind is SlowKind.CPU_CONTENTION


def test_what_all_spend_time_in_keeps_nobody() -> None:
    (finding,) = Fleet(slow([1]), data_ms=dict.fromkeys(range(4), 0.45)).findings(10)
    assert finding.kind is SlowKind.OUTSIDE


def test_a_slow_gpu_explains_what_nothing_else_does() -> None:
    assert kind_of(0.5, {}, gpu_slow=1) is SlowKind.GPU
    assert kind_of(0.5, {SlowKind.DATA_LOADING: 0.4}, gpu_slow=1) is SlowKind.DATA_LOADING
    assert kind_of(0.5, {SlowKind.COMPUTE: 0.4}, gpu_slow=1) is SlowKind.GPU
    assert kind_of(0.5, {SlowKind.COMPUTE: 0.19}, gpu_slow=0) is SlowKind.OUTSIDE


def test_a_finding_counts_its_cost_and_goes_some_windows_after_its_rank_is_early_again() -> None:
    stragglers = Stragglers(WORLD)
    fleet = Fleet(lambda rank, window: 0.0 if rank == 1 and window <= 20 else 0.5)
    (finding,) = fleet.findings(20, stragglers)
    assert finding.lost_s == pytest.approx(0.5 * 2.0 * 18, rel=0.15)
    assert (finding.persistent, finding.waiting) == (True, 3)
    gone = [bool(fleet.findings(1, stragglers)) for _ in range(20 + GONE_AFTER)]
    assert not gone[-1]
    assert gone == sorted(gone, reverse=True)  # it does not come back


def test_now_and_then_is_told_apart_from_all_the_time() -> None:
    (finding,) = Fleet(lambda rank, window: 0.0 if rank == 1 and window % 3 else 0.4).findings(40)
    assert (finding.ranks, finding.persistent) == ((1,), False)


def test_batches_that_cost_the_same_everywhere_make_no_slow_machine() -> None:
    stragglers = Stragglers(WORLD)
    for at, times in ((0.0, 0), (30.0, 10)):
        small, big = ("8x64", 9 * times, 0.9 * times), ("8x512", times, 0.8 * times)
        loops = [Loop(rank, "t.py:1", 1, 9, 9, False, False, costs=(small, big)) for rank in (0, 2, 3)]
        loops.append(Loop(1, "t.py:1", 1, 9, 9, False, False, costs=(("8x512", 10 * times, 8.1 * times),)))
        stragglers.batches.add_loops(loops, at)
    (finding,) = Fleet(slow([1])).findings(10, stragglers)
    assert finding.kind is SlowKind.SEQUENCE_IMBALANCE
    assert "No machine is bad" in verdict_of(finding, WORLD, NOWHERE, 0.0).advice


@pytest.mark.parametrize(
    ("own", "others", "found"),
    [
        ({"8": (10, 2.0)}, {"8": (10, 1.0)}, Mixture(by_batches=0.0, slower=(("8", 0.2, 0.1),))),
        ({"16": (10, 2.0)}, {"8": (10, 1.0)}, Mixture(by_batches=1.0)),  # by its size
        ({"16": (10, 2.0)}, {"8": (10, 1.0), "16": (10, 2.0)}, Mixture(by_batches=1.0)),
        ({"8": (10, 1.04)}, {"8": (10, 1.0)}, None),  # it does not work more
        ({"8": (4, 2.0)}, {"8": (10, 1.0)}, None),  # too few to say
        ({"8": (10, 2.0)}, {"8": (4, 1.0)}, None),
        ({"other shapes": (10, 2.0)}, {"8": (10, 1.0)}, None),  # of no known size
    ],
)
def test_excess_work_is_of_the_batches_or_of_the_rank(
    own: dict[str, tuple[int, float]], others: dict[str, tuple[int, float]], found: Mixture | None
) -> None:
    assert mixture(own, [others] * 3) == found


def stages(worked: list[float], messages: float = 0.2, windows: int = WINDOWS_MIN) -> tuple[int, ...] | None:
    """Four stages of two ranks each; returns the one that is found."""
    known = Stages()
    blocked = [1.0 - messages - worked[rank // 2] for rank in range(8)]
    found = None
    for _ in range(windows):
        cut = window(blocked, home=[1, 1, 2, 2, 3, 3, 4, 4])
        found = known.compare(cut, np.full(8, messages))
    return found.ranks if found is not None else None


def test_a_stage_that_has_more_to_do_is_found_and_no_rank_of_it() -> None:
    assert stages([0.5, 0.5, 0.5, 0.7]) == (6, 7)
    assert stages([0.5, 0.5, 0.5, 0.5 + MORE_MIN - 0.01]) is None
    assert stages([0.5, 0.5, 0.5, 0.7], messages=0.0) is None  # no pipeline
    assert stages([0.5, 0.5, 0.5, 0.7], windows=WINDOWS_MIN - 1) is None


def test_steps_that_become_slower_are_told_with_their_moment() -> None:
    stragglers, fleet = Stragglers(WORLD), Fleet(lambda *_: 0.1)
    assert not fleet.findings(30, stragglers)
    changed_at = fleet.now
    original = fleet.step

    def slower() -> tuple[Rows, np.ndarray]:
        _, rank = original()
        fleet.rows["pace_ms"] += S  # half as long again, none of it blocked
        fleet.now += 1.0
        return fleet.rows.copy(), rank

    fleet.step = slower  # type: ignore[method-assign]
    (finding,) = fleet.findings(12, stragglers)
    assert finding.kind is SlowKind.FAIL_SLOW
    assert abs(finding.since - changed_at) <= 3.0
    assert finding.share == pytest.approx(1 / 3, abs=0.05)
    assert not finding.severe


def test_steps_that_become_slower_inside_of_collectives_are_the_network_s() -> None:
    stragglers, fleet = Stragglers(WORLD), Fleet(lambda _, window: 0.1 if window <= 30 else 1.1)
    fleet.findings(30, stragglers)
    original = fleet.step

    def slower() -> tuple[Rows, np.ndarray]:
        _, rank = original()
        fleet.rows["pace_ms"] += 2 * S
        fleet.now += 2.0
        return fleet.rows.copy(), rank

    fleet.step = slower  # type: ignore[method-assign]
    (finding,) = fleet.findings(12, stragglers)
    assert (finding.kind, finding.ranks) == (SlowKind.NETWORK, ())


def test_a_validation_in_which_no_step_is_made_is_no_slowdown() -> None:
    stragglers, fleet = Stragglers(WORLD), Fleet(lambda *_: 0.1)
    fleet.findings(30, stragglers)
    original = fleet.step

    def validation() -> tuple[Rows, np.ndarray]:
        _, rank = original()
        fleet.rows["steps"] -= 8
        fleet.rows["pace_ms"] += 2 * S
        return fleet.rows.copy(), rank

    fleet.step = validation  # type: ignore[method-assign]
    assert not fleet.findings(20, stragglers)


def test_a_verdict_says_who_where_how_much_and_what_to_do() -> None:
    (finding,) = Fleet(slow([2]), data_ms={2: 0.5}).findings(10)
    said = verdict_of(finding, WORLD, NOWHERE, finding.since + 20.0)
    assert said.summary == ("rank 2 makes the others wait 50% of the time, all the time: it waits for its data loader")
    assert "rank-hours" in said.explanation
    assert ("prefetch" in said.advice, said.victims, said.culprits[0].host) == (True, (0, 1, 3), "node2")
    assert said.slowness is not None
    assert (said.slowness.kind, said.slowness.share, said.slowness.since_s) == (SlowKind.DATA_LOADING, 0.5, 20.0)
    assert [evidence.fact for evidence in said.evidence] == ["data loading: 50% of its time, 0% of that of its like"]


@pytest.mark.parametrize("ranks", [2, 15, 16, 63, 64, 100_000])
def test_bounds_are_ordered(ranks: int) -> None:
    bounds = Bounds.of(ranks)
    assert 0 < bounds.noise_min < bounds.share_min < bounds.warn_min
