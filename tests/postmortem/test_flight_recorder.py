"""Flight Recorder dumps of hangs whose cause is known."""

from pathlib import Path

import pytest

from tests.postmortem.analysis import brief, said, told
from tests.postmortem.dumps import DONE, OPEN, Job

STARTED = "started"


def test_a_rank_that_did_not_come_is_named_with_its_last_line(tmp_path: Path):
    job = Job(4)
    job.steps(50)
    job.op([0, 1, 2], state=OPEN, site="train.py:60")
    incident = said(job.write(tmp_path))["incidents"][0]
    assert brief(tmp_path) == [("critical", "STALLED", "undetermined", [3], [0, 1, 2])]
    assert incident["culprits"][0]["call_site"]["line"] == 44
    assert (incident["group"], incident["seq"], incident["op"]) == ("0", 51, "all_reduce")
    assert incident["onset_to_open_s"] == 620.0
    assert "train.py:60" in incident["summary"]
    assert {fact["source"] for fact in incident["evidence"]} == {"flight recorder"}


def layout(job: Job, steps: int = 10) -> tuple[list[str], list[str]]:
    """Give eight ranks two tensor groups of one name, and four data parallel groups; return both."""
    tensor = [job.group("1", range(4), "tp", of="1/a"), job.group("1", range(4, 8), "tp", of="1/b")]
    data = [job.group(str(2 + n), [n, n + 4], "dp") for n in range(4)]
    for _ in range(steps):
        for name in (*tensor, *data):
            job.steps(1, name)
    return tensor, data


def test_the_rank_missing_in_its_tensor_group_is_the_root_and_all_other_groups_are_victims(tmp_path: Path):
    job = Job(8)
    tensor, data = layout(job)
    job.op([0, 1, 2], tensor[0], state=OPEN, site="layer.py:12")  # rank 3 is missing
    job.steps(1, tensor[1])
    for number, name in enumerate(data):
        job.op([number + 4], name, state=OPEN, site="ddp.py:77")
    assert brief(job.write(tmp_path)) == [("critical", "STALLED", "undetermined", [3], [0, 1, 2, 4, 5, 6, 7])]
    assert "of group tp" in told(tmp_path)


def test_the_rank_that_timed_out_first_is_no_culprit(tmp_path: Path):
    """Rank 0 waited longest and reports the timeout; rank 2, which it waits for, waits for rank 1."""
    job = Job(3)
    job.group("5", [0, 2], "pp")
    job.group("6", [1, 2], "ep")
    job.steps(5, "5")
    job.steps(5, "6")
    job.op([0], "5", state=OPEN)
    job.now_ns += 300 * 10**9
    job.op([2], "6", state=OPEN)
    assert brief(job.write(tmp_path)) == [("critical", "STALLED", "undetermined", [1], [0, 2])]


def test_different_operations_at_one_number_are_a_proof(tmp_path: Path):
    job = Job(4)
    job.steps(20)
    job.op([2], name="broadcast", state=OPEN, site="log.py:9")
    job.op([0, 1, 3], state=OPEN)
    assert [each[:4] for each in brief(job.write(tmp_path))] == [
        ("critical", "PROVEN", "divergent_control_flow", [2])
    ]  # fmt: skip
    assert "log.py:9" in told(tmp_path)


def test_different_sizes_from_one_line_are_a_signature_mismatch(tmp_path: Path):
    job = Job(4)
    job.steps(20)
    job.op([1], size=90, state=OPEN)
    job.op([0, 2, 3], size=100, state=OPEN)
    assert brief(job.write(tmp_path)) == [("critical", "PROVEN", "signature_mismatch", [1], [0, 2, 3])]


def test_a_size_that_let_one_rank_pass_is_found_in_what_is_through(tmp_path: Path):
    """NCCL moves the smaller size and lets that rank go on to the next operation."""
    job = Job(4)
    job.steps(20)
    job.op([1], size=90, state=DONE)
    job.op([0, 2, 3], size=100, state=OPEN)
    job.op([1], name="broadcast", size=7, state=OPEN, site="log.py:3")
    assert [each[1:4] for each in brief(job.write(tmp_path))] == [("PROVEN", "signature_mismatch", [1])]


def test_two_ranks_that_both_gather_are_a_mismatch_of_roots(tmp_path: Path):
    job = Job(4)
    job.steps(20)
    job.op([0, 1], name="gather", size=5, out=20, state=OPEN)
    job.op([2, 3], name="gather", size=5, out=0, state=OPEN)
    (found,) = brief(job.write(tmp_path))
    assert found[:3] == ("critical", "PROVEN", "signature_mismatch")
    assert set(found[3]) == {0, 1}


