"""What files tell of ranks that did not come: only what was seen of each, and whom else they hold up."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.postmortem.analysis import said
from tests.postmortem.dumps import OPEN, Job
from tests.scenarios.filed import left_by
from tests.scenarios.texts import situation

WAITED = """
world 4
group dp 0-3
timeout 30
history 0-3 dp#1-6 all_reduce train.py:44
"""


def of_rings(folder: Path, text: str) -> dict[str, Any]:
    """Return the only incident that is found in the rings which ranks leave."""
    (found,) = said(left_by(situation(text).snapshot(), folder))["incidents"]
    return dict(found)


def of_dumps(job: Job, folder: Path, **how: Any) -> dict[str, Any]:
    (found,) = said(job.write(folder, **how))["incidents"]
    return dict(found)


def named(incident: dict[str, Any]) -> list[int]:
    return [each["rank"] for each in incident["culprits"]]


def test_ranks_that_all_stood_still_are_told_with_that_and_what_to_do(tmp_path: Path) -> None:
    found = of_rings(tmp_path, WAITED + "at 1-2 val.py:9 still 25\nin 0,3 dp#7 all_reduce train.py:60 for 30")
    assert (found["cause"], named(found)) == ("host_stall", [1, 2])
    assert [each["call_site"]["line"] for each in found["culprits"]] == [9, 9]
    assert found["summary"].startswith("ranks 1-2 have not entered all_reduce #7 of group dp (rank 1: ")
    assert found["advice"].startswith("Look at what this line waits for")
    assert "Why they do not come" not in found["explanation"]


def test_that_one_stood_still_accuses_no_other_one_of_it(tmp_path: Path) -> None:
    text = "at 1 val.py:9 still 0\nat 2 val.py:9 still 25\nin 0,3 dp#7 all_reduce train.py:60 for 30"
    found = of_rings(tmp_path, WAITED + text)
    assert (found["cause"], named(found)) == ("undetermined", [1, 2])
    assert "rank 2: its last operation was" in found["summary"]
    assert "its stack had not changed for 25 s" in found["summary"]
    assert "none shows that all of them stood still in one thing" in found["explanation"]
    assert found["advice"].startswith("Look at what ranks 1-2 did after that last operation")


def test_a_ring_that_shows_a_rank_at_work_is_not_said_to_hold_no_stack(tmp_path: Path) -> None:
    found = of_rings(tmp_path, WAITED + "at 2 val.py:9 still 0\nin 0-1,3 dp#7 all_reduce train.py:60 for 30")
    assert found["summary"].startswith("rank 2 has not entered all_reduce #7 of group dp (its last operation was")
    assert "Why it does not come, no file tells: none shows that it stood still." in found["explanation"]


def test_of_ranks_that_may_have_come_later_nothing_is_said_of_why(tmp_path: Path) -> None:
    found = of_rings(tmp_path, WAITED + "at 1-2 val.py:9 still 0\nin 0,3 dp#7 all_reduce train.py:60 for 12")
    assert found["severity"] == "warning"
    assert "Whether they worked or stood still at that moment, no file tells" in found["explanation"]
    assert "buffer" not in found["explanation"]


def test_the_waits_behind_a_wait_are_shown_as_well_and_each_once(tmp_path: Path) -> None:
    text = (
        WAITED.replace("group dp 0-3", "group dp 0-3\ngroup tp 2-3")
        + """
