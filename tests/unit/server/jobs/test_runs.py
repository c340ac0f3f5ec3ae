"""Which announcement is about which run of a launch that somebody starts again by hand."""

from dataclasses import replace

import msgspec
import pytest

from ncclwatch.contract import wire
from ncclwatch_server import limits
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.jobs.registry import Jobs, OverError
from tests.unit.server.jobs.test_registry import announce, link


def test_a_launch_started_again_by_hand_takes_the_place_of_the_run_that_has_ended_or_is_about_to() -> None:
    jobs = Jobs()
    a, b = link(1, "a"), link(2, "b")
    first = announce(jobs, a, run=1)
    assert announce(jobs, b, run=3, ranks=(1,)) is first
    second = announce(jobs, a, run=2, index=1)
    assert second is not first
    assert second.id == first.id
    assert second.key != first.key, "the incidents of one are none of the other"
    assert jobs.listed() == (second,)
    assert announce(jobs, b, run=3, ranks=(1,)) is first, "that node is not there yet"
    assert announce(jobs, b, run=4, index=1, ranks=(1,)) is second
    assert announce(jobs, a, run=2, index=1) is second
    first.release()
    jobs.prune(10.0)
    with pytest.raises(OverError):
        announce(jobs, b, run=3, ranks=(1,))
    for each in (a, b):
        second.state.gone(each.number)
    second.release()
    assert announce(jobs, b, run=4, index=1, ranks=(1,)) is second
    assert announce(jobs, b, run=5, index=2, ranks=(0, 1)) not in (first, second)


NO_ROWS = memoryview(b"")
LATER = 10.0 + limits.RUNS_SETTLE_S


def at(jobs: Jobs, to: Link, now: float, **changes: object) -> Job:
    said = wire.Announce(index=0, job="job", instance="i", attempt=0, world_size=2, ranks=(0,), terminal=False)
    return jobs.announce(to, msgspec.structs.replace(said, **changes), now)


def test_a_node_that_does_not_see_the_end_of_a_run_comes_to_the_next_one() -> None:
    """Its agent was started again since, so it counts from 1, or a process of the run before lingers."""
    jobs = Jobs()
    a, b = link(1, "a"), link(2, "b")
    first = announce(jobs, a, run=1)
    announce(jobs, b, run=1, ranks=(1,))
    second = announce(jobs, b, run=2, ranks=(1,), index=1)
    assert second is not first
    assert not jobs.has_outlived(a, first, LATER - 0.1), "it may see the end of it soon"
    assert jobs.has_outlived(a, first, LATER)
    assert at(jobs, a, LATER, run=1) is second
    assert second.seen == 2
    assert first.state.ended[0]
    assert not jobs.has_outlived(a, first, LATER)
    assert at(jobs, a, LATER + 9, run=1) is second


def test_ranks_that_ended_or_that_others_have_by_now_come_to_no_later_run() -> None:
    jobs = Jobs()
    a, b = link(1, "a"), link(2, "b")
    first = announce(jobs, a, run=1)
    announce(jobs, b, run=1, ranks=(1,))
    second = announce(jobs, b, run=2, ranks=(1,), index=1)
    assert at(jobs, a, LATER, run=1, lives=False) is first
    assert at(jobs, link(3, "c"), LATER, run=1) is second
    assert not jobs.has_outlived(a, first, LATER)
    assert at(jobs, a, LATER, run=1) is first


def test_a_server_that_hears_of_the_old_run_of_one_node_after_the_new_one_of_another() -> None:
    jobs = Jobs()
    a, b = link(1, "a"), link(2, "b")
    mixed = announce(jobs, a, run=2)
    assert announce(jobs, b, run=1, ranks=(1,)) is mixed
    current = announce(jobs, b, run=2, ranks=(1,), index=1)
    mixed.release()
    jobs.prune(LATER)
    assert at(jobs, a, LATER, run=2) is current, "its news is of ranks that live"


def test_a_launch_started_again_by_hand_begins_with_its_first_attempt() -> None:
    jobs = Jobs()
    announce(jobs, link(1), run=1)
    restarted = announce(jobs, link(1), attempt=1, run=2)
    again = announce(jobs, link(1), run=3)
    assert again is not restarted
    assert jobs.listed() == (again,)
    assert announce(jobs, link(2), ranks=(1,), run=1) is again
    assert announce(jobs, link(1), attempt=1, run=2) is restarted, "late news"
    assert jobs.listed() == (again,)
    restart = announce(jobs, link(1), attempt=1, run=4)
    assert restart not in (restarted, again)
    assert jobs.listed() == (restart,)


def test_a_server_that_knows_none_takes_the_first_run_that_it_hears_of_for_the_current_one() -> None:
    jobs = Jobs()
    second = announce(jobs, link(1), run=2)
    with pytest.raises(OverError):
        announce(jobs, link(1), run=1)
    assert jobs.listed() == (second,)


