"""What chance may do: bounds that hold for noise, for noise with pauses, and for ranks that differ for good."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from ncclwatch_server.stragglers.chance import FEW_TO_MEASURE, beyond, levels, quantile, spread_of
from ncclwatch_server.stragglers.scores import HABIT_MIN, SPANS, Scores
from ncclwatch_server.stragglers.windows import Floats, Window

RANKS = 1024
NONE = 1e-12  # pauses that nobody has


def test_the_spread_of_many_values_is_that_of_most_of_them() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 4000)
    assert spread_of(np.sort(values)) == pytest.approx(2.0, rel=0.03)
    values[:200] += 100.0
    assert spread_of(np.sort(values)) == pytest.approx(2.0, rel=0.1)
    assert spread_of(np.zeros(100)) == 0.0


def test_the_spread_of_few_values_does_not_follow_the_one_that_is_far_away() -> None:
    assert spread_of(np.array([0.0, 0.1, 0.2, 9.0])) < 0.3
    assert spread_of(np.sort(np.r_[np.linspace(-1, 1, FEW_TO_MEASURE - 2), 50.0])) < 1.0


@pytest.mark.parametrize(("false", "freedom", "known"), [(1e-3, 60, 3.232), (1e-3, 1e9, 3.090), (1e-6, 120, 4.999)])
def test_quantiles_are_those_of_student_s_t(false: float, freedom: float, known: float) -> None:
    assert quantile(false, freedom) == pytest.approx(known, abs=0.01)


def test_without_pauses_one_level_is_left_and_it_grows_with_the_ranks() -> None:
    (small,), (big,) = levels(8, 5, NONE, 1e-6), levels(RANKS, 5, NONE, 1e-6)
    assert small == pytest.approx(-NormalDist().inv_cdf(0.5e-6 / 8))
    assert big > small


def test_where_pauses_are_frequent_more_windows_are_left_out_and_the_rest_has_to_say_more() -> None:
    rare, frequent = levels(RANKS, 5, 5e-4, 1e-6), levels(RANKS, 5, 1e-2, 1e-6)
    assert len(rare) < len(frequent)
    assert all(one < other for one, other in zip(rare[1:], frequent[1:], strict=False))
    assert list(rare) == sorted(rare, reverse=True)


def test_where_every_window_may_be_a_pause_no_sum_is_enough() -> None:
    bounds = levels(8, 5, 0.25, 4e-6)
    assert not beyond(np.full(5, 6.0), 1.0, bounds)


def test_a_pause_of_any_length_does_not_carry_a_rank_over_the_bound_and_steady_lateness_does() -> None:
    bounds = levels(RANKS, 5, 5e-4, 1e-6)
    assert beyond(np.full(5, 3.2), 1.0, bounds)
    assert not beyond(np.array([1.0, 1.2, 0.8, 1.0, 1000.0]), 1.0, bounds)
    assert not beyond(np.array([1.8, 2.0, 1.9, 1000.0, 1000.0]), 1.0, bounds)
    assert not beyond(np.full(5, 3.2), 1.5, bounds)  # ranks differ for good


def test_the_bound_errs_as_seldom_as_it_says() -> None:
    """At a probability that can be counted: noise, a pause in one of a hundred windows, two spans' worth of trials."""
    generator, false = np.random.default_rng(5), 0.02
    for span in SPANS:
        values = generator.normal(size=(60_000, span))
        values += (generator.random(values.shape) < 0.01) * 1e3
        bounds = levels(1, span, 0.01, false)
        wrong = np.mean([beyond(each, 1.0, tuple(bounds)) for each in values[:6000]])
        assert wrong < false


def window(late: Floats, home: int = 1) -> Window:
    ranks = len(late)
    return Window(
        rank=np.arange(ranks), home=np.full(ranks, home, np.uint64), blocked=np.clip(0.5 - late, 0.0, 1.0),
        span_s=np.full(ranks, 2.0), operations=np.full(ranks, 8),
    )  # fmt: skip


def found_after_change(windows_before: int, *, home_after: int = 1) -> set[int]:
    """Rank 7 becomes later by 2 % of the time among ranks that differ by 1 % for good and vary by 0.5 %."""
    generator, scores = np.random.default_rng(11), Scores(256)
    lasting = generator.normal(0.0, 0.01, 256)
    lasting[7] = 0.0
    found: set[int] = set()
    for number in range(windows_before + SPANS[0]):
        late = lasting + generator.normal(0.0, 0.005, 256)
        changed = number >= windows_before
        late[7] += 0.02 * changed
        said = scores.score(window(late, home=home_after if changed else 1))
        found |= {suspect.rank for suspect in said}
    return found


def test_who_departs_from_its_habit_is_found_where_ranks_differ_for_good_and_only_then() -> None:
    assert found_after_change(SPANS[-1] + HABIT_MIN + 1) == {7}
    assert found_after_change(SPANS[-1] + HABIT_MIN - 10) == set()  # nobody has a habit yet


def test_a_rank_that_is_compared_with_others_from_now_on_has_no_habit_any_more() -> None:
    assert found_after_change(SPANS[-1] + HABIT_MIN + 1, home_after=2) == set()


def test_what_a_rank_does_while_it_is_suspected_does_not_become_its_habit() -> None:
    generator, scores = np.random.default_rng(12), Scores(256)
    for number in range(SPANS[-1] + HABIT_MIN + 5 + 150):
        late = generator.normal(0.0, 0.005, 256)
        late[7] += 0.015 * (number > SPANS[-1] + HABIT_MIN + 5)
        said = scores.score(window(late))
    assert [suspect.rank for suspect in said] == [7]
    assert not math.isnan(said[0].score)
