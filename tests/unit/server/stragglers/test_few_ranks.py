"""Slow ranks of small jobs: recorded pauses, lateness that lasts, waits for messages."""

from collections.abc import Callable

import numpy as np
import pytest

from ncclwatch.contract.digests import WAIT_KINDS
from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.model.slowness import SlowKind
from ncclwatch_server.state.digest_rows import RANK_DTYPE
from ncclwatch_server.stragglers import few_ranks
from ncclwatch_server.stragglers.message_windows import MessageWindows
from ncclwatch_server.stragglers.tracker import WARMUP, Stragglers
from ncclwatch_server.stragglers.words import verdict_of
from tests.unit.server.stragglers.fleet import (
    MESSAGES_S,
    NOWHERE,
    WORLD,
    Fleet,
    Pausing,
    Pipeline,
    S,
    drawing_alike,
    every_third,
    slow,
)


@pytest.mark.parametrize(
    ("name", "kind", "windows"),
    [("gc_ms", SlowKind.GARBAGE_COLLECTION, 24), ("data_ms", SlowKind.DATA_LOADING, 72)],
)
def test_pauses_of_one_of_two_ranks_that_come_together_with_the_other_s_wait_are_told(
    name: str, kind: SlowKind, windows: int
) -> None:
    fleet = Pausing(lambda rank, window: every_third(rank, window) if rank == 0 else 0.05, name, {1: every_third})
    (finding,) = fleet.findings(windows)
    assert (finding.ranks, finding.kind, finding.severe, finding.persistent) == ((1,), kind, True, False)
    assert finding.share == pytest.approx(0.65 / 3, abs=0.06)
    assert "as long as rank 1 stood still" in verdict_of(finding, 2, NOWHERE, fleet.now).explanation


def test_a_rank_that_is_stopped_inside_of_collectives_seems_to_wait_itself_and_is_told() -> None:
    (finding,) = Pausing(lambda *_: 0.5, "stopped_ms", {1: lambda _, window: float(window % 2)}, world=3).findings(20)
    assert (finding.ranks, finding.kind) == ((1,), SlowKind.STOPPED)


def test_pauses_while_nobody_waits_are_nobody_s_business() -> None:
    assert not Pausing(lambda *_: 0.02, "gc_ms", {1: every_third}).findings(40)


def test_a_wait_without_a_pause_of_the_other_is_not_explained_by_one() -> None:
    fleet = Pausing(lambda rank, window: every_third(rank, window) if rank == 0 else 0.05, "gc_ms", {0: every_third})
    assert not fleet.findings(40)


def test_pauses_that_two_ranks_have_in_turns_are_not_told() -> None:
    turns = {
        0: lambda _, window: every_third(0, window + 1),
        1: lambda _, window: every_third(1, window),
    }
    blocked = {0: turns[1], 1: turns[0]}
    assert not Pausing(lambda rank, window: blocked[rank](rank, window), "data_ms", turns).findings(40)


@pytest.mark.parametrize(("world", "seed"), [(2, 2), (3, 1), (4, 1), (8, 0)])
def test_ranks_whose_loaders_draw_large_items_alike_are_left_alone(world: int, seed: int) -> None:
    fleet, known = drawing_alike(world, seed), Stragglers(world)
    assert [found for _ in range(100) if (found := fleet.findings(1, known))] == []


def test_a_rank_that_draws_large_items_more_often_is_told() -> None:
    often = np.array([0.1, 0.6])
    (finding,) = drawing_alike(2, 0, often).findings(72)
    assert (finding.ranks, finding.kind) == ((1,), SlowKind.DATA_LOADING)


def test_one_long_pause_and_some_short_ones_are_not_again_and_again() -> None:
    sizes = {12: 0.95, 14: 0.06, 16: 0.06, 18: 0.06, 20: 0.06}
    fleet = Pausing(
        lambda rank, window: sizes.get(window, 0.0) if rank == 0 else 0.0, "gc_ms",
        {1: lambda _, window: sizes.get(window, 0.0)},
    )  # fmt: skip
    assert not fleet.findings(22)


def test_two_slow_ranks_of_four_are_found_when_they_have_been_late_for_long() -> None:
    stragglers, fleet = Stragglers(WORLD), Fleet(slow([1, 3], 0.5))
    assert not fleet.findings(few_ranks.WINDOWS + WARMUP, stragglers)
    (finding,) = fleet.findings(1, stragglers)
    assert (finding.ranks, finding.kind, finding.severe) == ((1, 3), SlowKind.OUTSIDE, True)


@pytest.mark.parametrize(("share", "severe"), [(few_ranks.SHARE_MIN - 0.01, None), (0.2, False), (0.3, True)])
def test_one_of_two_ranks_is_told_by_its_share(share: float, severe: bool | None) -> None:
    found = Fleet(slow([1], share), world=2).findings(40)
    assert [each.severe for each in found] == [severe] * (severe is not None)


@pytest.mark.parametrize("seed", range(6))
def test_two_healthy_ranks_that_vary_by_a_fifth_in_each_window_are_left_alone(
    seed: int, share_of: Callable[[int], int]
) -> None:
    noise = np.random.default_rng(seed).normal(0.3, 0.2, (2, 400)).clip(0.0, 1.0)
    stragglers, fleet = Stragglers(2), Fleet(lambda rank, window: float(noise[rank, window]), world=2)
    assert not any(fleet.findings(1, stragglers) for _ in range(share_of(390)))