def test_a_run_of_another_agent_belongs_to_nobody_who_spoke_in_the_one_that_has_ended() -> None:
    jobs = Jobs()
    announce(jobs, link(1), run=1).release()
    again = announce(jobs, link(2), run=1)
    assert (again.key.run, again.heirs, again.floor) == (1, frozenset(), -1)


def test_what_a_job_remembers_of_past_runs_is_bounded() -> None:
    jobs = Jobs()
    for run in range(1, 40):
        job = announce(jobs, link(0), run=run)
        for number in range(10):
            job.note_agent(f"{run} {number}", 1)
    assert len(job.past_runs) == job._agents_max


@pytest.mark.parametrize("first", ["a", "b"], ids=["the one that failed first", "the one that failed last"])
def test_a_restart_is_one_job_though_each_launcher_counts_the_failures_of_its_own_node(first: str) -> None:
    """A worker of node a has failed: torchrun starts it as attempt 1, and those of node b once more as attempt 0."""
    jobs = Jobs()
    links = {"a": link(1, "a"), "b": link(2, "b")}
    ranks, attempts = {"a": (0,), "b": (1,)}, {"a": 1, "b": 0}
    before = announce(jobs, links["a"], run=1)
    assert announce(jobs, links["b"], run=1, ranks=(1,)) is before
    second = "b" if first == "a" else "a"
    after = announce(jobs, links[first], run=2, attempt=attempts[first], ranks=ranks[first], index=1)
    assert after is not before
    assert after.id == before.id
    assert announce(jobs, links[second], run=2, attempt=attempts[second], ranks=ranks[second], index=1) is after
    assert (after.seen, after.remarks, jobs.listed()) == (2, (), (after,))
    for name, to in links.items():  # the connections are made anew
        said = {"run": 2, "attempt": attempts[name], "ranks": ranks[name], "index": 1}
        assert announce(jobs, replace(to, number=to.number + 2), **said) is after
    third = announce(jobs, links["b"], run=3, attempt=1, ranks=(1,), index=2)
    assert third is not after
    assert announce(jobs, links["a"], run=3, attempt=1, ranks=(0,), index=2) is third
    assert (third.seen, third.id, third.remarks) == (2, before.id, ())


def test_ranks_of_another_attempt_do_not_come_to_one_that_is_ending() -> None:
    jobs = Jobs()
    a, b = link(1, "a"), link(2, "b")
    announce(jobs, a, run=1)
    announce(jobs, b, run=1, ranks=(1,))
    second = announce(jobs, b, run=2, ranks=(1,), index=1)
    second.state.gone(b.number)
    assert announce(jobs, a, run=2, attempt=1, index=1) is not second


def test_a_server_that_was_started_since_the_restart_brings_the_nodes_of_one_job_together() -> None:
    """It has seen no run before, and hears of rank 0 in attempt 0 and of ranks 1 and 2 in attempt 1."""
    jobs = Jobs()
    a, b, c = link(1, "a"), link(2, "b"), link(3, "c")
    said = {"world_size": 3}
    own = at(jobs, a, 10.0, run=2, **said)
    beside = at(jobs, b, 11.0, run=2, attempt=1, ranks=(1,), **said)
    assert at(jobs, c, 11.0, run=2, attempt=1, ranks=(2,), **said) is beside is not own
    assert not jobs.has_outlived(b, beside, LATER - 0.1), "the run before may be about to end"
    assert not jobs.has_outlived(b, beside, LATER), "nobody has spoken for that one for a while"
    later = LATER + 1
    own.state.receive_digest(a.number, NO_ROWS, NO_ROWS, later)
    assert jobs.has_outlived(b, beside, later)
    assert not jobs.has_outlived(a, own, later)
    assert at(jobs, b, later, run=2, attempt=1, ranks=(1,), **said) is own
    assert len(jobs.listed()) == 2, "a rank of that one lives, and it may be of another job"
    assert jobs.has_outlived(c, beside, later)
    assert at(jobs, c, later, run=2, attempt=1, ranks=(2,), **said) is own
    assert (own.id, own.remarks, jobs.listed()) == ("job", (), (own,))
    assert own.seen == 3
    assert beside.state.over
    again = replace(c, number=9)
    assert at(jobs, again, later + 1, run=2, attempt=1, ranks=(2,), **said) is own, "a connection that is made anew"


@pytest.mark.parametrize("ended", [False, True], ids=["has them", "ends"])
def test_ranks_stay_apart_beside_an_attempt_that_has_them_or_that_ends(*, ended: bool) -> None:
    jobs = Jobs()
    a, b = link(1, "a"), link(2, "b")
    own = at(jobs, a, 10.0, run=1, world_size=3, ranks=(0, 1) if ended else (0, 1, 2))
    beside = at(jobs, b, 11.0, run=1, attempt=1, world_size=3, ranks=(2,))
    if ended:
        own.state.note_ended(0)
    own.state.receive_digest(a.number, NO_ROWS, NO_ROWS, LATER)
    assert not jobs.has_outlived(b, beside, LATER)
    assert at(jobs, b, LATER, run=1, attempt=1, world_size=3, ranks=(2,)) is beside is not own
    assert len(jobs.listed()) == 2