def test_a_different_dtype_is_a_mismatch(tmp_path: Path):
    job = Job(4)
    job.steps(20)
    job.op([3], dtype="Half", state=OPEN)
    job.op([0, 1, 2], state=OPEN)
    assert [each[1:4] for each in brief(job.write(tmp_path))] == [("PROVEN", "signature_mismatch", [3])]


def test_groups_used_in_opposite_order_are_a_deadlock(tmp_path: Path):
    job = Job(4)
    job.group("a", range(4))
    job.group("b", range(4))
    for _ in range(5):
        job.steps(1, "a")
        job.steps(1, "b", site="train.py:50")
    job.op([0, 1], "a", state=OPEN)
    job.op([2, 3], "b", state=OPEN, site="train.py:50")
    (found,) = brief(job.write(tmp_path))
    assert found == ("critical", "STALLED", "collective_order", [2, 3], [0, 1])


def test_groups_entered_by_all_in_different_orders_are_told_from_a_slow_transfer(tmp_path: Path):
    job = Job(3)
    job.group("a", range(3))
    job.group("b", range(3))
    job.steps(5, "a")
    job.steps(5, "b")
    job.op([0, 1], "a", state=OPEN)
    job.op([2], "b", state=OPEN)
    job.op([0, 1], "b", state=OPEN)
    job.op([2], "a", state=OPEN)
    assert brief(job.write(tmp_path)) == [("critical", "STALLED", "collective_order", [2], [0, 1])]


def test_all_inside_one_collective_blames_nobody_alone(tmp_path: Path):
    job = Job(4)
    job.steps(5)
    job.op(range(4), state=OPEN)
    incident = said(job.write(tmp_path))["incidents"][0]
    assert (incident["cause"], incident["one_of"], incident["victims"]) == ("transport", True, [])


def test_two_sends_that_face_each_other(tmp_path: Path):
    job = Job(2)
    job.p2p(0, "send", 1)
    job.p2p(1, "recv", 0)
    job.p2p(0, "send", 1, state=OPEN)
    job.p2p(1, "send", 0, state=OPEN)
    assert brief(job.write(tmp_path)) == [("critical", "STALLED", "p2p_deadlock", [0, 1], [])]


@pytest.mark.parametrize(
    ("pairs", "words"),
    [(((1, 2),), "; rank 2 waits behind them."), (((1, 2), (0, 4)), "; ranks 2,4 wait behind them.")],
    ids=["one", "two"],
)
def test_who_waits_for_those_that_wait_is_told_apart(tmp_path: Path, pairs: tuple[tuple[int, int], ...], words: str):
    job = Job(5)
    job.group("g", [0, 1, 3])
    for waited_for, waiting in pairs:
        job.group(f"pair {waiting}", [waited_for, waiting])
    job.steps(5)
    job.op([0, 1], "g", state=OPEN)
    for _, waiting in pairs:
        job.op([waiting], f"pair {waiting}", state=OPEN)
    assert [each[3] for each in brief(job.write(tmp_path))] == [[3]]
    assert said(tmp_path)["incidents"][0]["summary"].endswith(words)


def test_the_stages_of_a_pipeline_behind_a_lost_one_are_victims(tmp_path: Path):
    job = Job(4)
    for _ in range(6):
        for stage in range(3):
            job.p2p(stage, "send", stage + 1)
            job.p2p(stage + 1, "recv", stage)
    for stage in (1, 2, 3):  # stage 0 does not send any more
        job.p2p(stage, "recv", stage - 1, state=OPEN)
    assert brief(job.write(tmp_path)) == [("critical", "STALLED", "undetermined", [0], [1, 2, 3])]
    assert "recv from rank 0 to rank 1" in told(tmp_path)


def test_a_batch_is_through_when_its_block_is_though_its_entries_stay_scheduled(tmp_path: Path):
    job = Job(4)
    for _ in range(6):
        for rank in range(4):
            job.batch(rank, [("send", (rank + 1) % 4), ("recv", (rank - 1) % 4)])
    job.steps(3)
    assert brief(job.write(tmp_path)) == []


def test_a_rank_that_leaves_a_ring_of_batches_is_the_root(tmp_path: Path):
    job = Job(4)
    for _ in range(6):
        for rank in range(4):
            job.batch(rank, [("send", (rank + 1) % 4), ("recv", (rank - 1) % 4)])
    for rank in (0, 1, 3):
        job.batch(rank, [("send", (rank + 1) % 4), ("recv", (rank - 1) % 4)], state=OPEN)
    assert brief(job.write(tmp_path)) == [("critical", "STALLED", "undetermined", [2], [0, 1, 3])]


