"""What a dump does not tell must not be concluded: lost files, cut buffers, copies, dumps of a job that is well."""

from pathlib import Path

import pytest

from tests.postmortem.analysis import brief, said, told
from tests.postmortem.dumps import DONE, OPEN, Job


def test_healthy_dumps_have_no_verdict(tmp_path: Path):
    job = Job(4)
    job.steps(30)
    assert said(job.write(tmp_path))["incidents"] == []
    assert "nothing is wrong" in told(tmp_path)


def test_a_rank_without_a_file_is_unknown_and_never_called_absent(tmp_path: Path):
    job = Job(4)
    job.steps(30)
    job.op([0, 1, 3], state=OPEN)
    answer = said(job.write(tmp_path, missing=[2]))
    incident = answer["incidents"][0]
    assert [culprit["rank"] for culprit in incident["culprits"]] == [2]
    assert incident["one_of"] is True
    assert incident["certainty"] == "STALLED"
    assert "no file of rank 2" in incident["summary"]
    assert any("no file of rank 2" in note for note in answer["notes"])


def test_an_absent_rank_with_a_file_comes_before_one_without(tmp_path: Path):
    job = Job(4)
    job.steps(30)
    job.op([0, 1], state=OPEN)
    assert [each[3] for each in brief(job.write(tmp_path, missing=[2]))] == [[3]]


def test_a_file_written_before_the_others_went_on_accuses_nobody(tmp_path: Path):
    """Rank 3's file does not know of what all others completed, which they could not have without it."""
    job = Job(4)
    job.steps(30)
    early = job.dump(3)["entries"][:28]
    job.op(range(4), state=OPEN)
    job.ranks[3].entries = early
    assert all(3 not in each[3] or said(tmp_path)["incidents"][0]["one_of"] for each in brief(job.write(tmp_path)))
    assert "older than those of the others" in told(tmp_path)


def test_buffers_cut_at_different_places_do_not_disturb(tmp_path: Path):
    job = Job(4)
    job.group("9", range(4), "dp")
    for _ in range(100):
        job.steps(1)
        job.steps(1, "9")
    job.op([0, 1, 2], "9", state=OPEN)
    folder = job.write(tmp_path, last={0: 20, 1: 7, 2: 55, 3: 12})
    assert brief(folder) == [("critical", "STALLED", "undetermined", [3], [0, 1, 2])]
    assert "lost its older entries" in told(folder)


def test_a_group_that_fell_out_of_the_buffer_is_told_by_the_status(tmp_path: Path):
    job = Job(4)
    job.group("9", range(4), "dp")
    job.steps(3, "9")
    job.steps(40)
    job.op([0, 1, 2], "9", state=OPEN)
    assert brief(job.write(tmp_path, last={3: 20}))[0][3] == [3]


def test_numbers_that_batches_shifted_are_not_compared_when_the_beginning_is_lost(tmp_path: Path):
    job = Job(4)
    for _ in range(10):
        job.batch(0, [("send", 1)])
        job.batch(1, [("recv", 0)])
        job.op(range(4), name="broadcast", state=DONE)
        job.op(range(4), state=DONE)
    job.op([0, 1], name="broadcast", state=OPEN)
    job.op([2, 3], name="broadcast", state=OPEN)
    assert all(each[1] != "PROVEN" for each in brief(job.write(tmp_path, last=dict.fromkeys(range(4), 15))))


def test_a_wait_that_a_healthy_job_shows_too_is_no_alarm(tmp_path: Path):
    job = Job(4)
    job.steps(30)
    job.op([0, 1, 2], state=OPEN)
    assert brief(job.write(tmp_path, age_s=0.2)) == []
    assert [each[:2] for each in brief(job.write(tmp_path, age_s=3.0))] == [("info", "LATE")]
    assert [each[:2] for each in brief(job.write(tmp_path, age_s=5.0))] == [("warning", "LATE")]


def test_who_is_not_waited_for_until_the_timeout_may_have_come_later(tmp_path: Path):
    job = Job(4)
    job.steps(30)
    job.op([0, 1, 2], state=OPEN)
    assert [each[:4] for each in brief(job.write(tmp_path, age_s=539.0))] == [("warning", "LATE", "undetermined", [3])]
    assert "no wait had lasted to its timeout" in told(tmp_path)
    assert [each[:4] for each in brief(job.write(tmp_path, age_s=540.0))] == [
        ("critical", "STALLED", "undetermined", [3])
    ]