def test_a_rank_that_is_late_in_some_stretches_only_is_not_late_for_long() -> None:
    assert not Fleet(lambda rank, window: 0.6 * (rank == 0) * (window % 12 < 7), world=2).findings(120)


def test_a_rank_that_all_others_wait_for_in_receives_is_told_although_no_collective_is_made() -> None:
    fleet = Pipeline(slow([1], 0.5), world=3)
    (finding,) = fleet.findings(few_ranks.WINDOWS + 4)
    assert (finding.ranks, finding.kind, finding.severe) == ((1,), SlowKind.OUTSIDE, True)
    assert "blocked in sends and receives" in verdict_of(finding, 3, NOWHERE, fleet.now).explanation


def test_a_stage_that_computes_longer_is_a_note_and_no_slow_rank() -> None:
    fleet = Pipeline(slow([2], 0.4), world=3, ran_ms={2: 0.8, 0: 0.3, 1: 0.3})
    (finding,) = fleet.findings(few_ranks.WINDOWS + 4)
    assert (finding.ranks, finding.stage, finding.severe) == ((), (2,), False)
    assert finding.kind is SlowKind.PIPELINE_IMBALANCE


def test_of_two_that_only_exchange_messages_one_may_be_there_to_wait() -> None:
    (finding,) = Pipeline(slow([1], 0.9), world=2).findings(few_ranks.WINDOWS + 4)
    assert (finding.ranks, finding.severe) == ((1,), False)


def test_a_pause_of_one_stage_that_comes_again_and_again_is_a_warning_of_two_ranks_too() -> None:
    fleet = Pipeline(lambda rank, window: every_third(rank, window) if rank == 0 else 0.05, world=2)
    stragglers = Stragglers(2)
    for _ in range(24):
        fleet.rows["gc_ms"][1] += int(every_third(1, fleet.window + 1) * MESSAGES_S * S)
        stragglers.add_rows(*fleet.step(), fleet.now)
    (finding,) = stragglers.findings
    assert (finding.ranks, finding.kind, finding.severe) == ((1,), SlowKind.GARBAGE_COLLECTION, True)


def test_two_ranks_ahead_of_the_others_hold_nobody_up() -> None:
    """The first stage of a forward runs ahead, and waits as little as the slow one behind it."""
    assert not Pipeline(slow([0, 1], 0.5), world=3).findings(40)


def test_a_receive_that_is_not_over_counts_as_far_as_it_has_come() -> None:
    windows, rows = MessageWindows(), np.zeros(2, RANK_DTYPE)
    assert windows.cut(rows, np.arange(2), 10.0) is None
    rows["wait_kind"], rows["wait_age_s"] = [WAIT_KINDS.index(WaitKind.RECV), -1], [2.0, 2.0]
    rows["issued"] = [1, 0]
    assert windows.cut(rows, np.arange(2), 13.0) is None  # one stands still
    rows["issued"] = 1
    cut = windows.cut(rows, np.arange(2), 14.0)
    assert cut is not None
    assert cut.blocked.tolist() == [0.5, 0.0]
    rows["pace_group"], rows["issued"] = 7, 2
    assert windows.cut(rows, np.arange(2), 18.0) is None  # a group tells more


def test_a_job_without_messages_is_not_cut_by_time() -> None:
    windows, rows = MessageWindows(), np.zeros(2, RANK_DTYPE)
    assert [windows.cut(rows, np.arange(2), 10.0 + 3.0 * n) for n in range(5)] == [None] * 5


def test_who_waits_for_a_message_before_a_collective_is_not_late_in_it_by_itself() -> None:
    """Two stages of two replicas: rank 3 computes longer, rank 1 waits for its gradients and is late in stage 0."""
    late = {0: 0.5, 1: 0.0, 2: 0.5, 3: 0.0}
    fleet = Fleet(lambda rank, _: late[rank], peers_ms={1: 0.5})
    fleet.rows["pace_group"] = [7, 7, 9, 9]
    (finding,) = fleet.findings(few_ranks.WINDOWS + 4)
    assert finding.ranks == (3,)


def test_one_hot_rank_of_a_mesh_is_told_although_no_collective_is_of_all() -> None:
    noise = np.random.default_rng(1).normal(0.6, 0.1, (6, 60)).clip(0.0, 1.0)
    fleet = Fleet(lambda rank, window: 0.0 if rank == 3 else float(noise[rank, window]), world=6)
    fleet.rows["pace_group"] = [7, 9] * 3
    (finding,) = fleet.findings(few_ranks.WINDOWS + 4)
    assert finding.ranks == (3,)


@pytest.mark.parametrize(("in_one_stretch", "found"), [(0.6, {0: 0.6}), (0.06, {})])
def test_who_was_late_in_three_stretches_of_four_was_not_late_all_the_time(
    in_one_stretch: float, found: dict[int, float]
) -> None:
    late = [np.array([in_one_stretch if 5 <= number < 10 else 0.6, 0.0], np.float32) for number in range(20)]
    assert few_ranks.late_for_long(late, np.arange(2)) == pytest.approx(found)


def test_lateness_that_wanders_from_stretch_to_stretch_is_not_yet_late_for_long() -> None:
    stretches = (0.2, 0.2, 0.7, 0.2)
    late = [np.array([stretches[number // 5], 0.0], np.float32) for number in range(20)]
    assert few_ranks.late_for_long(late, np.arange(2)) == {}
