"""What the moments of files leave open: whether the job went on after they were written, and which file is older."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import FileView, GroupView, Op, OpView, RankView, ThreadView, WaitKind, WaitView
from ncclwatch_server.judge.theory.moments import AT_WORK_S, is_outdated, may_go_on, perhaps_older
from ncclwatch_server.judge.theory.waits.rank_standing import standings
from tests.unit.server.server_values import view


def of_file(rank: int, source: str = "ring", enqueued: int = 4, completed: int = 3, **changes: object) -> RankView:
    """Return the view of a rank that waits in the fourth collective, as a file tells it."""
    file = replace(FileView(source=source, path="/f", timed=True, saw_host=True), **changes)  # type: ignore[arg-type]
    group = GroupView(name="dp", desc="", ranks=(0, 1), enqueued=enqueued, completed=completed, prefix_hash=0)
    wait = WaitView(kind=WaitKind.COLLECTIVE, age_s=9.0, group="dp", seq=enqueued, op=Op.ALL_REDUCE)
    threads = (ThreadView(tid=1, main=True, issued=4, wait=wait if enqueued > completed else None),)
    history = (OpView(group="dp", seq=enqueued, op=Op.ALL_REDUCE, age_s=9.0),)
    return replace(view(rank), file=file, groups=(group,), threads=threads, history=history, timeout_s=600.0)


@pytest.mark.parametrize(("source", "goes_on"), [("ring", True), ("flight recorder", True), ("log", False)])
def test_a_log_speaks_at_the_end_of_a_job_and_other_files_at_any_moment(source: str, goes_on: bool):
    views = {0: of_file(0, source), 1: of_file(1)}
    found = standings(JobSnapshot(job="job", world_size=2, ranks=views, stacks={}, silent={}))
    assert may_go_on(found) is goes_on


@pytest.mark.parametrize(
    ("older_s", "age_s", "outdated"),
    [
        (AT_WORK_S, 1.0, True),
        (AT_WORK_S, AT_WORK_S, False),  # it had been there for long when the file was written
        (1.0, 1.0, False),  # others were written as early
    ],
)
def test_a_file_of_a_rank_at_work_is_outdated_once_others_were_written_much_later(
    older_s: float, age_s: float, outdated: bool
):
    assert is_outdated(of_file(0, older_s=older_s), age_s) is outdated


def test_what_an_agent_reports_is_never_outdated():
    assert not is_outdated(view(0), 0.0)


def test_only_a_file_that_lacks_what_others_have_completed_may_be_older():
    ahead, behind, level = of_file(0, enqueued=6, completed=5), of_file(1), of_file(2, enqueued=5, completed=5)
    assert perhaps_older({0: ahead, 1: behind, 2: level}) == {1}
