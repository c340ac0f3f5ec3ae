"""Flight Recorder dumps of hangs whose cause is known, and of jobs that are well."""

from pathlib import Path

from tests.postmortem.analysis import brief, said, told
from tests.postmortem.dumps import OPEN, Job


def test_a_rank_that_did_not_come_is_named_with_its_last_line(tmp_path: Path):
    job = Job(4)
    job.steps(50)
    job.op([3], site="train.py:40")
    job.ranks[3].entries.pop()
    job.op([0, 1, 2], state=OPEN, site="train.py:60")
    answer = said(job.write(tmp_path))
    incident = answer["incidents"][0]
    assert brief(tmp_path) == [("critical", "STALLED", "undetermined", [3], [0, 1, 2])]
    assert incident["culprits"][0]["call_site"]["line"] == 44
    assert (incident["group"], incident["seq"], incident["op"]) == ("0", 51, "all_reduce")
    assert incident["onset_to_open_s"] == 620.0
    assert "train.py:60" in incident["summary"]


def test_the_rank_missing_in_its_tensor_group_is_the_root_and_all_other_groups_are_victims(tmp_path: Path):
    job = Job(8)
    tp = [job.group("1", range(4), "tp", of="1/a"), job.group("1", range(4, 8), "tp", of="1/b")]
    dp = [job.group(str(2 + n), [n, n + 4], "dp") for n in range(4)]
    for _ in range(10):
        for name in (*tp, *dp):
            job.steps(1, name)
    job.op([0, 1, 2], "1/a", state=OPEN, site="layer.py:12")  # rank 3 is missing
    job.steps(1, "1/b")
    for n, name in enumerate(dp):
        job.op([n + 4], name, state=OPEN, site="ddp.py:77")
    assert brief(job.write(tmp_path)) == [("critical", "STALLED", "undetermined", [3], [0, 1, 2, 4, 5, 6, 7])]
    assert "group tp" in told(tmp_path)


def test_healthy_dumps_have_no_verdict(tmp_path: Path):
    job = Job(4)
    job.steps(30)
    assert said(job.write(tmp_path))["incidents"] == []
    assert "nothing is wrong" in told(tmp_path)