def test_a_file_written_before_anybody_waited_tells_nothing_of_the_wait(tmp_path: Path):
    """Rank 3's file was kept a quarter of an hour before the others came to wait: it may have come since."""
    job = Job(4)
    job.steps(30)
    job.write_one(tmp_path, 3, job.dump(3), age_s=0.5)
    job.now_ns += 900 * 10**9
    job.op([0, 1, 2], state=OPEN)
    assert [each[:4] for each in brief(job.write(tmp_path, age_s=100.0, missing=[3]))] == [
        ("warning", "LATE", "undetermined", [3])
    ]
    assert "may have gone on" in told(tmp_path)
    incident = said(job.write(tmp_path, age_s=700.0, missing=[3]))["incidents"][0]
    assert (incident["severity"], incident["certainty"], incident["one_of"]) == ("critical", "STALLED", True)
    assert "older than those of the others" in incident["summary"]
    assert "Either it never came, or all are inside" in incident["explanation"]


def test_an_older_file_is_told_as_such_whatever_else_it_holds(tmp_path: Path):
    """It has recorded what it did in another group, in which nobody waits."""
    job = Job(4)
    job.group("9", range(4), "dp")
    job.steps(30)
    job.steps(30, "9")
    job.write_one(tmp_path, 3, job.dump(3), age_s=0.5)
    job.now_ns += 900 * 10**9
    job.op([0, 1, 2], "9", state=OPEN)
    incident = said(job.write(tmp_path, age_s=700.0, missing=[3]))["incidents"][0]
    assert "the files of rank 3 are older than those of the others" in incident["summary"]


@pytest.mark.parametrize(
    ("age_s", "severity", "certainty"), [(100.0, "warning", "LATE"), (700.0, "critical", "STALLED")]
)
@pytest.mark.parametrize("receives", [False, True], ids=["it worked", "it waited for a moment"])
def test_a_file_written_before_anybody_waited_for_a_message_tells_nothing_of_it(
    tmp_path: Path, receives: bool, age_s: float, severity: str, certainty: str
):
    """Rank 0's file was kept a quarter of an hour before rank 1 came to wait: it may have sent since."""
    job = Job(2)
    job.steps(5)
    for _ in range(5):
        job.p2p(0, "send", 1)
        job.p2p(1, "recv", 0)
        job.p2p(1, "send", 0)
        job.p2p(0, "recv", 1)
    if receives:
        job.p2p(0, "recv", 1, state=OPEN)
    job.write_one(tmp_path, 0, job.dump(0), age_s=1.0)
    job.now_ns += 900 * 10**9
    job.p2p(1, "send", 0)
    job.p2p(1, "recv", 0, state=OPEN)
    job.write(tmp_path, age_s=age_s, missing=[0])
    (incident,) = said(tmp_path)["incidents"]
    assert (incident["severity"], incident["certainty"], incident["one_of"]) == (severity, certainty, True)
    assert "the files of rank 0 are older than those of the others" in incident["summary"]


def test_a_file_written_while_others_waited_tells_who_had_not_come(tmp_path: Path):
    """It was kept a minute before the others' files, when they had waited for long."""
    job = Job(4)
    job.steps(30)
    job.op([0, 1, 2], state=OPEN)
    job.write_one(tmp_path, 3, job.dump(3), age_s=640.0)
    assert [each[1:4] for each in brief(job.write(tmp_path, age_s=700.0, missing=[3]))] == [
        ("STALLED", "undetermined", [3])
    ]
    assert said(tmp_path)["incidents"][0]["one_of"] is False


def test_a_file_with_a_time_before_its_own_entries_counts_as_one_without_a_time(tmp_path: Path):
    job = Job(4)
    job.steps(30)
    job.op([0, 1, 2], state=OPEN)
    folder = job.write(tmp_path, age_s=700.0)
    job.write_one(folder, 3, job.dump(3), age_s=-300.0)
    assert brief(folder) == [("critical", "STALLED", "undetermined", [3], [0, 1, 2])]


