"""What the judge says of hangs of random programs with one changed rank: it is that rank, or one of several."""

import pytest

from ncclwatch.contract.model.verdict import Cause, Severity, Verdict
from ncclwatch_server.judge import judge
from tests.spmd import views
from tests.spmd.check import settled_s
from tests.spmd.repair.measure import Changed, carried_out, draw
from tests.spmd.views import Sight

FIRST, PROGRAMS = 7_000_001, 400


def told(changed: Changed) -> tuple[Verdict, ...]:
    run = carried_out(changed)
    found = judge(views.snapshot(run, Sight(settled_s(run))))
    return tuple(verdict for verdict in found if verdict.severity is Severity.CRITICAL)


def drawn(seed: int) -> Changed:
    changed = draw(seed)
    assert changed is not None
    return changed


@pytest.fixture(scope="module")
def judged() -> list[tuple[Changed, Verdict]]:
    found = (draw(seed) for seed in range(FIRST, FIRST + PROGRAMS))
    return [(changed, verdict) for changed in found if changed is not None for verdict in told(changed)]


def test_no_rank_is_named_alone_that_was_not_changed(judged: list[tuple[Changed, Verdict]]) -> None:
    wrong = [
        changed.seed
        for changed, verdict in judged
        if not verdict.one_of and {each.rank for each in verdict.culprits} != set(changed.fault.ranks)
    ]
    assert not wrong


def test_the_changed_rank_is_always_among_those_that_are_named(judged: list[tuple[Changed, Verdict]]) -> None:
    assert all({each.rank for each in verdict.culprits} >= set(changed.fault.ranks) for changed, verdict in judged)


def may_be_left_out_by_the_other(changed: Changed, verdict: Verdict) -> bool:
    """Say whether a call may be one too many of a rank, or left out by the only other one that it needs."""
    groups = changed.program.groups
    calls = [call for repair in verdict.repairs if repair.change == "leave out" for call in repair.made[:1]]
    return any(len(groups[call.group]) == 2 or call.op in ("send", "recv") for call in calls)


def test_of_three_ranks_and_more_nearly_all_changed_ranks_are_named_alone(
    judged: list[tuple[Changed, Verdict]],
) -> None:
    alone = [
        not verdict.one_of
        for changed, verdict in judged
        if changed.program.world > 2 and not may_be_left_out_by_the_other(changed, verdict)
    ]
    assert len(alone) > 200
    assert sum(alone) >= 0.9 * len(alone)


def test_the_sentence_says_what_was_skipped_and_what_would_have_been() -> None:
    (verdict,) = told(drawn(7_000_005))
    assert verdict.cause is Cause.DIVERGENT_CONTROL_FLOW
    assert verdict.summary.startswith("rank 1 skipped all_to_all of group 1 (ranks 1,4,7) at train.py:47; ")
    assert "ran the same code did not do so." in verdict.explanation
    assert verdict.explanation.endswith("on rank 1, ranks 0,2-7 would have continued.")
    (repair,) = verdict.repairs
    assert (repair.rank, repair.change, [call.op for call in repair.missing]) == (1, "put in", ["all_to_all"])


def test_of_two_ranks_without_a_routine_it_is_one_of_both() -> None:
    (verdict,) = told(drawn(7_002_794))
    assert verdict.one_of
    assert [each.rank for each in verdict.culprits] == [each.rank for each in verdict.repairs] == [0, 1]
    assert verdict.summary.startswith("one of ranks 0-1 is the cause: ")
