"""Which announcement is about which job, under which name."""

import msgspec
import pytest

from ncclwatch.contract import wire
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.preflight import RankFacts
from ncclwatch_server import settings
from ncclwatch_server.jobs import Job, Jobs
from ncclwatch_server.links import Link


def link(number: int, agent: str = "") -> Link:
    return Link(number=number, agent=agent or f"agent{number}", host="h", version="1")


def announce(jobs: Jobs, to: Link, **changes: object) -> Job:
    said = wire.Announce(index=0, job="job", instance="i", attempt=0, world_size=2, ranks=(0,), terminal=False)
    return jobs.announce(to, msgspec.structs.replace(said, **changes), 10.0)


def test_two_nodes_of_one_launch_are_one_job() -> None:
    jobs = Jobs()
    assert announce(jobs, link(1)) is announce(jobs, link(2), ranks=(1,))
    assert len(jobs.listed()) == 1


def test_another_launch_of_the_same_name_is_listed_apart_while_both_live() -> None:
    jobs = Jobs()
    first, second = announce(jobs, link(1)), announce(jobs, link(2), instance="j")
    assert first.id == "job"
    assert second.id.startswith("job~")
    assert first.notices == second.notices
    assert "NCCLWATCH_JOB" in first.notices[0]


def test_another_launch_takes_the_name_of_a_job_that_has_ended() -> None:
    jobs = Jobs()
    announce(jobs, link(1)).release()
    assert announce(jobs, link(2), instance="j").id == "job"
    assert len(jobs.listed()) == 1


def test_a_new_attempt_retires_the_old_one_and_late_news_of_it_changes_nothing() -> None:
    jobs = Jobs()
    old = announce(jobs, link(1))
    new = announce(jobs, link(1), attempt=1, index=1)
    assert jobs.listed() == (new,)
    assert jobs.retiring == [old]
    assert announce(jobs, link(3)) is old
    old.release()
    jobs.prune(10.0)
    late = announce(jobs, link(4))
    assert late.ended
    assert jobs.listed() == (new,)


def test_an_ended_job_stays_when_its_own_agent_speaks_again_and_begins_anew_with_another() -> None:
    jobs = Jobs()
    job = announce(jobs, link(1, "a"))
    job.release()
    assert announce(jobs, link(2, "a")) is job
    again = announce(jobs, link(3, "b"))
    assert again is not job
    assert not again.ended


def test_a_broken_connection_is_not_asked_any_more() -> None:
    jobs = Jobs()
    one, two = link(1), link(2)
    job = announce(jobs, one, ranks=(1,))
    announce(jobs, two, ranks=(0,))
    assert [served.link.number for served in job.living()] == [2, 1]
    jobs.lose(two, 11.0)
    assert [served.link.number for served in job.living()] == [1]
    assert not job.deserted(11.0 + settings.ABANDONED_S + 1)
    jobs.lose(one, 11.0)
    assert not job.deserted(10.0 + settings.ABANDONED_S)
    assert job.deserted(10.0 + settings.ABANDONED_S + 1)


def test_a_job_of_which_ranks_are_unknown_is_not_judged_in_its_first_seconds() -> None:
    jobs = Jobs()
    job = announce(jobs, link(1))
    assert job.is_partial(14.9)
    assert not job.is_partial(15.0)
    announce(jobs, link(2), ranks=(1,))
    assert not job.is_partial(10.0)


def test_jobs_are_bounded_and_ended_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "JOBS_MAX", 2)
    jobs = Jobs()
    first = announce(jobs, link(1), job="a")
    announce(jobs, link(1), job="b")
    with pytest.raises(WireError, match="no room for job c"):
        announce(jobs, link(1), job="c")
    first.release()
    announce(jobs, link(1), job="c")
    assert [job.id for job in jobs.listed()] == ["b", "c"]


def test_ended_jobs_are_forgotten_after_a_while() -> None:
    jobs = Jobs()
    job = announce(jobs, link(1))
    job.over_at = 100.0
    job.release()
    jobs.prune(100.0 + settings.ENDED_KEPT_S)
    assert jobs.listed() == (job,)
    jobs.prune(101.0 + settings.ENDED_KEPT_S)
    assert jobs.listed() == ()


def test_an_agent_that_reads_nothing_is_let_go_and_never_waited_for() -> None:
    slow = link(1)
    for _ in range(settings.OUTBOX_MAX):
        slow.command(wire.CommandKind.INSPECT, 0)
    assert not slow.closing
    slow.command(wire.CommandKind.INSPECT, 0)
    assert slow.closing


def test_commands_of_a_connection_have_different_ids() -> None:
    one = link(1)
    ids = [one.command(wire.CommandKind.INSPECT, 0) for _ in range(3)]
    assert len({*ids, 0}) == 4


def set_up(jobs: Jobs, to: Link, job: Job, joined: tuple[int, ...]) -> None:
    facts = wire.Alike(ranks=joined, facts=RankFacts(values=(("backend", "gloo"),)))
    jobs.set_up(to, job, wire.Facts(index=0, alike=(facts,), joined=joined), 10.0)


def test_ranks_that_say_another_number_of_ranks_are_told_in_the_job_and_leave_it_as_it_is() -> None:
    jobs = Jobs()
    job = announce(jobs, link(1))
    set_up(jobs, link(1), job, (0,))
    other = announce(jobs, link(2), world_size=4, ranks=(3,))
    assert other is not job
    assert jobs.listed() == (job,)
    set_up(jobs, link(2), other, (3,))
    job.likeness.look(20.0, 1, {})
    assert job.likeness.setup.worlds == {4: (("h", (3,)),)}
    assert not jobs.may_begin(other)


def test_a_child_that_is_no_rank_says_nothing_of_the_number_of_ranks() -> None:
    jobs = Jobs()
    job = announce(jobs, link(1))
    set_up(jobs, link(2), announce(jobs, link(2), world_size=1, ranks=(0,)), ())
    job.likeness.look(20.0, 1, {})
    assert not job.likeness.setup.worlds


def test_a_run_with_another_number_of_ranks_begins_when_the_one_before_has_ended() -> None:
    jobs = Jobs()
    job = announce(jobs, link(1, "a"))
    early = announce(jobs, link(1, "a"), world_size=4, index=1)
    assert early.astray
    job.release()
    assert jobs.may_begin(early)
    later = announce(jobs, link(1, "a"), world_size=4, index=1)
    assert (later.astray, jobs.listed()) == (False, (later,))


def test_ranks_that_meet_at_a_loopback_address_of_two_nodes_are_not_one_rank_twice() -> None:
    for instance, twice in (("127.0.0.1:29500/none", False), ("localhost:1/", False), ("node0:29500/none", True)):
        jobs = Jobs()
        for number, host in ((1, "node0"), (2, "node1")):
            one = Link(number=number, agent=f"a{number}", host=host, version="1")
            job = announce(jobs, one, instance=instance)
            set_up(jobs, one, job, (0,))
        job.likeness.look(20.0, 1, {})
        assert bool(job.likeness.setup.twice) is twice
