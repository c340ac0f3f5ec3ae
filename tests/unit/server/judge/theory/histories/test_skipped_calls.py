"""A rank that skipped or added calls long ago: what a shift needs before anybody is accused of one."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import CallSite, Op, OpView, RankView
from ncclwatch_server.judge.theory.histories.skipped_calls import SHIFT_MAX, Shift, find_shift
from tests.unit.server.server_values import view


def at(line: int) -> CallSite:
    return CallSite(file="/u/train.py", line=line, function="step")


def rank(number: int, *lines: int, first: int = 1, **changes: object) -> RankView:
    """Return a rank that made calls from these lines, the first of them with that number."""
    ops = tuple(
        OpView(group="dp", seq=seq, op=Op.ALL_REDUCE, site=at(line), numel=100) for seq, line in enumerate(lines, first)
    )
    return replace(view(number), **({"history": ops} | changes))  # type: ignore[arg-type]


def shift(*ranks: RankView) -> Shift | None:
    return find_shift({each.rank: each for each in ranks}, "dp", range(len(ranks)))


USUAL = (1, 2, 3, 4, 5, 6, 7, 8)
SKIPPED = (1, 2, 4, 5, 6, 7, 8, 9)  # without 3
ADDED = (1, 2, 9, 3, 4, 5, 6, 7)


def test_a_call_that_was_left_out_is_found_where_it_was():
    found = shift(rank(0, *USUAL), rank(1, *SKIPPED), rank(2, *USUAL))
    assert found is not None
    assert (found.ranks, found.seq, found.skipped, found.count, found.decided) == ((1,), 3, 1, 1, True)
    assert found.op.site == at(3)


def test_a_call_too_many_is_found_where_it_was():
    found = shift(rank(0, *USUAL), rank(1, *ADDED), rank(2, *USUAL))
    assert found is not None
    assert (found.ranks, found.seq, found.skipped, found.count, found.decided) == ((1,), 3, -1, 1, True)
    assert found.op.site == at(9)


def test_of_two_ranks_nobody_can_tell_who_skipped():
    found = shift(rank(0, *USUAL), rank(1, *SKIPPED))
    assert found is not None
    assert not found.decided
    other = found.seen_from((0,))
    assert (other.ranks, other.skipped) == ((0,), -1)
    assert found.seen_from((1, 5)) is found


def test_where_others_have_forgotten_their_calls_most_of_the_rest_do_not_decide():
    told = (rank(0, *ADDED), rank(1, *USUAL), rank(2, *ADDED), rank(3, *ADDED))
    found = shift(*told, rank(4, history=()))
    assert found is not None
    assert found.decided
    found = shift(*told, rank(4, history=()), rank(5, history=()))
    assert found is not None
    assert not found.decided


def test_a_line_that_nobody_knows_is_not_another_line():
    ops = [OpView(group="dp", seq=seq, op=Op.ALL_REDUCE, site=at(1), numel=100) for seq in range(1, 5)]
    unknown = (*ops[:2], replace(ops[2], site=None), ops[3])
    assert shift(rank(0, 1, 1, 1, 1), rank(1, history=unknown), rank(2, 1, 1, 1, 1)) is None


@pytest.mark.parametrize("odd", [USUAL, (1, 2, 9, 4, 5, 6, 7, 8), (9, *USUAL[:-1])])
def test_what_agrees_or_parts_in_one_branch_or_from_the_start_is_no_shift(odd: tuple[int, ...]):
    """In the last one they are out of step for as long as anybody remembers."""
    assert shift(rank(0, *USUAL), rank(1, *odd), rank(2, *USUAL)) is None


def test_three_ways_without_a_majority_accuse_nobody():
    assert shift(rank(0, *USUAL), rank(1, *USUAL), rank(2, *SKIPPED), rank(3, *ADDED)) is None
    found = shift(rank(0, *USUAL), rank(1, *USUAL), rank(2, *SKIPPED), rank(3, *ADDED), rank(4, *USUAL))
    assert found is not None
    assert found.decided


def test_two_against_two_are_no_majority():
    found = shift(rank(0, *USUAL), rank(1, *USUAL), rank(2, *SKIPPED), rank(3, *SKIPPED))
    assert found is not None
    assert (found.ranks, found.decided) == ((2, 3), False)


@pytest.mark.parametrize(("count", "found"), [(SHIFT_MAX, True), (SHIFT_MAX + 1, False)])
def test_many_calls_at_one_place_may_be_left_out(count: int, found: bool):
    everything = range(1, 90)
    some = [line for line in everything if not 3 <= line < 3 + count]
    assert (shift(rank(0, *everything), rank(1, *some), rank(2, *everything)) is not None) is found


def test_only_what_all_remember_is_compared():
    found = shift(rank(0, *USUAL), rank(1, *SKIPPED[1:], first=2), rank(2, *USUAL))
    assert found is not None
    assert found.seq == 3
    assert shift(rank(0, *USUAL), rank(1, *SKIPPED[2:], first=3), rank(2, *USUAL)) is None


def test_messages_other_groups_and_ranks_without_a_history_do_not_count():
    noise = (
        OpView(group="tp", seq=3, op=Op.ALL_REDUCE, site=at(70)),
        OpView(group="dp", seq=3, op=Op.SEND, site=at(71)),
    )
    noisy = rank(1, *USUAL)
    noisy = replace(noisy, history=(*noisy.history, *noise))
    assert shift(rank(0, *USUAL), noisy, rank(2)) is None
    assert shift(rank(0, *SKIPPED), rank(1)) is None


@pytest.mark.parametrize(("callers", "caller"), [((60,), None), ((60, 61), 60)])
def test_the_caller_is_told_where_one_function_has_several(callers: tuple[int, ...], caller: int | None):
    routes = tuple((at(3), at(line)) for line in callers)
    made = rank(0, *USUAL, routes=routes)
    made = replace(made, history=tuple(replace(op, route=int(op.site == at(3))) for op in made.history))
    found = shift(made, rank(1, *SKIPPED), replace(made, rank=2))
    assert found is not None
    assert found.caller == (at(caller) if caller else None)
    assert found.route == routes[0]


LAYERS = "abcd"
Call = tuple[Op, int, str]


def fsdp_step(without: str = "") -> list[Call]:
    """Return the collectives of a step as FSDP2 makes them, which prefetches the next layer in the backward.

    `without`: a layer that this rank leaves out.
    """
    layers = [layer for layer in LAYERS if layer != without]
    gathers = [(Op.ALL_GATHER, 40, layer) for layer in reversed(layers)]
    reduces = [(Op.REDUCE_SCATTER, 40, layer) for layer in reversed(layers)]
    backward = [gathers[0], *(call for pair in zip(gathers[1:], reduces, strict=False) for call in pair), reduces[-1]]
    return [(Op.ALL_GATHER, 22, layer) for layer in layers] + backward


def fsdp(number: int, *steps: list[Call], length: int = 0, named: bool = True) -> RankView:
    calls = [call for step in steps for call in step]
    ops = tuple(
        OpView(group="dp", seq=seq, op=op, site=at(line), numel=100, label=f"FSDP unit {layer}" if named else "")
        for seq, (op, line, layer) in enumerate(calls[: length or None], 1)
    )
    return replace(view(number), history=ops)


@pytest.mark.parametrize("named", [True, False])
def test_a_layer_that_was_left_out_once_is_three_calls_in_three_places(named: bool):
    step = fsdp_step()
    usual = [fsdp(number, *[step] * 6, named=named) for number in (0, 2)]
    found = shift(usual[0], fsdp(1, step, fsdp_step("c"), *[step] * 4, named=named), usual[1])
    assert found is not None
    assert (found.ranks, found.skipped, found.decided) == ((1,), 3, True), "not nine calls more"
    assert found.seq == len(step) + (3 if named else 4), "without names the others' call of the next layer is alike"
    assert (found.op.site, found.op.label) == (at(22), "FSDP unit c" if named else "")


def test_a_layer_that_the_others_left_out_once_is_three_calls_more():
    step = fsdp_step()
    short = [fsdp(number, step, fsdp_step("c"), *[step] * 4) for number in (0, 2)]
    found = shift(short[0], fsdp(1, *[step] * 6), short[1])
    assert found is not None
    assert (found.ranks, found.skipped) == ((1,), -3)


def test_calls_in_another_order_are_none_that_are_lacking():
    usual, swapped = (1, 2, 3, 4) * 5, (1, 2, 3, 4, 1, 3, 2, 4, *(1, 2, 3, 4) * 3)
    assert shift(rank(0, *usual), rank(1, *swapped), rank(2, *usual)) is None


def test_no_calls_are_lacking_while_fewer_agree_afterwards():
    """At the line of the third call the ranks are elsewhere, and what comes next is no proof."""
    assert shift(rank(0, 1, 2, 3, 4, 5, 6, 7), rank(1, 1, 2, 4, 6, 7), rank(2, 1, 2, 3, 4, 5, 6, 7)) is None
    assert shift(rank(0, *range(1, 12)), rank(1, 1, 2, 4, *range(6, 12)), rank(2, *range(1, 12))) is not None


def test_names_that_ranks_use_in_another_order_accuse_nobody():
    """Their calls pair without fault: nothing but the names differs."""
    usual = [fsdp(number, [(Op.ALL_GATHER, 22, name) for name in "wwwxyxyxyxyxy"]) for number in (0, 2)]
    found = shift(usual[0], fsdp(1, [(Op.ALL_GATHER, 22, name) for name in "wwwyxyxyxyxyx"]), usual[1])
    assert found is None or not found.decided


def test_many_calls_are_not_said_to_be_added_for_the_few_that_agree_afterwards():
    def step(without: int = -1) -> list[int]:
        layers = [layer for layer in (1, 2, 3, 4) if layer != without]
        return [*layers, *reversed(layers), 9]

    usual = [rank(number, 5, 6, *step() * 6) for number in (0, 2)]
    assert shift(usual[0], rank(1, 5, 6, *step() * 2, *step(3) * 4), usual[1]) is None


def test_names_that_differ_by_design_do_not_say_where_it_began():
    def named(number: int, who: str, *lines: int) -> RankView:
        ops = rank(number, *lines).history
        return replace(view(number), history=tuple(replace(op, label=f"FSDP unit {who}") for op in ops))

    found = shift(named(0, "a", *USUAL), named(1, "b", *SKIPPED), named(2, "a", *USUAL))
    assert found is not None
    assert (found.ranks, found.seq, found.skipped, found.op.site) == ((1,), 3, 1, at(3))


def test_a_call_left_out_after_a_branch_with_lines_of_its_own_is_found_where_it_was():
    """One rank alone is in the first branch, and leaves out a call later."""
    found = shift(rank(0, *USUAL, 9), rank(1, 1, 20, 3, 4, 6, 7, 8, 9, 10), rank(2, *USUAL, 9))
    assert found is not None
    assert (found.ranks, found.seq, found.skipped) == ((1,), 5, 1)
    assert found.op.site == at(5)
