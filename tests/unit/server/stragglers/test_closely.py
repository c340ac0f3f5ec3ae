"""A close look at a slow rank: its process, and the gradient buckets in which it loses time."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import Op, OpView, RankView
from ncclwatch_server.stragglers.closely import AGAIN_S, LIKE_MAX, Closely, Detail
from ncclwatch_server.stragglers.reasons.gradients import STEPS_MIN, gaps, slow_buckets
from tests.unit.server.server_values import view

GAPS = {"gradient bucket 1 (b)": 0.010, "gradient bucket 2 (c)": 0.020}
FIRST = "gradient bucket 0 (a)"


def history(between: dict[str, float], steps: int = STEPS_MIN) -> tuple[OpView, ...]:
    """Backwards of three buckets, half a second apart, the newest last."""
    found, age_s = [], 100.0
    for step in range(steps):
        for label, gap_s in {FIRST: 0.5, **between}.items():
            age_s -= gap_s
            op = OpView(group="0", seq=1, op=Op.ALL_REDUCE, label=label, forwards=step, age_s=age_s)
            found += [op, replace(op, label="")]
    return tuple(found)


def rank(number: int, between: dict[str, float] = GAPS, steps: int = STEPS_MIN) -> RankView:
    return replace(view(number), history=history(between, steps), pid=1000 + number)


def test_a_gap_is_between_two_buckets_of_one_backward() -> None:
    assert gaps(history(GAPS)) == pytest.approx(GAPS)
    assert gaps(history(GAPS, STEPS_MIN - 1)) == {}


def test_the_bucket_is_named_in_which_a_rank_is_slower_than_its_like() -> None:
    slow = rank(0, {**GAPS, "gradient bucket 2 (c)": 0.050})
    (found,) = slow_buckets(slow, [rank(1), rank(2)])
    assert (found.label, round(found.own_s, 3), round(found.like_s, 3)) == ("gradient bucket 2 (c)", 0.05, 0.02)
    assert slow_buckets(rank(0), [rank(1)]) == ()
    assert slow_buckets(slow, []) == ()


def test_the_slow_ranks_and_some_like_them_are_asked_once_a_minute() -> None:
    closely, asked = Closely(), []

    def ask(ranks: tuple[int, ...]) -> list[tuple[int, int]]:
        asked.append(ranks)
        return [(1, len(asked))]

    for now in (0.0, 1.0, AGAIN_S - 1, AGAIN_S, AGAIN_S + 1):
        closely.ask_about([5], range(8), ask, now)
    closely.ask_about([6], range(8), ask, AGAIN_S + 2)
    closely.ask_about([], range(8), ask, 9e9)
    like = tuple(range(LIKE_MAX))
    assert asked == [(5, *like), (5, *like), (6, *like)]


def test_an_answer_to_another_question_is_not_taken() -> None:
    closely = Closely()
    closely.ask_about([0], [0, 1], lambda _: [(1, 7)], 0.0)
    assert closely.detail(0) == Detail()
    assert not closely.receive_views([rank(0)], (1, 8))
    assert closely.receive_views([rank(0, {**GAPS, "gradient bucket 1 (b)": 0.1}), rank(1)], (1, 7))
    found = closely.detail(0)
    assert (found.pid, [bucket.label for bucket in found.buckets]) == (1000, ["gradient bucket 1 (b)"])
    assert not closely.receive_views([rank(0)], (1, 7))
