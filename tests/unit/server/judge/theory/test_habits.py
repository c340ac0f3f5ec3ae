"""Where ranks fell out of step, and who broke its habit: what each bound of that protects a healthy rank from."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import CallSite, Op, OpView, RankView
from ncclwatch_server.judge.theory.histories.habits import (
    PERIOD_MAX,
    Slip,
    departs_from_habit,
    departs_in_arguments,
    departure,
    find_slip,
    jumped,
    keeps_habit,
    made_before,
    never_called_there,
    parted_in_a_loop,
)
from tests.unit.server.server_values import view


def at(line: int) -> CallSite:
    return CallSite(file="/u/train.py", line=line, function="step")


def op(seq: int, line: int = 44, **changes: object) -> OpView:
    return replace(OpView(group="dp", seq=seq, op=Op.ALL_REDUCE, site=at(line), numel=100), **changes)  # type: ignore


def rank(number: int, ops: Iterable[OpView], **changes: object) -> RankView:
    return replace(view(number), history=tuple(ops), **changes)  # type: ignore[arg-type]


def lines(*numbers: int) -> list[OpView]:
    """Return operations from these lines, numbered from one."""
    return [op(seq, line) for seq, line in enumerate(numbers, 1)]


# -- two clocks of progress ------------------------------------------------------------------------


def slip(*clocks: list[int], before: int = 99, first: int = 1, **changes: list[int]) -> Slip | None:
    """Return who fell out of step, by the batch of each operation on each rank."""
    views = {
        number: rank(number, [op(seq, batch=value, loader=1) for seq, value in enumerate(values, first)])
        for number, values in enumerate(clocks)
    }
    return find_slip(views, "dp", range(len(clocks)), before)


def test_who_is_a_batch_ahead_of_a_majority_slipped_where_that_began():
    found = slip([1, 2, 3, 4], [1, 2, 4, 5], [1, 2, 3, 4])
    assert found == Slip(ranks=(1,), group="dp", seq=3, offset=1, clock="batch", value=3, decided=True)


def test_of_two_ranks_nobody_can_tell_who_slipped():
    found = slip([1, 2, 4, 5], [1, 2, 3, 4])
    assert found == Slip(ranks=(0,), group="dp", seq=3, offset=1, clock="batch", value=3, decided=False)


def test_two_against_two_are_no_majority():
    found = slip([1, 2, 3], [1, 2, 4], [1, 2, 4], [1, 2, 3])
    assert found is not None
    assert (found.ranks, found.decided, found.value) == ((1, 2), False, 3)


def test_a_rank_that_caught_up_is_in_step():
    assert slip([1, 2, 3, 4], [1, 3, 3, 4]) is None


def test_a_slip_in_the_hang_itself_is_none():
    assert slip([1, 2, 3], [1, 2, 4], before=3) is None
    assert slip([1, 2, 3], [1, 2, 4], before=4) is not None


def test_an_offset_for_as_long_as_anybody_remembers_is_a_way_of_working():
    assert slip([5, 6, 7], [6, 7, 8], first=40) is None
    assert slip([5, 6, 7], [6, 7, 8], first=2) is None


def test_an_offset_since_the_first_operation_of_all_is_a_slip():
    found = slip([1, 2, 3], [2, 3, 4])
    assert found is not None
    assert found.seq == 1


def test_a_second_rank_that_slipped_later_does_not_hide_where_it_did():
    found = slip([1, 2, 3, 4], [1, 3, 4, 5], [1, 2, 3, 5], [1, 2, 3, 4], [1, 2, 3, 4])
    assert found is not None
    assert (found.ranks, found.seq) == ((1, 2), 4)


def test_operations_without_a_clock_tell_nothing():
    assert slip([0, 0, 0], [0, 1, 1]) is None
    assert slip([1, 2, 3]) is None


def forwards(number: int, values: list[int], loader: int = 1, batch: int = 0) -> RankView:
    return rank(
        number, [op(seq, forwards=value, loader=loader, batch=batch + seq) for seq, value in enumerate(values, 1)]
    )


def test_batches_of_two_loaders_are_not_compared_and_forwards_are():
    views = {0: forwards(0, [1, 2, 3]), 1: forwards(1, [1, 2, 4], loader=2, batch=7)}
    found = find_slip(views, "dp", (0, 1), 99)
    assert found is not None
    assert (found.clock, found.seq) == ("forward", 3)


def test_batches_tell_before_forwards_do():
    views = {0: forwards(0, [1, 2, 3]), 1: forwards(1, [1, 2, 4])}
    ahead = rank(2, [op(1, batch=1, loader=1), op(2, batch=2, loader=1), op(3, batch=4, loader=1)])
    found = find_slip(views | {2: ahead}, "dp", (0, 1, 2), 99)
    assert found is not None
    assert (found.clock, found.ranks) == ("batch", (2,))


def test_other_groups_messages_and_unknown_ranks_do_not_count():
    noise = [op(4, group="tp", batch=9, loader=1), op(4, op=Op.SEND, batch=9, loader=1)]
    views = {
        0: rank(0, [op(seq, batch=seq, loader=1) for seq in (1, 2, 3)] + noise),
        1: rank(1, [*noise, op(1, batch=1, loader=1), op(2, batch=2, loader=1), op(3, batch=4, loader=1)]),
    }
    found = find_slip(views, "dp", (0, 1, 2), 99)
    assert found is not None
    assert found.seq == 3


# -- habits ----------------------------------------------------------------------------------------

LOOP = lines(*[44, 45, 50] * 3)


@pytest.mark.parametrize(("line", "departs"), [(44, False), (45, True), (50, True)])
def test_what_was_done_three_times_in_a_row_is_a_habit(line: int, departs: bool):
    assert departs_from_habit(rank(0, LOOP), op(10, line)) is departs
    assert departs_from_habit(rank(0, LOOP[3:]), op(10, line)) is None


def test_of_one_line_alone_nothing_but_that_is_usual():
    assert departs_from_habit(rank(0, lines(44, 44, 44)), op(4, 44)) is False
    assert departs_from_habit(rank(0, lines(44, 44, 44)), op(4, 99)) is None


def test_a_call_from_outside_of_the_loop_decides_nothing_even_if_it_was_made_before_it():
    assert departs_from_habit(rank(0, LOOP), op(10, 99)) is None
    assert departs_from_habit(rank(0, lines(99, *[44, 45, 50] * 3)), op(11, 99)) is None


def test_the_operation_itself_is_no_part_of_its_habit():
    assert departs_from_habit(rank(0, [*LOOP, op(10, 50)]), op(10, 50)) is True


def test_what_came_after_a_call_is_no_habit_before_it():
    later = lines(*[44, 45, 50] * 4)[1:]
    assert departs_from_habit(rank(0, later), op(1, 50)) is None, "its ring has forgotten the call itself"
    assert departs_from_habit(rank(0, later), op(13, 50)) is True


@pytest.mark.parametrize(("length", "known"), [(PERIOD_MAX, True), (PERIOD_MAX + 1, None)])
def test_a_long_iteration_is_a_habit_too(length: int, known: bool | None):
    iteration = range(100, 100 + length)
    assert departs_from_habit(rank(0, lines(*[*iteration] * 3)), op(3 * length + 1, 101)) is known


def test_an_inner_loop_is_left_as_ever_where_the_outer_one_goes_on_so():
    epoch = [44, 44, 44, 44, 90]
    made = lines(*epoch * 3, 44, 44, 44, 44)
    assert departs_from_habit(rank(0, made), op(20, 90)) is False


@pytest.mark.parametrize(
    ("done", "line", "departs"),
    [
        ([44], 90, None),  # one turn instead of four: an epoch may end in the middle of an accumulation
        ([44, 44, 44], 90, None),
        ([44] * 4, 44, False),  # one turn more
        ([], 90, True),  # none
    ],
)
def test_an_inner_loop_that_turns_more_or_less_often_breaks_no_habit(done: list[int], line: int, departs: bool | None):
    made = [*[44, 44, 44, 44, 90] * 3, *done]
    assert departs_from_habit(rank(0, lines(*made)), op(len(made) + 1, line)) is departs


def test_two_of_a_kind_in_a_row_may_become_three():
    made = [44, 44, 90] * 3
    assert departs_from_habit(rank(0, lines(*made, 44, 44)), op(12, 44)) is None
    assert departs_from_habit(rank(0, lines(*made)), op(10, 90)) is True


@pytest.mark.parametrize(
    ("done", "line", "departs"),
    [
        ([44, 45], 90, None),
        ([44, 45] * 3, 44, False),
        ([44, 45], 45, True),  # a call left out of a turn
        ([44, 45, 44], 90, True),
        ([44, 45] * 3, 45, True),
    ],
)
def test_what_is_left_out_of_a_turn_of_an_inner_loop_breaks_a_habit(done: list[int], line: int, departs: bool | None):
    made = [*[*[44, 45] * 3, 90] * 3, *done]
    assert departs_from_habit(rank(0, lines(*made)), op(len(made) + 1, line)) is departs


def test_a_loop_whose_calls_also_follow_each_other_in_other_ways_is_no_habit():
    """One forward and one backward in turn, as between the warm-up and the end of a pipeline's schedule."""
    steady = [44, 55] * 3
    assert departs_from_habit(rank(0, lines(44, 44, *steady)), op(9, 55)) is None
    assert departs_from_habit(rank(0, lines(*steady)), op(7, 55)) is True