def test_who_had_just_come_to_a_call_when_its_file_was_written_may_be_through_since(tmp_path: Path):
    """The others' files are copies of a later moment; of a rank that had been there for long the same is told."""
    job = Job(4)
    job.steps(30)
    job.op([0, 1, 2], state=DONE)
    job.op([3], state=OPEN)
    job.write_one(tmp_path, 3, job.dump(3), age_s=1.0)
    job.op([0, 1, 2], state=OPEN)
    assert brief(job.write(tmp_path, age_s=40 * 86400.0, missing=[3])) == []
    job.write_one(tmp_path, 3, job.dump(3), age_s=1000.0)
    assert [each[2:] for each in brief(tmp_path)] == [("undetermined", [3], [0, 1, 2])]


def test_files_of_another_job_of_as_many_ranks_are_left_out(tmp_path: Path):
    """Their operations differ from those of this job, which is no mismatch of anybody."""
    before, job = Job(4), Job(4)
    before.steps(20)
    before.op(range(4), name="broadcast", size=7, state=OPEN)
    job.now_ns += 3 * 3600 * 10**9
    job.steps(20)
    job.op([0, 1], state=OPEN)
    job.write(tmp_path, missing=[3])
    before.write_one(tmp_path, 3, before.dump(3))
    assert not [each for each in said(tmp_path)["incidents"] if each["certainty"] == "PROVEN"]
    assert "so it is of another job or attempt" in told(tmp_path)


def test_a_file_of_the_attempt_before_is_left_out_though_it_is_of_minutes_before(tmp_path: Path):
    """Rank 3 was killed in this attempt. Its file is of the one before: it had ended what the others began later."""
    before, job = Job(4), Job(4)
    before.steps(19)
    before.op(range(4), name="broadcast", size=7, state=OPEN)
    job.now_ns = before.now_ns + 700 * 10**9
    job.steps(19)
    job.op([0, 1, 2], state=OPEN)
    job.write(tmp_path, missing=[3])
    before.write_one(tmp_path, 3, before.dump(3))
    assert [each[1:4] for each in brief(tmp_path)] == [("STALLED", "undetermined", [3])]
    assert said(tmp_path)["incidents"][0]["one_of"] is True
    assert "so it is of another job or attempt" in told(tmp_path)


def test_a_rank_whose_clock_is_behind_by_less_than_a_minute_is_of_the_same_attempt(tmp_path: Path):
    job = Job(4)
    job.steps(30)
    job.op([0, 1, 2], state=OPEN)
    job.op([3], name="broadcast", state=OPEN)
    job.write(tmp_path, missing=[3])
    value = job.dump(3)
    for entry in value["entries"]:
        entry["time_created_ns"] -= 50 * 10**9
        entry["time_discovered_completed_ns"] = None
    job.write_one(tmp_path, 3, value, age_s=570.0)
    assert [each[1:4] for each in brief(tmp_path)] == [("PROVEN", "divergent_control_flow", [3])]


def test_a_rank_that_fell_behind_by_an_hour_is_of_the_same_job(tmp_path: Path):
    before, job = Job(4), Job(4)
    before.steps(20)
    job.now_ns += 3600 * 10**9
    job.steps(20)
    job.op([0, 1, 2], state=OPEN)
    job.write(tmp_path, missing=[3])
    before.write_one(tmp_path, 3, before.dump(3), age_s=None)
    assert brief(tmp_path)[0][3] == [3]


def test_copied_files_say_that_their_times_tell_nothing(tmp_path: Path):
    job = Job(4)
    job.steps(30)
    job.op([0, 1, 2], state=OPEN)
    folder = job.write(tmp_path, age_s=40 * 86400.0)
    assert brief(folder)[0][3] == [3]
    assert "times of the files do not tell" in told(folder)


def test_copied_files_of_ranks_at_work_name_nobody_for_certain(tmp_path: Path):
    """NCCL's watchdog has not seen yet what rank 3 had ended: it was at work when its file was written."""
    job = Job(4)
    job.steps(30)
    job.op([0, 1, 2], state=OPEN)
    folder = job.write(tmp_path, age_s=40 * 86400.0)
    value = job.dump(3)
    (row,) = value["pg_status"].values()
    row["last_completed_collective"] -= 1
    job.write_one(folder, 3, value, age_s=40 * 86400.0)
    assert [each[1:] for each in brief(folder)] == [("LATE", "straggler", [3], [0, 1, 2])]
    assert "they were at work" in told(folder)