def test_a_batch_uses_up_a_number_on_the_ranks_that_take_part_only(tmp_path: Path):
    """Collectives of one group get different numbers then; aligned by the number they would all mismatch."""
    job = Job(4)
    job.steps(3)
    job.batch(0, [("send", 1)])
    job.batch(1, [("recv", 0)])
    job.op(range(4), name="broadcast", state=DONE)
    job.op(range(4), name="all_reduce", state=DONE)
    job.op([0, 1, 3], name="reduce", state=OPEN)
    assert brief(job.write(tmp_path)) == [("critical", "STALLED", "undetermined", [2], [0, 1, 3])]


def test_expert_groups_with_uneven_splits_are_healthy_and_the_late_expert_is_found(tmp_path: Path):
    job = Job(8)
    for number in range(2):
        job.group(str(10 + number), range(4 * number, 4 * number + 4), "ep")
    for _ in range(4):
        for number in range(2):
            for rank in range(4):
                job.op([4 * number + rank], str(10 + number), "all_to_all", size=10 + rank, out=40 - rank)
    assert brief(job.write(tmp_path)) == []
    for rank in (4, 5, 7):
        job.op([rank], "11", "all_to_all", size=10 + rank, state=OPEN)
    assert brief(job.write(tmp_path)) == [("critical", "STALLED", "undetermined", [6], [4, 5, 7])]


def test_a_call_that_one_rank_alone_makes_is_that_ranks_mistake(tmp_path: Path):
    job = Job(4)
    job.steps(20)
    job.op([0], name="all_reduce_barrier", state=OPEN, site="save.py:31")
    (found,) = brief(job.write(tmp_path))
    assert found == ("critical", "STALLED", "rank_conditional_collective", [0], [])
    assert "barrier" in told(tmp_path)
    assert "The others were never at that line." in told(tmp_path)
    assert said(tmp_path)["incidents"][0]["one_of"] is False


def test_of_a_rank_alone_in_a_call_without_a_line_it_is_not_certain_that_the_call_is_its_own(tmp_path: Path):
    job = Job(4)
    job.steps(20)
    job.op([0], name="all_reduce_barrier", state=OPEN, site="save.py:31")
    (found,) = brief(job.write_json(job.write(tmp_path, missing=[0]), [0]))
    assert found == ("critical", "STALLED", "rank_conditional_collective", [0], [])
    assert "the dumps hold no call sites" in told(tmp_path)
    assert said(tmp_path)["incidents"][0]["one_of"] is True


def test_ranks_that_were_at_the_line_before_are_late_even_if_they_are_many(tmp_path: Path):
    job = Job(4)
    job.steps(20)
    job.op([0], state=OPEN)
    assert [each[2:4] for each in brief(job.write(tmp_path))] == [("undetermined", [1, 2, 3])]


def test_of_two_ranks_the_one_that_departs_from_its_habit_is_the_culprit(tmp_path: Path):
    """The habit is longer than what is kept of every rank: the files of suspects are read once more."""
    job = Job(2)
    for _ in range(5):
        for line in range(10, 22):
            job.steps(1, site=f"layer.py:{line}")
            if line == 15:
                job.steps(1, name="broadcast", site="log.py:3")
    job.op([0], site="layer.py:10", state=OPEN)
    job.op([1], name="broadcast", site="log.py:3", state=OPEN)
    assert [each[1:4] for each in brief(job.write(tmp_path))] == [("PROVEN", "divergent_control_flow", [1])]
    incident = said(tmp_path)["incidents"][0]
    assert (incident["one_of"], incident["culprits"][0]["call_site"]["line"]) == (False, 3)


def test_a_call_that_was_never_made_before_may_be_one_that_the_other_left_out(tmp_path: Path):
    """A save comes once in many iterations: which of two ranks went the wrong way, no file tells."""
    job = Job(2)
    job.steps(12)
    job.op([0], state=OPEN)
    job.op([1], name="broadcast", site="save.py:3", state=OPEN)
    assert [each[1:4] for each in brief(job.write(tmp_path))] == [("PROVEN", "divergent_control_flow", [0, 1])]
    assert said(tmp_path)["incidents"][0]["one_of"] is True


def test_a_circle_of_many_ranks_is_told_by_operation(tmp_path: Path):
    job = Job(80)
    job.group("a", range(80))
    job.group("b", range(80))
    job.steps(2, "a")
    job.steps(2, "b")
    job.op(range(70), "a", state=OPEN)
    job.op(range(70, 80), "b", state=OPEN)
    (found,) = brief(job.write(tmp_path))
    assert found == ("critical", "STALLED", "collective_order", list(range(70, 80)), list(range(70)))
    assert "are in all_reduce of group a (all ranks) and need ranks 70-79 there" in told(tmp_path)
