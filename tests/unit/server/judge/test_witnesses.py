"""What the judge writes down of other witnesses. What they change of a verdict is in the scenarios `witness_*`."""

from ncclwatch_server.judge import judge
from tests.scenarios.situation import Situation

RANK_2_IS_AWAY = """
world 4
group dp 0-3
history 0-3 dp#1-10 all_reduce train.py:44
in 0-1,3 dp#11 all_reduce train.py:44 for 12
at 2 train.py:80 still 12
"""


def facts(lines: str, source: str) -> dict[int, str]:
    """Return the evidence of one source in the only verdict on a situation, by rank."""
    situation = Situation()
    for line in lines.strip().splitlines():
        situation.run(line)
    (verdict,) = judge(situation.snapshot())
    return {each.rank: each.fact for each in verdict.evidence if each.source == source}


def recorder(lines: str) -> dict[int, str]:
    return facts(RANK_2_IS_AWAY + lines, "flight recorder")


def ras(lines: str) -> dict[int, str]:
    return facts(RANK_2_IS_AWAY + lines, "nccl ras")


def test_agreement_is_evidence_in_the_recorders_own_numbers() -> None:
    found = recorder("recorder 0-1 dp#13 all_reduce\nrecorder 2 dp#12 broadcast done")
    inside = "has issued operation 13 (all_reduce) and not finished it"
    assert found == {0: inside, 1: inside, 2: "has issued up to operation 12 (broadcast)"}


def test_a_rank_that_has_gone_on_since_is_left_out() -> None:
    inside = "has issued operation 13 (all_reduce) and not finished it"
    found = recorder("recorder 0-1 dp#13 all_reduce\nrecorder 2 dp#13 all_reduce early 1")
    assert found == {0: inside, 1: inside}


def test_one_rank_alone_is_no_comparison() -> None:
    assert recorder("recorder 0 dp#13 all_reduce") == {}
    assert recorder("recorder 2 dp#12 all_reduce done") == {}


def test_another_operation_in_the_recorder_is_not_taken_for_the_one_that_hangs() -> None:
    assert recorder("recorder 0-1 dp#13 broadcast\nrecorder 2 dp#13 all_reduce done") == {}
    assert recorder("recorder 0-1 dp#13 some_new_name\nrecorder 2 dp#13 all_reduce done") == {}


def test_launches_are_evidence() -> None:
    found = ras("launched 0-1,3 53\nlaunched 2 52")
    assert found == dict.fromkeys((0, 1, 3), "has launched 53 collectives") | {2: "has launched 52 collectives"}


def test_ranks_that_ras_does_not_reach_are_told() -> None:
    assert ras("launched 0-1,3 53\nlaunched 2 dead") == {2: "is taken for dead by NCCL's RAS"}


def test_of_two_communicators_with_the_same_processes_none_is_taken() -> None:
    assert facts(RANK_2_IS_AWAY + "group tp 0-3\nlaunched 0-3 53\nlaunched 0-3 9 by tp", "nccl ras") == {}


def test_a_communicator_of_other_processes_is_none_of_the_group() -> None:
    assert facts(RANK_2_IS_AWAY + "group tp 0-1,3\nlaunched 0-1,3 53 by tp", "nccl ras") == {}


def test_launches_are_not_counted_where_more_was_issued_behind_the_operation_that_hangs() -> None:
    lines = """
world 2
group dp 0-1
device 0 dp#11 all_reduce train.py:44 for 12
device 0 dp#12 all_reduce train.py:45 for 11
host 0 train.py:50 for 10 calling item
at 1 train.py:80 still 12
launched 0 54
launched 1 53
"""
    assert facts(lines, "nccl ras") == {}