def test_a_rank_at_work_is_told_where_completed_entries_were_left_out(tmp_path: Path):
    job = Job(4)
    job.steps(30)
    job.op([0, 1, 2], state=OPEN)
    for rank in range(4):
        value = job.dump(rank)
        value["entries"] = [entry for entry in value["entries"] if entry["state"] == OPEN]
        (row,) = value["pg_status"].values()
        row["last_completed_collective"] = 29
        job.write_one(tmp_path, rank, value, age_s=40 * 86400.0)
    assert [each[1:] for each in brief(tmp_path)] == [("LATE", "straggler", [3], [0, 1, 2])]


def test_a_transfer_in_flight_is_no_hang(tmp_path: Path):
    job = Job(4)
    job.steps(30)
    job.op(range(4), state=OPEN)
    assert brief(job.write(tmp_path, age_s=20.0)) == []


def test_some_ranks_through_and_some_not_yet_is_no_hang_at_that_moment(tmp_path: Path):
    job = Job(4)
    job.steps(30)
    job.op([0, 1], state=DONE)
    job.op([2, 3], state=OPEN)
    assert brief(job.write(tmp_path, age_s=1.0)) == []


def test_ragged_all_gather_scatter_and_uneven_reduce_scatter_are_legal(tmp_path: Path):
    job = Job(4)
    for rank in range(4):
        job.op([rank], name="all_gather", size=rank + 1, out=10, state=OPEN)
    assert brief(job.write(tmp_path, age_s=1.0)) == []
    job = Job(4)
    job.op([0], name="scatter", size=40, out=10, state=OPEN)
    job.op([1, 2, 3], name="scatter", size=0, out=10, state=OPEN)
    assert brief(job.write(tmp_path, age_s=1.0)) == []


def test_one_group_name_with_other_members_on_other_ranks_is_another_group(tmp_path: Path):
    job = Job(4)
    one = job.group("107", [0, 1], "tp", of="107/a")
    other = job.group("107", [2, 3], "pp", of="107/b")
    job.steps(300, one)
    job.steps(3, other, name="broadcast")
    job.op([0, 1], one, state=OPEN)
    job.op([2], other, name="broadcast", state=OPEN)
    assert [each[2:4] for each in brief(job.write(tmp_path))] == [("undetermined", [3]), ("transport", [0, 1])]


def test_a_group_made_anew_under_its_old_name_is_counted_anew(tmp_path: Path):
    job = Job(2)
    job.steps(9)
    for rank in range(2):
        job.ranks[rank].pg_ids["0"] = 40 + rank
        job.ranks[rank].collective["0"] = 0
    job.steps(2, name="broadcast")
    job.op([0], name="broadcast", state=OPEN)
    assert [each[3] for each in brief(job.write(tmp_path))] == [[1]]


def test_a_rank_whose_file_tells_no_members_is_not_taken_for_the_only_one(tmp_path: Path):
    """Its device waits for rank 0 in a group of both, which its file does not tell, and comes to rank 2 after that."""
    job = Job(4)
    job.group("1", [0, 1], "tensor")
    job.group("2", [1, 2], "data")
    job.steps(5, "1")
    job.op([1], "1", state=OPEN)
    job.op([1, 2], "2", state=OPEN)
    for rank in range(4):
        dump = job.dump(rank)
        if rank < 2:
            del dump["pg_config"]
        job.write_one(tmp_path, rank, dump | {"entries": [e for e in dump["entries"] if e["state"] == OPEN]})
    assert [culprits for *_, culprits, _ in brief(tmp_path)] == [[]]


def test_a_group_counted_apart_whose_members_no_file_tells_is_not_that_of_one_rank(tmp_path: Path):
    job = Job(4)
    job.group("1", [0, 1], "tensor")
    for _ in range(5):
        job.batch(0, [("send", 1)], "1")
        job.batch(1, [("recv", 0)], "1")
        job.steps(1, "1")
    job.op([1], "1", state=OPEN)
    for rank in range(2):
        dump = job.dump(rank, last=2)
        del dump["pg_config"]
        job.write_one(tmp_path, rank, dump)
    assert [(cause, culprits) for _, _, cause, culprits, _ in brief(tmp_path)] == [("undetermined", [])]
    assert "which rank it waits for is unknown: not all members" in told(tmp_path)


def test_gloo_never_tells_members_and_only_retires(tmp_path: Path):
    job = Job(3, backend="gloo")
    job.steps(5)
    assert brief(job.write(tmp_path)) == []
    job.op([0, 2], state=OPEN)
    assert [each[3] for each in brief(job.write(tmp_path))] == [[1]]