def test_what_comes_once_in_many_iterations_leaves_the_habit_as_it_is():
    made = [*[44, 45] * 3, 90, *[44, 45] * 3]
    assert departs_from_habit(rank(0, lines(*made)), op(14, 45)) is True
    assert departs_from_habit(rank(0, lines(*made)), op(14, 44)) is False


def test_one_line_that_two_callers_share_is_told_apart_by_them():
    calls = [op(seq, route=route) for seq, route in enumerate([1, 1, 2] * 3, 1)]
    assert departs_from_habit(rank(0, calls), op(10, route=1)) is False
    assert departs_from_habit(rank(0, calls), op(10, route=2)) is True


def test_a_new_call_that_ranks_of_like_groups_passed_by_departs():
    """Four groups of two run one source: the other three came by the place where rank 0 made a call more."""
    made = lines(*[44, 45] * 4)
    own, extra = rank(0, made[:7]), op(8, 99)
    others = [rank(number, [replace(each, group=f"tp{number // 2}") for each in made]) for number in range(2, 8)]
    assert departs_from_habit(own, extra, others) is True
    assert departs_from_habit(own, extra, others[:1]) is None
    assert departs_from_habit(own, extra, [rank(1, made)] * 2) is None, "of the same group"
    assert departs_from_habit(own, replace(extra, group="world"), others) is None, "not usual in that group"
    assert departs_from_habit(own, extra, [*others, rank(8, [extra])]) is None, "somebody makes it"
    assert departs_from_habit(own, extra, [replace(each, history=each.history[:7]) for each in others]) is None


