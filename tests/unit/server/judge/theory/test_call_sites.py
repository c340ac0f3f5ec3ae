"""What source lines say about why ranks parted: whose test, whose loop, by which way."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import CallSite, Op, OpView, RankView, SourceNote, ThreadView
from ncclwatch_server.judge.theory.histories.lines.call_sites import (
    FRAMES_MAX,
    frames_of,
    is_of_an_axis,
    is_way_out,
    left_by_rank,
    loop_left,
    rank_condition,
    route_of,
    same_call_elsewhere,
    ways_past,
)
from tests.unit.server.server_values import view


def at(line: int, function: str = "train", file: str = "/u/train.py") -> CallSite:
    return CallSite(file=file, line=line, function=function)


CALL, ONE, OTHER = at(44, "reduce"), at(60, "main"), at(90, "main")


def standing(*frames: CallSite, notes: tuple[SourceNote, ...] = ()) -> RankView:
    """Return a rank that stands in these frames, innermost first."""
    thread = ThreadView(tid=1, main=True, issued=1, frames=frames)
    return replace(view(0), threads=(thread,), sources=notes)


def note(site: CallSite, **changes: object) -> SourceNote:
    return replace(SourceNote(site=site, text="..."), **changes)  # type: ignore[arg-type]


def made(route: int) -> OpView:
    return OpView(group="dp", seq=1, op=Op.ALL_REDUCE, site=CALL, route=route)


# -- by which way a call was reached ---------------------------------------------------------------


@pytest.mark.parametrize(("route", "way"), [(0, ()), (1, (CALL, ONE)), (2, (CALL, OTHER)), (3, ())])
def test_the_callers_of_an_operation_are_those_of_its_own_way(route: int, way: tuple[CallSite, ...]):
    assert route_of(replace(view(0), routes=((CALL, ONE), (CALL, OTHER))), made(route)) == way


def test_a_call_without_a_line_has_no_callers():
    assert frames_of(standing(CALL, ONE), None) == ()


def test_who_stands_in_a_call_is_asked_for_its_callers():
    assert frames_of(standing(at(3, "wait"), CALL, ONE), CALL) == (CALL, ONE)


def test_who_stands_there_by_another_way_is_not_asked():
    assert frames_of(standing(CALL, ONE), CALL, (CALL, OTHER)) == (CALL, OTHER)


def test_who_stands_elsewhere_has_the_callers_of_its_newest_call_from_that_line():
    ways = ((CALL, ONE), (CALL, OTHER))
    elsewhere = replace(standing(at(5, "validate")), routes=ways, history=(made(1), made(2), made(0)))
    assert frames_of(elsewhere, CALL) == (CALL, OTHER)
    assert frames_of(elsewhere, at(45, "reduce")) == (at(45, "reduce"),)


def test_a_host_that_has_run_ahead_within_a_function_has_the_same_callers():
    ahead = standing(at(3, "item"), at(48, "reduce"), ONE)
    assert frames_of(ahead, CALL) == (CALL, ONE)
    assert frames_of(standing(at(48, "reduce", "/u/other.py"), ONE), CALL) == (CALL,)


def test_deep_stacks_are_cut():
    deep = tuple(at(line) for line in range(1, FRAMES_MAX + 4))
    assert frames_of(standing(*deep), deep[0]) == deep[:FRAMES_MAX]
    assert frames_of(standing(*deep), deep[0], deep) == deep[:FRAMES_MAX]


# -- tests of the rank -----------------------------------------------------------------------------


def test_the_innermost_test_of_the_rank_decides():
    outer, inner = note(ONE, condition="if rank == 0"), note(CALL, condition="if rank < 2")
    assert rank_condition(standing(CALL, ONE, notes=(outer, inner)), CALL, "barrier") == inner
    assert rank_condition(standing(CALL, ONE, notes=(outer, note(CALL))), CALL, "barrier") == outer
    assert rank_condition(standing(CALL, ONE, notes=(note(CALL),)), CALL, "barrier") is None


def test_a_test_whose_other_branch_makes_the_same_call_makes_it_one_sided_for_nobody():
    both = note(CALL, condition="if rank == 0", other_branch_ops=("dist.all_reduce",))
    assert rank_condition(standing(CALL, notes=(both,)), CALL, "all_reduce") is None
    assert rank_condition(standing(CALL, notes=(both,)), CALL, "barrier") == both


@pytest.mark.parametrize(
    ("calls", "same"),
    [(("dist.all_reduce",), True), (("fabric.AllReduce",), True), (("dist.barrier",), False), ((), False)],
)
def test_the_same_call_is_known_by_other_spellings(calls: tuple[str, ...], same: bool):
    assert same_call_elsewhere(note(CALL, other_branch_ops=calls), "all_reduce") is same


def test_who_left_a_function_at_a_test_of_the_rank_is_told_unless_it_is_in_it_still():
    here = standing(CALL, ONE, notes=(note(CALL, rank_exit="41: if rank: return"),))
    assert left_by_rank(here, CALL, standing(ONE), ONE) == "reduce(): 41: if rank: return"
    assert left_by_rank(here, CALL, standing(at(46, "reduce"), ONE), ONE) == ""
    assert left_by_rank(here, CALL, standing(at(46, "reduce", "/u/b.py"), ONE), ONE) != ""  # another one
    assert left_by_rank(standing(CALL, ONE), CALL, standing(ONE), ONE) == ""


def test_nothing_is_left_by_who_is_seen_out_to_no_common_function():
    here = standing(CALL, ONE, notes=(note(CALL, rank_exit="41: if rank: return", **LOOP),))
    handler = at(9, "save", "/u/handlers.py")
    assert left_by_rank(here, CALL, standing(handler), handler) == ""
    assert loop_left(here, CALL, standing(handler), handler) is None
    assert loop_left(here, CALL, standing(handler, ONE), handler) is not None


# -- loops -----------------------------------------------------------------------------------------

LOOP = {"loop": "for batch in loader", "loop_lines": (40, 50)}


@pytest.mark.parametrize(
    ("other", "left"),
    [
        (at(39, "reduce"), True),
        (at(40, "reduce"), False),
        (at(50, "reduce"), False),
        (at(51, "reduce"), True),
        (at(45, "reduce", "/u/eval.py"), True),
    ],
)
def test_a_loop_is_left_by_who_stands_before_or_behind_its_lines(other: CallSite, left: bool):
    found = loop_left(standing(CALL, notes=(note(CALL, **LOOP),)), CALL, standing(other), other)
    assert (found is not None) is left


def test_the_outermost_loop_that_was_left_is_the_one_that_is_told():
    inner = note(CALL, **LOOP)
    outer = note(ONE, loop="for epoch in epochs", loop_lines=(55, 65))
    here = standing(CALL, ONE, notes=(inner, outer))
    elsewhere, in_the_epoch = at(80), at(58, "main")
    assert loop_left(here, CALL, standing(elsewhere), elsewhere).head == "for epoch in epochs"
    assert loop_left(here, CALL, standing(in_the_epoch), in_the_epoch).head == "for batch in loader"


@pytest.mark.parametrize(
    ("line", "changes", "ways_out"),
    [
        (44, {}, ()),
        (44, {"loop_escapes": ("42: if bad: break",)}, ("42: if bad: break",)),
        # What a function leaves before its own loop is no way out of that; the loop of its only caller goes round it.
        (40, {"early_exits": ("38: if bad: return",)}, ()),
        (50, {"early_exits": ("38: if bad: return",)}, ()),
        (39, {"early_exits": ("38: if bad: return",)}, ("38: if bad: return",)),
        (51, {"early_exits": ("38: if bad: return",)}, ("38: if bad: return",)),
    ],
)
def test_the_ways_out_of_a_loop_are_those_that_a_rank_takes_on_its_own(
    line: int, changes: dict[str, object], ways_out: tuple[str, ...]
):
    call = at(line, "reduce")
    found = loop_left(standing(call, notes=(note(call, **LOOP, **changes),)), call, standing(at(90)), at(90))
    assert found is not None
    assert found.ways_out == ways_out
    assert found.ends_by_itself is (ways_out == ())


@pytest.mark.parametrize(
    ("head", "ends"), [("for x in y", True), ("async for x in y", True), ("while True", False), ("", False)]
)
def test_only_a_loop_over_a_sequence_ends_by_itself(head: str, ends: bool):
    here = standing(CALL, notes=(note(CALL, loop=head or "while x", loop_lines=(40, 50)),))
    found = loop_left(here, CALL, standing(OTHER), OTHER)
    assert found is not None
    assert found.ends_by_itself is ends


@pytest.mark.parametrize(("way", "told"), [("43: if bad: continue", True), ("44: x", False), ("45: y", False)])
def test_only_what_comes_before_a_call_leads_past_it_and_is_told_once(way: str, told: bool):
    here = standing(CALL, notes=(note(CALL, loop_escapes=(way,), early_exits=(way,)),))
    assert ways_past(here, CALL) == ((way,) if told else ())


def test_a_way_without_a_line_is_told_all_the_same():
    assert ways_past(standing(CALL, notes=(note(CALL, early_exits=("if bad: return",)),)), CALL) == ("if bad: return",)


@pytest.mark.parametrize(
    ("condition", "several"),
    [
        ("if rank == 0", False),
        ("if dist.get_rank() == 0", False),
        ("if accelerator.is_main_process", False),
        ("if local_rank == 0", True),
        ("if mpu.get_data_parallel_rank() == 0", True),
        ("if self.dp_rank == 0", True),
        ("if args.node_rank == 0 and step % 10 == 0", True),
        ("if tp_group.rank() == 0", True),
        ("if help_rank == 0", False),
    ],
)
def test_a_test_of_a_place_on_an_axis_is_passed_by_several_ranks(condition: str, several: bool):
    assert is_of_an_axis(condition) is several


@pytest.mark.parametrize(
    ("condition", "leaves"),
    [
        ("if rank == 1: break", True),
        ("if rank != 0, else: return", True),
        ("if rank != 0: continue", False),
        ("if rank == 0", False),
        ("", False),
    ],
)
def test_a_way_out_is_taken_by_those_who_leave_before_the_call(condition: str, leaves: bool):
    assert is_way_out(note(CALL, condition=condition)) is leaves


def test_where_no_source_is_known_nobody_leaves():
    assert not is_way_out(None)