def test_a_group_that_fell_out_of_the_buffer_is_unknown_without_a_status(tmp_path: Path):
    job = Job(4)
    job.group("9", range(4), "dp")
    job.steps(3, "9")
    job.steps(40)
    job.op([0, 1, 2], "9", state=OPEN)
    folder = job.write(tmp_path, last={3: 20})
    value = job.dump(3, last=20)
    value["pg_status"] = {}
    job.write_one(folder, 3, value)
    incident = said(folder)["incidents"][0]
    assert (incident["one_of"], "older than those" in incident["summary"]) == (True, False)


def test_a_rank_that_recorded_nothing_at_all_did_not_come(tmp_path: Path):
    job = Job(2)
    job.op([0], state=OPEN)
    value = job.dump(1)
    assert value["entries"] == []
    folder = job.write(tmp_path)
    assert [each[3:] for each in brief(folder)] == [([1], [0])]


def test_of_two_ranks_it_is_said_that_the_one_that_waits_may_have_made_a_call_too_many(tmp_path: Path):
    job = Job(2)
    job.steps(20)
    job.op([0], state=OPEN)
    (incident,) = said(job.write(tmp_path))["incidents"]
    assert incident["summary"].startswith("rank 1 has not entered all_reduce")
    assert (
        "Why it does not come, a dump cannot tell: it holds operations, not stacks. Or rank 0 made that call once too"
        " often." in incident["explanation"]
    )


def test_where_completed_entries_were_left_out_the_status_tells_how_far_a_rank_is(tmp_path: Path):
    job = Job(3)
    job.steps(20)
    job.op([0, 1], state=OPEN)
    for rank in range(3):
        value = job.dump(rank)
        value["entries"] = [entry for entry in value["entries"] if entry["state"] == OPEN]
        job.write_one(tmp_path, rank, value)
    assert [each[3:] for each in brief(tmp_path)] == [([2], [0, 1])]


def test_a_record_that_ends_early_is_told_as_a_fact_and_never_as_a_hang(tmp_path: Path):
    job = Job(4)
    job.steps(30)
    job.ranks[2].entries = job.ranks[2].entries[:10]
    assert [each[:4] for each in brief(job.write(tmp_path))] == [("info", "LATE", "undetermined", [2])]
    assert "#10" in told(tmp_path)


def test_ranks_at_work_are_never_equally_far(tmp_path: Path):
    job = Job(4)
    job.steps(30)
    job.ranks[2].entries = job.ranks[2].entries[:28]
    assert brief(job.write(tmp_path, age_s=0.5)) == []


def test_a_file_of_an_attempt_with_more_ranks_is_left_out_and_closes_no_circle(tmp_path: Path):
    before = Job(8)
    before.steps(20)
    before.op(range(8), state=OPEN)
    job = Job(6)
    job.steps(30)
    job.op(range(5), state=OPEN)
    job.write(tmp_path)
    before.write_one(tmp_path, 5, before.dump(5))
    assert not [each for each in said(tmp_path)["incidents"] if each["certainty"] == "PROVEN"]
    assert "is of a job of 8 ranks, and most files are of one of 6" in told(tmp_path)


def test_a_file_whose_name_is_of_no_rank_of_its_job_is_left_out(tmp_path: Path):
    job = Job(4)
    job.steps(30)
    job.op([0, 1, 2], state=OPEN)
    job.write(tmp_path)
    job.write_one(tmp_path, 70, job.dump(0))
    assert brief(tmp_path)[0][3:] == ([3], [0, 1, 2])
    assert "rank 70, as its name says, is none of the 4 it tells of" in told(tmp_path)


def test_files_whose_names_were_exchanged_are_left_out_and_blame_nobody(tmp_path: Path):
    """Their groups say that they are of other ranks."""
    job = Job(4)
    job.group("1", [0, 1], "tensor")
    job.group("2", [2, 3], "tensor")
    job.steps(5)
    job.steps(5, "1")
    job.steps(6, "2")
    job.op([0, 2], state=OPEN)
    job.op([1], "1", state=OPEN)
    job.write(tmp_path, missing=[1, 3])
    job.write_one(tmp_path, 1, job.dump(3))
    job.write_one(tmp_path, 3, job.dump(1))
    assert all(each["one_of"] or not each["culprits"] for each in said(tmp_path)["incidents"])
    assert "rank 1, as its name says, is not in group 2 of ranks 2-3, which it has" in told(tmp_path)
