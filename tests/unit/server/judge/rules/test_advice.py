"""What is advised names the call that has to be mended, and after a crash goes by how the rank ended."""

import pytest

from ncclwatch.contract.model.verdict import Cause, Verdict
from ncclwatch_server.judge import judge
from tests.scenarios.texts import FILES, read, situation


def told(text: str) -> Verdict:
    (found,) = judge(situation(text).snapshot())
    return found


PARTED = """
world 3
group dp 0-2
history 0-2 dp#1-6 all_reduce train.py:44
in 0,2 dp#7 all_reduce train.py:44 for 4
in 1 dp#7 all_gather train.py:50 for 4
"""


def test_where_the_others_make_their_call_under_a_test_that_call_is_to_be_moved() -> None:
    found = told(PARTED + 'source 0,2 train.py:44 if "rank != 1"')
    assert (found.cause, [each.rank for each in found.culprits]) == (Cause.RANK_CONDITIONAL_COLLECTIVE, [1])
    assert found.advice.startswith("Move all_reduce at train.py:44, which rank 1 left out, outside the if, so")


def test_where_a_call_of_the_culprit_is_under_a_test_that_one_is_to_be_moved() -> None:
    found = told(PARTED + 'source 1 train.py:50 text "log(loss)" if "rank == 1"')
    assert found.advice.startswith("Move the call at train.py:50, `log(loss)`, outside the if, so that all ranks")


@pytest.mark.parametrize("root", ["src=rank", "group_src=self.tp_rank", "src=dist.get_rank()"])
def test_a_call_whose_root_is_its_caller_is_to_get_one_root_when_it_is_moved(root: str) -> None:
    found = told(PARTED + f'source 1 train.py:50 text "dist.broadcast(x, {root})" if "step % world == rank"')
    name = root.partition("=")[0]
    assert f"outside the if, with one `{name}` for all ranks, so that all ranks of the group make it." in found.advice


def test_a_call_whose_root_is_one_for_all_keeps_it() -> None:
    found = told(PARTED + 'source 1 train.py:50 text "dist.broadcast(x, src=rank0)" if "rank == 1"')
    assert "outside the if, so that all ranks" in found.advice


def test_of_a_line_in_a_forward_both_are_said_for_it_need_not_run_that_forward() -> None:
    text = PARTED.replace("train.py:50 for 4", "train.py:50 for 4 module=model//DistributedDataParallel/train/grad")
    found = told(text + 'source 1 train.py:50 text "log(loss)" if "rank == 1"')
    assert found.advice.startswith("Move the call at train.py:50, `log(loss)`, outside the if")
    assert "If that line runs a forward: run that forward on all ranks or on none" in found.advice


def test_of_a_line_in_a_forward_that_made_a_call_too_many_long_ago_both_are_said_as_well() -> None:
    """Where its rank stands now is only what came of it."""
    text = """
    world 3
    group dp 0-2
    history 0-2 dp#1-5 all_reduce train.py:10:step
    history 0 dp#6 barrier log.py:30:log from=train.py:70:sample module=codec/quantize/Quantizer/train/no_grad
    history 1-2 dp#6 barrier train.py:50:epoch
    in 0 dp#7 barrier train.py:50:epoch for 4
    in 1-2 dp#7 all_reduce train.py:10:step for 4
    """
    found = told(text + 'source 0 log.py:30:log text "log(loss)" if "rank == 0"')
    assert found.advice.startswith("Move this call outside the if")
    assert "If that line runs a forward: run that forward on all ranks or on none" in found.advice
    found = told(text + 'source 0 train.py:70:sample text "sample()" if "rank == 0"')
    assert found.advice.startswith("Run that forward on all ranks or on none")


def test_a_call_under_a_test_whose_source_nobody_has_read_is_to_be_moved() -> None:
    found = told(PARTED + 'source 1 train.py:50 text "" if "rank == 1"')
    assert found.advice.startswith("Move this call outside the if, so that all ranks of the group make it.")


