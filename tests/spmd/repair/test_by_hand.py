"""Programs written by hand in which a rank that did nothing wrong is easily blamed: roles, facts, two ranks."""

from collections.abc import Callable

import pytest

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.verdict import Cause, Verdict
from tests.scenarios.texts import situation
from tests.spmd.repair import roles
from tests.spmd.repair.by_hand import Part, carried_out, critical, seen

HALVES = [(0, 1), (2, 3)]
TP = """
world 4
group dp 0-3
group tpa 0-1
group tpb 2-3
history 0-1 tpa#1-10 all_reduce tp.py:10
history 2-3 tpb#1-10 all_reduce tp.py:10
history 0-3 dp#1-10 all_reduce train.py:44
in 0 tpa#11 all_reduce tp.py:20 for 9
in 1-3 dp#11 barrier train.py:80 for 9
"""


def said(snapshot: JobSnapshot) -> Verdict:
    (verdict,) = critical(snapshot)
    return verdict


def names_no_innocent(snapshot: JobSnapshot, wrong: int) -> bool:
    """Say whether the rank that is wrong is named, alone or as one of several."""
    verdict = said(snapshot)
    culprits = {each.rank for each in verdict.culprits}
    return wrong in culprits and (verdict.one_of or culprits == {wrong})


def test_a_swallowed_exception_is_not_overruled() -> None:
    """Replica 0 evaluates by design; rank 1 of it swallowed an error and skipped. The rule alone names rank 1."""
    found = said(situation(TP + 'handling 1 "RuntimeError: out of memory"\n').snapshot())
    assert (found.cause, [c.rank for c in found.culprits]) == (Cause.SWALLOWED_EXCEPTION, [1])


def test_a_loader_that_ran_out_is_not_overruled() -> None:
    text = TP + "loader 1 train.py:40 pass 1 drawn 10 exhausted\nloader 0,2,3 train.py:40 pass 1 drawn 11\n"
    found = said(situation(text).snapshot())
    assert (found.cause, [c.rank for c in found.culprits]) == (Cause.UNEVEN_BATCHES, [1])


def test_exceptions_that_most_ranks_swallowed_are_not_overruled() -> None:
    text = """
world 4
group dp 0-3
history 0-3 dp#1-6 all_reduce train.py:44
in 0 dp#7 all_reduce train.py:44 for 4
in 1-3 dp#7 barrier train.py:80 for 4
handling 1-3 "RuntimeError: out of memory"
"""
    found = said(situation(text).snapshot())
    assert (found.cause, [c.rank for c in found.culprits]) == (Cause.SWALLOWED_EXCEPTION, [1, 2, 3])


def test_two_threads_of_each_rank_that_race_are_not_one_call_too_many() -> None:
    """As mismatch_of_two_threads.txt, with one rank more."""
    text = """
world 3
group dp 0-2
names 0-2 MainThread saver
history 0-2 dp#1-4 all_reduce train.py:44
history 0-2 dp#5-5 all_gather save.py:10 thread=2
in 0-1 dp#6 all_reduce train.py:44 for 4
in 2 dp#6 all_gather save.py:10 for 4 thread=2
"""
    found = said(situation(text).snapshot())
    assert (found.cause, found.one_of) == (Cause.COLLECTIVE_ORDER, True)


def test_a_rank_that_ended_well_is_not_to_blame_for_a_call_under_a_test_that_leaves_it_out() -> None:
    text = """
world 4
group dp 0-3
history 0-3 dp#1-9 all_reduce train.py:44
source 0-3 train.py:60 if "rank < 3"
in 0-2 dp#10 barrier train.py:60 for 4
ended 3 exit 0
"""
    assert said(situation(text).snapshot()).cause is Cause.RANK_CONDITIONAL_COLLECTIVE


def replica_evaluates(steps: int) -> Callable[[Part], None]:
    def program(rank: Part) -> None:
        tp = "1" if rank.rank < 2 else "2"
        for _ in range(steps):
            rank.work()
            rank.call(20, group=tp)
            rank.call(21, numel=1000)
        if rank.rank < 2:  # replica 0 evaluates, by design
            rank.work()
            if rank.rank != 1:  # the fault: rank 1 returns early
                rank.call(30, group=tp, numel=1)
        rank.work()
        rank.call(40, "barrier")

    return program


@pytest.mark.parametrize(("steps", "history"), [(5, None), (100, 50)], ids=["whole", "rings that forgot"])
def test_one_replica_evaluates_and_its_second_rank_skips_a_call(steps: int, history: int | None) -> None:
    assert names_no_innocent(seen(carried_out(4, HALVES, replica_evaluates(steps)), history), wrong=1)


def test_the_last_stage_forgets_to_send_its_loss_to_the_first() -> None:
    def program(rank: Part) -> None:
        for _ in range(5):
            for _ in range(2):
                if rank.rank > 0:
                    rank.recv(20, rank.rank - 1)
                if rank.rank < 3:
                    rank.send(21, rank.rank + 1)
            rank.call(22)
        if rank.rank == 0:
            rank.recv(30, 3)  # at the first log only; rank 3 does not send
        rank.call(32, "barrier")

    assert names_no_innocent(seen(carried_out(4, [], program)), wrong=3)


def test_one_line_calls_in_each_of_a_list_of_groups_and_rank_3_leaves_one_out() -> None:
    def program(rank: Part) -> None:
        groups = (["1"] if rank.rank < 2 else ["2"]) + (["3"] if rank.rank in (0, 3) else [])
        for _ in range(3):
            rank.call(19)
        for group in groups:
            if (rank.rank, group) != (3, "3"):  # the fault
                rank.call(20, group=group)
        rank.call(30, "barrier")

    assert names_no_innocent(seen(carried_out(4, [*HALVES, (0, 3)], program)), wrong=3)


def test_a_group_does_something_of_its_own_first_and_one_of_it_skips_that() -> None:
    """Three calls in all: stage 0 (0-1) has a call that stage 1 (2-3) has not, and rank 0 leaves it out."""

    def program(rank: Part) -> None:
        mine = "1" if rank.rank < 2 else "2"
        if rank.rank == 1:  # by design rank 0, too
            rank.call(22, group=mine)
        rank.call(26, group=mine, numel=10)
        rank.call(900, "barrier")

    assert names_no_innocent(seen(carried_out(4, HALVES, program)), wrong=0)


def test_a_call_that_comes_after_a_skipped_one_is_not_one_too_many() -> None:
    """All others will make all_gather, too: rank 1 left out the call before it."""

    def program(rank: Part) -> None:
        rank.call(10, numel=5)
        if rank.rank != 1:
            rank.call(20, numel=7)
        rank.call(21, "all_gather")
        rank.call(22, "barrier")

    assert "Without all_gather" not in said(seen(carried_out(4, [], program))).explanation


@pytest.mark.parametrize("first", [20041, 20891])
def test_in_random_programs_with_roles_no_innocent_rank_is_named(first: int) -> None:
    said_of = {seed: tuple(roles.judged(roles.draw(seed))) for seed in range(first, first + 30)}
    assert [seed for seed, both in said_of.items() if {"WRONG", "one of others"} & {*both}] == []


@pytest.mark.parametrize("seed", [20108, 20118, 20265, 20519])
def test_a_rule_that_compares_calls_only_is_not_certain_where_the_repair_names_others_too(seed: int) -> None:
    """The rule alone names an innocent rank: of pairs that wait for each other in the order of their calls."""
    assert {"WRONG", "one of others"}.isdisjoint(roles.judged(roles.draw(seed)))
