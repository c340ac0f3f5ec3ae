"""The odd one of several sides of a hang: rules that no majority helps with, each where it must not decide."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import CallSite, LoaderView, Op, OpView, RankView, SourceNote, ThreadView
from ncclwatch.contract.ring.call_sites import GRADIENT_BUCKET
from ncclwatch_server.judge.theory.histories.batches import odd_in_pass, uneven_counts
from ncclwatch_server.judge.theory.histories.habits import Slip
from ncclwatch_server.judge.theory.histories.odd_side import Side, Sign, odd_side
from ncclwatch_server.judge.theory.histories.parting import Way, crossing_threads, part, parted_callers
from ncclwatch_server.judge.theory.histories.skipped_calls import Shift, who_shifted
from ncclwatch_server.judge.theory.waits.rank_standing import Operation
from tests.unit.server.server_values import view


def at(line: int) -> CallSite:
    return CallSite(file="/u/train.py", line=line, function="step")


def op(seq: int, line: int = 44, **changes: object) -> OpView:
    return replace(OpView(group="dp", seq=seq, op=Op.ALL_REDUCE, site=at(line), numel=100), **changes)  # type: ignore


def rank(number: int, *lines: int, **changes: object) -> RankView:
    """Return a rank that made calls from these lines."""
    ops = tuple(op(seq, line) for seq, line in enumerate(lines, 1))
    return replace(view(number), **({"history": ops} | changes))  # type: ignore[arg-type]


def side(*ranks: int, seq: int = 9, line: int = 44, **changes: object) -> Side:
    issued = op(seq, line, **changes)
    return Side(ranks=ranks, op=issued, site=issued.site)


def among(*members: int, unnamed: int = 0) -> Operation:
    return Operation(group="dp", seq=9, members=members, unnamed=unnamed)


# -- who shifted -----------------------------------------------------------------------------------

KEPT, BROKE = (44, 50) * 3, (*(44, 50) * 3, 50)
SHIFT = Shift(ranks=(1,), group="dp", seq=5, skipped=1, op=op(5), route=(), caller=None, decided=False)


@pytest.mark.parametrize(
    ("zero", "one", "ranks", "skipped"),
    [
        (KEPT, BROKE, (1,), 1),
        (BROKE, KEPT, (0,), -1),  # what the one skipped the other made too many of
    ],
)
def test_of_two_ranks_who_broke_its_habit_is_the_one_that_shifted(
    zero: tuple[int, ...], one: tuple[int, ...], ranks: tuple[int, ...], skipped: int
):
    found = who_shifted({0: rank(0, *zero), 1: rank(1, *one)}, (0, 1), SHIFT)
    assert found is not None
    assert (found.ranks, found.skipped) == (ranks, skipped)


@pytest.mark.parametrize("lines", [KEPT, BROKE])
def test_where_both_or_neither_broke_their_habits_nobody_is_accused_of_a_shift(lines: tuple[int, ...]):
    assert who_shifted({0: rank(0, *lines), 1: rank(1, *lines)}, (0, 1), SHIFT) is None


def test_a_majority_says_who_shifted_whatever_their_habits():
    decided = replace(SHIFT, decided=True)
    assert who_shifted({0: rank(0, *BROKE), 1: rank(1, *KEPT)}, (0, 1), decided) is decided


# -- who slipped -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("slipped", "sign"), [((0, 1), Sign.SLIPPED_FIRST), ((0,), Sign.NONE)])
def test_a_side_of_which_all_have_slipped_is_the_odd_one_and_one_of_which_some_have_is_not(
    slipped: tuple[int, ...], sign: Sign
):
    """Three more members, who have not come yet, kept in step with rank 2."""
    views = {number: rank(number, 44, 44, 44) for number in range(6)}
    found = Slip(ranks=slipped, group="dp", seq=3, offset=1, clock="batch", value=3, decided=True)
    told = odd_side(views, (side(0, 1), side(2, line=50)), found, 6)
    assert told.sign is sign
    assert not told.decided or told.side.ranks == (0, 1)


# -- threads that cross ----------------------------------------------------------------------------


def threaded(number: int, main: str = "MainThread", second: str = "eval", used: tuple[int, ...] = (1, 2)) -> RankView:
    """Return a rank of two threads, whose operations were issued by these."""
    threads = tuple(
        ThreadView(tid=tid, main=tid == 1, issued=5, name=name) for tid, name in ((1, main), (2, second))
    )  # fmt: skip
    return replace(view(number), threads=threads, history=tuple(op(seq, thread=t) for seq, t in enumerate(used, 1)))


@pytest.mark.parametrize(
    ("one", "thread", "names"),
    [
        (threaded(1), 2, ("MainThread", "eval")),
        (threaded(1), 1, ()),  # both stand in the operation of the same thread
        (threaded(1, used=(1, 1)), 2, ()),  # only one thread uses the group
        (threaded(1, second=""), 2, ()),  # one of autograd's
        (threaded(1, second="Dummy-4"), 2, ()),
        (threaded(1), 3, ()),
    ],
)
def test_only_two_threads_with_names_of_their_own_cross(one: RankView, thread: int, names: tuple[str, ...]):
    sides = side(0, thread=1), side(1, thread=thread, op=Op.BROADCAST)
    assert crossing_threads({0: threaded(0), 1: one}, sides) == names


# -- batches ---------------------------------------------------------------------------------------

LOOP = at(10)


def loading(number: int, passes: int, drawn: int, *, last: int = 0, exhausted: bool = False) -> RankView:
    loader = LoaderView(site=LOOP, passes=passes, drawn=drawn, exhausted=exhausted, last_drawn=last)
    return replace(view(number), loaders=(loader,))


@pytest.mark.parametrize(
    ("short", "long", "uneven"),
    [
        (loading(0, 1, 24, exhausted=True, last=24), loading(1, 1, 25), True),
        (loading(0, 1, 24, exhausted=True, last=24), loading(1, 1, 24), False),  # it is in its last batch
        (loading(0, 1, 24), loading(1, 1, 25), False),  # neither has come to its end
        (loading(0, 2, 1, last=24), loading(1, 1, 25), True),  # it is in the next pass
        (loading(0, 2, 1, last=24), loading(1, 2, 1, last=25), False),  # both are: that was settled
        (loading(0, 1, 24, exhausted=True, last=24), loading(1, 1, 25, exhausted=True, last=25), False),
        (loading(0, 1, 0, exhausted=True), loading(1, 1, 25), False),  # an empty loader is another program
        (loading(0, 3, 1, last=24), loading(1, 1, 25), False),  # what was drawn two passes ago is forgotten
    ],
)
def test_who_ran_out_of_data_drew_fewer_batches_of_one_pass(short: RankView, long: RankView, uneven: bool):
    found = uneven_counts({0: short, 1: long}, (0,), (1,))
    assert found == ({0: 24, 1: 25} if uneven else None)


def test_loaders_at_two_lines_are_not_compared():
    elsewhere = replace(loading(1, 1, 25).loaders[0], site=at(11))
    views = {0: loading(0, 1, 24, exhausted=True, last=24), 1: replace(view(1), loaders=(elsewhere,))}
    assert uneven_counts(views, (0,), (1,)) is None


def test_ranks_that_are_still_in_a_pass_keep_open_whether_most_run_out_in_it():
    ended = {number: loading(number, 1, 24, exhausted=True, last=24) for number in (0, 1, 2)}
    drawing = {number: loading(number, 1, 24) for number in (4, 5)}
    views = ended | {3: loading(3, 1, 25)} | drawing
    assert odd_in_pass(views, (0,), (3,)) == (0, 3)
    assert odd_in_pass(ended | {3: views[3]}, (0,), (3,)) == (3,)


# -- callers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "theirs", "callers"),
    [
        ((at(44), at(60)), (at(44), at(70)), (at(60), at(70))),
        ((at(44), at(60)), (at(44), at(60)), None),
        ((at(44), at(60)), (at(45), at(70)), None),
        ((at(44), at(60)), (), None),
        ((at(44), at(60), at(9)), (at(44), at(60), at(8)), (at(9), at(8))),
    ],
)
def test_callers_are_told_where_two_sides_stand_in_one_helper(
    mine: tuple[CallSite, ...], theirs: tuple[CallSite, ...], callers: tuple[CallSite, CallSite] | None
):
    views = {0: replace(view(0), routes=(mine,)), 1: replace(view(1), routes=(theirs,) if theirs else ())}
    assert parted_callers(views, side(0, route=1), side(1, route=1)) == callers


# -- why they parted -------------------------------------------------------------------------------


def loop_note(line: int) -> SourceNote:
    return SourceNote(site=at(line), text="...", loop="for batch in reader", loop_lines=(40, 50))


def left_the_loop(mine: int, theirs: int) -> Way:
    """Return how they parted where rank 2 stands behind a loop that two are in, by the forwards each side has run."""
    views = {number: rank(number, sources=(loop_note(44),)) for number in (0, 1)} | {2: rank(2)}
    sides = side(0, 1, forwards=theirs), side(2, line=90, op=Op.BARRIER, forwards=mine)
    found = part(views, sides, among(0, 1, 2))
    assert found.culprit.ranks == (2,)
    return found.way


@pytest.mark.parametrize(
    ("mine", "theirs", "way"),
    [
        (8, 9, Way.LOOP_ENDED),
        (0, 9, Way.LOOP_ENDED),  # not counted there
        (8, 0, Way.LOOP_ENDED),
        (9, 9, Way.LOOP_LEFT),
        (10, 9, Way.LOOP_LEFT),
    ],
)
def test_who_left_a_loop_had_fewer_batches_only_if_it_has_done_less(mine: int, theirs: int, way: Way):
    assert left_the_loop(mine, theirs) is way


@pytest.mark.parametrize(
    ("mine", "theirs", "label", "forwards"),
    [
        (5, 5, "gradient bucket 0 (fc.weight)", 5),
        (6, 5, "gradient bucket 0 (fc.weight)", 0),  # that is a forward more, not a bucket less
        (0, 0, "gradient bucket 0 (fc.weight)", 0),
        (1, 1, "gradient bucket 0 (fc.weight)", 1),
        (5, 5, "", 0),
    ],
)
def test_who_went_on_from_a_backward_that_the_others_are_in_had_less_to_reduce(
    mine: int, theirs: int, label: str, forwards: int
):
    views = {number: rank(number) for number in range(3)}
    sides = side(0, 1, forwards=theirs, label=label), side(2, line=90, op=Op.BARRIER, forwards=mine)
    assert part(views, sides, among(0, 1, 2)).forwards == forwards


def test_two_sides_of_equal_size_that_nothing_tells_apart_are_not_told_apart():
    found = part({0: rank(0), 1: rank(1)}, (side(0), side(1, line=44, numel=7)), among(0, 1))
    assert not found.decided
    assert found.way is Way.ARGUMENTS


def test_two_of_three_are_a_majority_unless_there_may_be_one_more():
    views = {number: rank(number) for number in range(3)}
    sides = side(0, 1), side(2, line=44, numel=7)
    assert part(views, sides, among(0, 1, 2)).culprit.ranks == (2,)
    assert part(views, sides, among(0, 1, 2)).decided
    assert not part(views, sides, among(0, 1, 2, unnamed=1)).decided


def test_three_sides_have_no_majority_of_two():
    views = {number: rank(number) for number in range(5)}
    found = part(views, (side(0, 1, 2), side(3, line=50), side(4, line=60)), among(*range(5)))
    assert not found.decided


# -- in a tie --------------------------------------------------------------------------------------


def test_of_two_sides_that_come_by_a_new_caller_the_one_departs_that_changes_the_order():
    """All collectives go through two helpers; now another function calls them, on both sides."""
    made = tuple(op(seq, 44 if seq % 2 else 50, route=1) for seq in range(1, 9))
    views = {number: replace(view(number), history=made) for number in (0, 1)}
    sides = side(0, line=44, route=2), side(1, line=50, route=2)
    found = odd_side(views, sides, None)
    assert (found.side.ranks, found.sign) == ((1,), Sign.DEPARTS)
    as_ever = side(0, line=44, route=1), sides[1]
    assert odd_side(views, as_ever, None).sign is Sign.NONE, "rank 0 may have left out what the new caller does"


def test_where_two_fell_out_of_step_before_the_calls_that_they_hang_in_do_not_tell_who_did():
    made = tuple(op(seq, 44 if seq % 2 else 50, route=1) for seq in range(1, 9))
    views = {number: replace(view(number), history=made) for number in (0, 1)}
    sides = side(0, line=44, route=2), side(1, line=50, route=2)
    slip = Slip(ranks=(1,), group="dp", seq=3, offset=1, clock="batch", value=3, decided=False)
    assert odd_side(views, sides, None).sign is Sign.DEPARTS
    assert odd_side(views, sides, slip).sign is Sign.NONE


def trained(number: int, reduced: Sequence[int]) -> RankView:
    """Return a rank that has reduced the gradients of these forward passes."""
    ops = (op(seq, 54, forwards=count, label=GRADIENT_BUCKET) for seq, count in enumerate(reduced, 1))
    return replace(view(number), history=tuple(ops))


@pytest.mark.parametrize(
    ("reduced", "forwards", "odd"),
    [
        ((1, 2, 3), 4, (1,)),
        ((1, 2, 3, 4), 4, ()),  # it has been through that backward
        ((2, 3), 4, ()),  # it has been through two before: that makes no habit
        ((1, 2), 4, ()),  # it runs forward passes without a backward: of an evaluation, perhaps
        ((1, 2, 3), 3, ()),  # the others are one forward further
    ],
)
def test_who_left_out_the_backward_of_its_last_forward_is_the_odd_side(
    reduced: tuple[int, ...], forwards: int, odd: tuple[int, ...]
):
    views = {0: trained(0, (1, 2, 3)), 1: trained(1, reduced)}
    sides = side(0, line=54, forwards=4, label=GRADIENT_BUCKET), side(1, line=73, op=Op.BARRIER, forwards=forwards)
    found = odd_side(views, sides, None)
    assert (found.side.ranks if found.sign is Sign.BACKWARD_LEFT else ()) == odd
