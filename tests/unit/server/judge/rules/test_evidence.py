"""What a verdict tells besides its sentences: the facts it rests on, and what holds a culprit."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import ProcessState, StackDump, StackFrame
from ncclwatch.contract.model.verdict import Verdict
from ncclwatch_server.judge import judge
from tests.scenarios.situation import Situation


def told(*lines: str) -> Situation:
    situation = Situation()
    for line in lines:
        situation.run(line)
    return situation


def judged(situation: Situation) -> Verdict:
    (verdict,) = judge(situation.snapshot())
    return verdict


@pytest.mark.parametrize(
    ("contact", "fact"),
    [
        ("mute 60", "node1 reported last 80 s ago; its kernel has acknowledged nothing for 60 s"),
        ("closed 79", "node1 reported last 80 s ago; its connection was closed 79 s ago"),
        ("acknowledges 1", "node1 reported last 80 s ago; its kernel acknowledges what is sent"),
        ("", "node1 reported last 80 s ago"),
    ],
)
def test_the_evidence_for_a_lost_node_is_what_is_seen_of_its_connection(contact: str, fact: str):
    verdict = judged(
        told(
            "world 4 hosts 2",
            "group dp 0-3",
            "history 0-1 dp#1-6 all_reduce train.py:44 ago 81",
            "in 0-1 dp#7 all_reduce train.py:44 for 79",
            f"silent 2-3 for 80 {contact}",
        )
    )
    assert [each.fact for each in verdict.evidence if each.source == "agent"] == [fact]


@pytest.mark.parametrize(("state", "traced"), [(ProcessState.TRACED, True), (ProcessState.STOPPED, False)])
def test_a_culprit_that_a_debugger_holds_is_marked(state: ProcessState, traced: bool):
    situation = told("world 2", "group dp 0-1", "in 0 dp#7 all_reduce train.py:44 for 60", "stopped 1 for 59")
    view = situation.ranks[1]
    situation.ranks[1] = replace(view, process=replace(view.process, state=state))
    assert [each.traced for each in judged(situation).culprits] == [traced]


def test_of_other_threads_the_first_line_of_the_users_own_is_told_and_none_without_one():
    situation = told(
        "world 2",
        "group dp 0-1",
        "history 0-1 dp#1-20 all_reduce train.py:12:main",
        "ended 0 exit 0 ago 25",
        "at 1 train.py:30:main still 24",
        'standing 1 "_shutdown /usr/lib/python3.11/threading.py:1583"',
    )
    wait = StackFrame(function="wait", file="/usr/lib/python3.11/threading.py", line=327)
    own = StackFrame(function="upload", file="/home/me/saver.py", line=12)
    threads = (("MainThread", (own,)), ("saver", (wait, own)), ("pin_memory", (wait,)))
    situation.stacks[1] = StackDump(rank=1, threads=threads)
    assert judged(situation).explanation.endswith("Its other threads: saver at saver.py:12 in upload().")


def test_of_a_rank_that_is_waited_for_it_is_shown_for_how_long_its_process_and_its_stack_stood_still():
    situation = told(
        "world 2",
        "group dp 0-1",
        "history 0-1 dp#1-6 all_reduce train.py:44",
        "in 0 dp#7 all_reduce train.py:44 for 60",
        "at 1 data.py:12:read still 59",
        "sampled 1 same 50 in read",
    )
    of_culprit = [each.fact for each in judged(situation).evidence if each.rank == 1]
    assert "no CPU for 59 s, no I/O for 59 s" in of_culprit[0]
    assert of_culprit[1].startswith("innermost frame read") and of_culprit[1].endswith("the same for 50 s")


def test_of_a_process_that_was_never_seen_idle_it_is_not_said_that_it_is():
    situation = told(
        "world 2",
        "group dp 0-1",
        "history 0-1 dp#1-6 all_reduce train.py:44",
        "in 0 dp#7 all_reduce train.py:44 for 60",
        "disk 1 data.py:12:read for 59",
    )
    view = situation.ranks[1]
    situation.ranks[1] = replace(view, process=replace(view.process, cpu_still_s=0.0, io_still_s=0.0))
    (fact,) = [each.fact for each in judged(situation).evidence if each.rank == 1 and each.source == "proc"]
    assert fact.endswith("CPU in use or unknown, I/O in use or unknown")


@pytest.mark.parametrize(
    ("culprit", "others", "told_of"),
    [
        ((20,), (10, 10), "Optimizer steps so far: rank 2: 20, ranks 0-1: 10."),
        ((12,), (10, 10), "Optimizer steps so far: rank 2: 12, ranks 0-1: 10."),
        ((11,), (10, 10), ""),
        ((0,), (10, 10), ""),
        ((20,), (10, 11), ""),
    ],
    ids=["differ", "just differ", "within a step", "uncounted", "others differ"],
)
def test_optimizer_steps_of_two_sides_are_told_where_they_differ_by_more_than_one(
    culprit: tuple[int], others: tuple[int, int], told_of: str
):
    verdict = judged(
        told(
            "world 3",
            "group dp 0-2",
            *(f"steps {rank} {count}" for rank, count in enumerate((*others, *culprit))),
            "history 0-2 dp#1-6 all_reduce train.py:44",
            "in 0,1 dp#7 all_reduce train.py:44 for 9",
            "in 2 dp#7 barrier train.py:52 for 9",
        )
    )
    assert ("Optimizer steps" in verdict.explanation) is bool(told_of)
    assert told_of in verdict.explanation
