"""A rank's own past says what usually follows, and which call broke that."""

import pytest

from ncclwatch_server.judge.theory.repair.routine import Routine

A, B, C, D = range(4)
STEPS = [A, B, C] * 3


def test_a_call_that_never_followed_two_others_breaks_the_routine() -> None:
    assert Routine(STEPS).breaks([*STEPS, A, C], len(STEPS)) == [10]


def test_a_call_as_before_breaks_nothing() -> None:
    assert Routine(STEPS).breaks([*STEPS, A, B, C, A], len(STEPS)) == []


def test_a_call_that_was_never_made_before_breaks_nothing() -> None:
    assert Routine(STEPS).breaks([*STEPS, A, D], len(STEPS)) == []


def test_after_an_unknown_pair_the_last_call_alone_counts() -> None:
    assert Routine(STEPS).breaks([*STEPS, C, A, C], len(STEPS)) == [9, 11]


def test_breaks_are_looked_for_up_to_a_place() -> None:
    assert Routine(STEPS).breaks([*STEPS, A, C], len(STEPS), 10) == []


def test_each_way_that_was_gone_before_is_usual() -> None:
    assert Routine([A, B, C, A, B, D, A, B, C]).usual([A, B]) == {C: 2, D: 1}


def test_it_says_how_often_a_routine_held() -> None:
    assert Routine(STEPS).held([C, A]) == 2


@pytest.mark.parametrize(
    ("calls", "new"), [([A, B, C, A], False), ([A, B, D], True), ([A, C], True)], ids=["usual", "new call", "new way"]
)
def test_what_is_new_to_a_rank_may_be_right(calls: list[int], new: bool) -> None:
    assert Routine(STEPS).is_new([*STEPS, *calls], len(STEPS), 99) is new


def test_without_a_past_all_is_new() -> None:
    assert Routine([]).is_new([A], 0, 1)


def test_a_run_of_one_call_may_be_longer_or_shorter() -> None:
    assert Routine([A, A, A, B, C, A, A, A, B, C]).held([A, A]) == 2


def test_a_call_that_was_made_once_breaks_nothing() -> None:
    assert Routine([*STEPS, D, *STEPS]).breaks([A, B, D], 1) == []


def test_a_run_of_one_call_that_came_once_breaks_nothing() -> None:
    assert Routine([*STEPS, D, D, *STEPS]).breaks([A, B, D], 1) == []


LOOPS = ([A, B] * 3 + [C]) * 7


@pytest.mark.parametrize(
    ("calls", "off_beat"),
    [
        ([A, B] * 3 + [C], 0),
        ([A, B] * 2 + [C], 1),
        ([A, B] * 3 + [A], 1),
        ([A, B] * 3, 0),
        ([A, B, D] + [A, B] * 4, 0),
    ],
    ids=["as before", "left early", "went on", "has not come there", "something new"],
)
def test_a_loop_that_ran_as_often_as_never_before_is_off_beat(calls: list[int], off_beat: int) -> None:
    made = [*LOOPS, *calls]
    assert Routine(LOOPS).off_beat(made, len(LOOPS), len(made)) == off_beat


def test_a_loop_that_ran_a_few_times_has_no_beat() -> None:
    past = ([A, B] * 3 + [C]) * 5
    assert Routine(past).off_beat([*past, A, B, C], len(past), 99) == 0


def test_calls_without_a_loop_between_them_have_no_beat() -> None:
    past = [A, B, C] * 9
    assert Routine(past).off_beat([*past, A, C], len(past), 99) == 0


def test_other_arguments_at_a_line_that_always_had_the_same_break_the_routine() -> None:
    line_of = {A: 0, B: 1, C: 2, D: 0}.__getitem__
    assert Routine(STEPS, line_of).breaks([*STEPS, D], len(STEPS)) == [len(STEPS)]
    assert Routine([*STEPS, D], line_of).breaks([*STEPS, D, D], len(STEPS) + 1) == []


@pytest.mark.parametrize(
    ("past", "before", "call"),
    [(STEPS, (A, B), C), ([*STEPS, A, B, D], (A, B), -1), ([A, B, C, A, B, C], (A, B), -1), (STEPS, (D,), -1)],
    ids=["always", "once another one", "not often enough", "unknown"],
)
def test_what_always_came_after_some_calls_is_known(past: list[int], before: tuple[int, ...], call: int) -> None:
    assert Routine(past).always(before) == call