@pytest.mark.parametrize(
    ("made", "broke_at", "usual"),
    [
        ([*[44, 50] * 3, 44, 44], 8, 50),
        ([*[44, 50] * 3, 50, 44, 50, 44], 7, 44),  # one left out: it keeps to its list afterwards, one place on
    ],
)
def test_a_habit_is_broken_where_it_first_was(made: list[int], broke_at: int, usual: int):
    found = departure(rank(0, lines(*made)))
    assert found is not None
    assert (found.op.seq, found.op.site, found.usual.site) == (broke_at, at(made[broke_at - 1]), at(usual))


@pytest.mark.parametrize(
    "made",
    [
        [],
        [44],
        [44, 90],
        [44, 50, 44, 50, 50],  # twice is no habit
        [*[44, 50] * 4],
        [*[44, 50] * 4, 44, 90],  # the first of its kind
        [*[44, 50] * 3, 90, *[44, 50] * 3, 90],
        [44, 44, 44, 90],
    ],
)
def test_who_keeps_to_its_list_or_has_none_did_not_depart(made: list[int]):
    assert departure(rank(0, lines(*made))) is None


def test_what_another_rank_did_as_well_is_no_departure():
    made = lines(*[44, 50] * 3, 50)
    assert departure(rank(0, made), [rank(1, lines(44, 50, 44, 50))]) is not None
    assert departure(rank(0, made), [rank(1, lines(50, 50))]) is None


def test_a_call_from_outside_is_a_departure_where_that_is_asked_for():
    made = lines(*[44, 50] * 4, 44, 90)
    found = departure(rank(0, made), new=True)
    assert found is not None
    assert (found.op.seq, found.usual.seq) == (10, 8)
    assert departure(rank(0, made), [rank(1, lines(44, 90))], new=True) is None
    assert departure(rank(0, lines(*[44, 44, 44, 50, 50, 50] * 2, 44)), new=True) is None, "it ends each time so"


