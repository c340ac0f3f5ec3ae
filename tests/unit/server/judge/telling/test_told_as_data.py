"""What a verdict tells as data, beside its sentences: places, waits, and what a culprit is under."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import CallSite, ProcessState, SourceNote
from ncclwatch.contract.model.verdict import Cause, Verdict
from ncclwatch_server.judge import judge
from ncclwatch_server.judge.telling.evidence import culprit
from ncclwatch_server.judge.theory.histories.lines.call_sites import source_line
from tests.scenarios.texts import situation
from tests.unit.server.server_values import view

CALL = CallSite(file="/u/train.py", line=44, function="step")


def said(text: str) -> Verdict:
    (verdict,) = judge(situation(text).snapshot())
    return verdict


@pytest.mark.parametrize(("state", "traced"), [(ProcessState.TRACED, True), (ProcessState.STOPPED, False)])
def test_a_culprit_that_a_debugger_holds_is_marked_as_such(state: ProcessState, traced: bool):
    held = replace(view(1), process=replace(view(1).process, state=state))
    assert culprit(held, CALL, "stopped").traced is traced


def test_where_all_have_entered_they_wait_for_the_one_that_holds_it_up_from_inside():
    verdict = said(
        """
        world 3
        group dp 0-2
        in 0-2 dp#5 all_reduce train.py:44 for 20
        stopped 1 for 20
        """
    )
    assert [each.rank for each in verdict.culprits] == [1]
    assert {row.awaits for row in verdict.waiters} == {(1,)}


def test_a_deadlock_is_placed_where_a_culprit_of_it_waits():
    verdict = said(
        """
        world 3
        group pp 0-2
        recv 0 1#36 stage.py:20 for 4
        send 1 2#36 stage.py:30 for 4
        recv 2 0#1 stage.py:40 for 4
        """
    )
    assert verdict.cause is Cause.P2P_DEADLOCK
    assert [each.rank for each in verdict.culprits] == [0, 2]
    assert (verdict.op, verdict.seq) == ("recv", 36)


def test_the_line_of_a_call_is_told_as_the_first_node_that_has_read_it_does():
    noted = replace(view(1), sources=(SourceNote(site=CALL, text="dist.barrier()", condition="if rank == 0"),))
    assert source_line([view(0), noted], CALL) == "dist.barrier()  (under `if rank == 0`)"
    assert source_line([view(0), noted], None) == ""


def test_a_call_that_gloo_has_given_up_is_where_the_rank_that_made_it_alone_was():
    """Its ring counts it as over, so nobody waits any more."""
    verdict = said(
        """
        world 3
        group dp 0-2
        history 0-2 dp#1-20 all_reduce train.py:12:main
        history 0 dp#21-21 all_gather train.py:7:save
        source 0 train.py:7:save if "if rank == 0"
        ended 1-2 exit 0 ago 3
        ended 0 error "RuntimeError: Connection closed by peer" train.py:7:save ago 2.5
        """
    )
    assert [each.rank for each in verdict.culprits] == [0]
    assert (verdict.group, verdict.seq, verdict.op) == ("dp", 21, "all_gather")