def test_of_a_message_that_does_not_come_through_the_tags_are_to_be_compared() -> None:
    found = told("""
world 2
group dp 0-1
send 0 1#3 train.py:20 for 95
recv 1 0#3 train.py:30 for 95
""")
    assert found.cause is Cause.TRANSPORT
    assert found.advice.startswith("Compare the tags")
    assert "the calls match" not in found.explanation
    assert "Tags are not recorded" in found.explanation


def test_of_a_rank_that_is_gone_in_an_all_to_all_the_splits_are_to_be_compared() -> None:
    found = told("""
world 3
group dp 0-2
in 0-2 dp#7 all_to_all train.py:44 for 4 numel=0
ended 1 signal 6 ago 4
""")
    assert found.cause is Cause.RANK_CRASHED
    assert found.advice.startswith("It was in all_to_all, whose splits are not recorded: print input_split_sizes")


def crashed(ended: str, *more: str) -> Verdict:
    """Return what is said of a rank of two that ended so while the other one waited."""
    text = ["world 2", "group dp 0-1", "history 0-1 dp#1-6 all_reduce train.py:44", *more, ended]
    (found,) = judge(situation("\n".join(text)).snapshot())
    assert (found.cause, [each.rank for each in found.culprits]) == (Cause.RANK_CRASHED, [1])
    return found


@pytest.mark.parametrize(
    ("ended", "advice"),
    [
        ("ended 1 signal 9 ago 4", "Find out who sent the signal."),
        ("ended 1 signal 11 ago 4", "Look at the last output and the core dump of this rank"),
        ("ended 1 signal 7 ago 4", "Look at the last output and the core dump of this rank"),
        ("ended 1 signal 6 ago 4", "Look at the last output of this rank: native code aborted"),
        ("ended 1 exit 3 ago 4", "Look at the last output of this rank, and at the exit code or signal"),
        ('ended 1 error "ValueError: no such layer" train.py:12 ago 4', "Fix the exception of this rank"),
    ],
)
def test_each_end_has_an_advice_of_its_own(ended: str, advice: str) -> None:
    assert crashed(ended, "in 0 dp#7 all_reduce train.py:44 for 4").advice.startswith(advice)


def test_after_an_abort_in_a_job_of_nccl_its_error_is_to_be_looked_for() -> None:
    found = crashed("ended 1 signal 6 ago 4", "in 0 dp#7 all_reduce train.py:44 for 4", "facts 0-1 backend=nccl")
    assert found.advice.startswith("Look for an NCCL error in the output of this rank")


def test_an_exception_of_the_only_rank_is_its_own() -> None:
    text = 'world 1\ngroup dp 0\nended 0 error "ValueError: no such layer" train.py:12 ago 4'
    (found,) = judge(situation(text).snapshot())
    assert found.cause is Cause.RANK_CRASHED
    assert found.advice == "Fix the exception of this rank: its traceback is in this rank's own output."


def test_an_exception_of_all_ranks_at_one_line_comes_from_the_program() -> None:
    text = 'world 2\ngroup dp 0-1\nended 0-1 error "ValueError: no such layer" train.py:12 ago 4'
    (found,) = judge(situation(text).snapshot())
    assert [each.rank for each in found.culprits] == [0, 1]
    assert found.advice.startswith(
        "Fix the exception. As all ranks raise it, look at the program and its settings first"
    )


@pytest.mark.parametrize(
    ("scenario", "of_a_key"),
    [("key_of_the_store_left_out", True), ("circle_of_a_receive_where_it_used_to_reduce", False)],
)
def test_only_of_a_key_in_the_circle_it_is_said_who_has_to_set_it(scenario: str, of_a_key: bool) -> None:
    (path,) = (each for each in FILES if each.stem == scenario)
    (found,) = judge(read(path)[0].snapshot())
    assert found.cause is Cause.DIVERGENT_CONTROL_FLOW
    assert found.advice.startswith("Let a rank set that key") is of_a_key