@pytest.mark.parametrize(
    ("made", "keeps"),
    [
        ([], False),
        ([44, 90], False),
        ([44, 50, 44, 50], False),
        ([44, 50, 44, 50, 44, 50], True),
        ([70, *[44, 50] * 3, 44], True),
        ([44] * 3 + [90], False),
    ],
)
def test_a_rank_of_which_too_little_is_known_is_not_said_to_keep_its_habit(made: list[int], keeps: bool):
    assert keeps_habit(rank(0, lines(*made))) is keeps


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([1, 2, 3, 5], True),  # it left the call of the fourth batch out
        ([1, 2, 3, 3], True),  # it made that of the third one twice
        ([1, 2, 3, 4], False),
        ([2, 4, 6, 8], False),
        ([1, 2, 4, 5], None),  # it never went by one step
        ([1, 2], None),
    ],
)
def test_who_slipped_went_by_another_step_of_its_own_clock(batches: list[int], expected: bool | None):
    slip = Slip(ranks=(1,), group="dp", seq=len(batches), offset=1, clock="batch", value=4, decided=False)
    ops = [op(seq, batch=batch, loader=1) for seq, batch in enumerate(batches, 1)]
    assert jumped(rank(0, ops), slip) is expected


# -- what ranks did before -------------------------------------------------------------------------


def test_who_parted_at_a_call_of_the_loop_was_in_it():
    stayer = rank(0, lines(*[44, 45] * 4, 44))
    assert parted_in_a_loop(rank(1, lines(*[44, 45] * 4, 90)), stayer, op(9))
    after_the_loop = [*[44] * 6, 70]
    assert not parted_in_a_loop(rank(1, lines(*after_the_loop, 90)), rank(0, lines(*after_the_loop, 44)), op(8))


def test_a_call_made_half_as_often_is_still_one_of_the_loop():
    agreed = [44, 44, 44, 45, 44, 45]
    assert parted_in_a_loop(rank(1, lines(*agreed, 90)), rank(0, lines(*agreed)), op(7))
    less = [44, 44, 44, 44, 44, 45, 44, 44][:6]
    assert not parted_in_a_loop(rank(1, lines(*less, 90)), rank(0, lines(*less)), op(7))


def test_where_nothing_was_agreed_on_nothing_speaks_against_a_loop():
    assert parted_in_a_loop(rank(1, lines(90)), rank(0, lines(44)), op(1))
    assert parted_in_a_loop(rank(1, []), rank(0, lines(44, 45)), op(2))


def test_only_what_came_before_the_hang_was_agreed_on():
    both = [*[44] * 6, 70]
    assert parted_in_a_loop(rank(1, lines(*both)), rank(0, lines(*both)), op(7))
    message = [*lines(*[44] * 6), op(7, 70, op=Op.SEND), op(7, 70, group="tp")]
    assert parted_in_a_loop(rank(1, message), rank(0, message), op(8))


@pytest.mark.parametrize(
    ("changes", "known"),
    [({}, True), ({"numel": 7}, False), ({"route": 2}, False), ({"dtype": "int8"}, False), ({"group": "tp"}, False)],
)
def test_a_call_was_made_before_if_all_of_it_was(changes: dict[str, object], known: bool):
    assert made_before(rank(0, [op(3)]), op(4, **changes)) is known
    assert not made_before(rank(0, [op(4)]), op(4))


@pytest.mark.parametrize(("earlier", "departs"), [([100, 100], False), ([64, 64], True), ([64, 100], None), ([], None)])
def test_other_arguments_than_ever_are_told_where_they_never_varied(earlier: list[int], departs: bool | None):
    made = [*(op(seq, numel=numel) for seq, numel in enumerate(earlier, 1)), op(9)]
    assert departs_in_arguments(rank(0, made), op(9)) is departs
    elsewhere = [op(1, 50, numel=3), op(2, route=5, numel=3), op(3, group="tp", numel=3)]
    assert departs_in_arguments(rank(0, [*elsewhere, *made]), op(9)) is departs


def test_a_line_was_used_if_anybody_remembers_it():
    assert never_called_there(view(0), op(1), ())
    assert not never_called_there(view(0), op(1, site=None), ())
    assert not never_called_there(replace(view(0), sites=(at(44),)), op(1), ())
    assert not never_called_there(rank(0, [op(1)]), op(9), ())
    assert never_called_there(rank(0, [op(1, 45)], sites=(at(46),)), op(9), ())


def test_a_helpers_line_was_used_for_a_caller_only_by_its_way():
    mine, other = (at(44), at(60)), (at(44), at(90))
    known = replace(view(0), sites=(at(44),), routes=(other,))
    assert never_called_there(known, op(1), mine)
    assert not never_called_there(replace(known, routes=(other, mine)), op(1), mine)
    assert not never_called_there(known, op(1), ())
    assert not never_called_there(replace(known, routes=((at(45), at(60)),)), op(1), mine)