history 2-3 tp#1-6 all_reduce train.py:40
at 3 train.py:9 still 20
in 2 tp#7 all_reduce train.py:40 for 30
in 0-1 dp#7 all_reduce train.py:44 for 28
"""
    )
    found = of_rings(tmp_path, text)
    assert (named(found), found["victims"]) == ([3], [0, 1, 2])
    waits = [(each["rank"], each["fact"]) for each in found["evidence"] if each["rank"] != 3]
    assert [rank for rank, _ in waits] == [2, 0, 1]
    assert [fact.partition(" at ")[0] for _, fact in waits] == [
        "in all_reduce #7 of group tp", *["in all_reduce #7 of group dp"] * 2,
    ]  # fmt: skip


def test_where_a_rank_stood_is_told_by_its_innermost_frame(tmp_path: Path) -> None:
    found = of_rings(tmp_path, WAITED + "at 2 val.py:9 still 25 in data\nin 0-1,3 dp#7 all_reduce train.py:60 for 30")
    assert found["cause"] == "data_stall"
    assert "(it was in its data loader, its stack had not changed for 25 s)" in found["summary"]
    assert [each["fact"].partition(" val")[0] for each in found["evidence"] if each["rank"] == 2][1:] == [
        "its stack had not changed for 25 s", "innermost frame read",
    ]  # fmt: skip
    assert found["culprits"][0]["call_site"]["line"] == 9


def test_a_rank_that_has_not_come_to_a_broadcast_that_is_over_is_named_by_a_later_wait(tmp_path: Path) -> None:
    job = Job(3)
    job.steps(5)
    job.op([0, 1], name="broadcast")
    job.op([0, 1], state=OPEN)
    found = of_dumps(job, tmp_path)
    assert (named(found), found["victims"]) == ([2], [0, 1])
    assert "Why it does not come, a dump cannot tell: it holds operations, not stacks." in found["explanation"]


def test_a_rank_whose_whole_record_is_empty_recorded_no_operation(tmp_path: Path) -> None:
    job = Job(2)
    job.op([0], state=OPEN)
    assert "(it recorded no operation)" in of_dumps(job, tmp_path)["summary"]


def test_of_a_buffer_that_is_not_whole_it_is_said_that_it_has_lost_entries(tmp_path: Path) -> None:
    job = Job(3)
    job.steps(20)
    job.op([0, 1], state=OPEN)
    assert "The buffer of rank 2 has lost its older entries" in of_dumps(job, tmp_path, last={2: 5})["explanation"]


def test_a_rank_alone_in_a_call_of_its_own_is_named_with_its_line(tmp_path: Path) -> None:
    job = Job(3)
    job.steps(5)
    job.op([0], state=OPEN, site="train.py:70")
    found = of_dumps(job, tmp_path)
    assert found["cause"] == "rank_conditional_collective"
    assert [(each["rank"], each["call_site"]["line"]) for each in found["culprits"]] == [(0, 70)]


def test_a_stack_tells_of_its_own_rank_alone(tmp_path: Path) -> None:
    frames = [("read", "/home/user/nfs.py", 5), ("main", "/home/user/train.py", 70)]
    thread = {
        "pid": 5, "thread_id": 1, "thread_name": "MainThread", "os_thread_id": 5, "active": True, "owns_gil": False,
        "frames": [{"name": name, "filename": file, "line": line, "locals": None} for name, file, line in frames],
    }  # fmt: skip
    (tmp_path / "pyspy_rank_2.json").write_text(json.dumps([thread]))
    job = Job(4)
    job.steps(5)
    job.op([0, 1], state=OPEN)
    found = of_dumps(job, tmp_path)
    assert (found["cause"], named(found)) == ("undetermined", [2, 3])
    assert "(rank 2: its main thread is in read (nfs.py:5), called at nfs.py:5 in read());" in found["summary"]
    assert "none shows that all of them stood still in one thing" in found["explanation"]


def test_a_wait_in_a_file_older_than_another_one_proves_nothing(tmp_path: Path) -> None:
    """Rank 0's file does not know of what ranks 2 and 3 completed with it, so it may be through with rank 1 as well."""
    job = Job(4)
    job.group("9", [0, 1], "tp")
    job.group("8", [0, 2, 3], "dp")
    job.steps(5)
    job.steps(5, "9")
    job.steps(5, "8")
    job.op([0], "9", state=OPEN)
    job.op([2, 3], "8")
    assert of_dumps(job, tmp_path)["certainty"] == "LATE"


def test_of_ranks_that_hold_each_other_up_those_missing_in_the_longest_wait_have_not_entered_it(tmp_path: Path) -> None:
    text = (
        WAITED.replace("group dp 0-3", "group dp 0-3\ngroup tp 1,3")
        + """
history 1,3 tp#1-6 all_reduce train.py:40
at 2-3 val.py:9 still 0
in 1 tp#7 all_reduce train.py:40 for 30
in 0 dp#7 all_reduce train.py:44 for 28
"""
    )
    found = of_rings(tmp_path, text)
    assert named(found) == [2, 3]
    assert found["summary"].startswith("rank 3 has not entered all_reduce #7 of group tp")


def test_a_ring_tells_of_its_host_even_where_its_main_thread_has_no_frame(tmp_path: Path) -> None:
    job = situation(WAITED + "at 2 val.py:9 still 0\nin 0-1,3 dp#7 all_reduce train.py:60 for 30")
    view = job.ranks[2]
    job.ranks[2] = replace(view, threads=tuple(replace(each, leaf="") for each in view.threads))
    (found,) = said(left_by(job.snapshot(), tmp_path))["incidents"]
    assert "Why it does not come, no file tells: none shows that it stood still." in found["explanation"]


def test_of_a_file_that_is_older_than_the_others_the_largest_group_in_which_it_is_behind_is_told(
    tmp_path: Path,
) -> None:
    job = Job(4)
    job.group("9", [2, 3], "tp")
    job.steps(5)
    job.steps(3, "9")
    job.op([0, 1, 2])
    job.op([2], "9")
    found = of_dumps(job, tmp_path)
    assert found["summary"].startswith("the record of rank 3 ends at #5 of ")
    assert "while others completed up to #6" in found["summary"]
