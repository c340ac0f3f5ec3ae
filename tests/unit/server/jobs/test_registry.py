"""Which announcement is about which job, under which name."""

from dataclasses import replace

import msgspec
import pytest

from ncclwatch.contract import config, wire
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.model.job import WaitClass
from ncclwatch.contract.model.phases import Phase
from ncclwatch.contract.model.preflight import RankFacts
from ncclwatch.contract.model.rank import Ending
from ncclwatch.contract.network.tokens import Bounds
from ncclwatch_server import limits
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.jobs.registry import Jobs, OverError
from ncclwatch_server.security.scopes import Caller
from ncclwatch_server.state.waits.history import Lesson, Memory
from tests.unit.server.server_values import view


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
    with pytest.raises(OverError, match="attempt 0 of job job is over"):
        announce(jobs, link(4))
    assert jobs.listed() == (new,)


def test_an_ended_job_stays_when_its_own_agent_speaks_again_and_begins_anew_with_another() -> None:
    jobs = Jobs()
    job = announce(jobs, link(1, "a"))
    job.state.gone(1)
    job.release()
    assert announce(jobs, link(2, "a")) is job
    again = announce(jobs, link(3, "b"))
    assert again is not job
    assert not again.ended


def test_a_job_that_was_given_up_is_watched_again_when_its_own_agent_comes_back_and_ranks_live() -> None:
    jobs = Jobs()
    lost = announce(jobs, link(1, "a"), run=1)
    announce(jobs, link(2, "b"), ranks=(1,), run=1)
    for number in (1, 2):
        jobs.lose(link(number), 11.0)
    assert lost.deserted(11.0 + limits.ABANDONED_S)
    lost.release()
    assert announce(jobs, link(3, "a"), run=1, lives=False) is lost, "its ranks have ended meanwhile"
    job = announce(jobs, link(4, "a"), run=1)
    assert job is not lost
    assert (job.ended, job.key, job.id) == (False, lost.key, "job")
    assert announce(jobs, link(5, "b"), ranks=(1,), run=1) is job
    assert jobs.all() == (job,)
    assert announce(jobs, link(5, "b"), ranks=(1,), run=1, attempt=1).key.attempt == 1
    assert jobs.retiring == [job]


def test_a_job_of_which_one_node_reports_says_so_and_what_to_do() -> None:
    jobs = Jobs()
    job = announce(jobs, link(1), elsewhere=True)
    assert not job.unheard_nodes(10.0 + limits.NODES_LATE_S), "the others may still come"
    late = 11.0 + limits.NODES_LATE_S
    assert job.unheard_nodes(late).startswith("of 2 ranks only those on h report to this server")
    assert "NCCLWATCH_SERVER" in job.unheard_nodes(late)
    announce(jobs, link(2), ranks=(1,), elsewhere=True)
    assert not job.unheard_nodes(late)


@pytest.mark.parametrize(
    "word", ["", "node7", "10.0.0.7/8", "::1%; ; 10.0.0.9", "::1%" + 9999 * "x", "127.0.0.7", "0.0.0.0", "224.0.0.7"]
)
def test_an_address_is_remembered_only_where_another_node_can_try_it(word: str) -> None:
    """It is sent to other agents, in a text that has spaces and semicolons between addresses."""
    job = announce(Jobs(), link(1), addresses=(word, "10.0.0.7"))
    assert job.served[1].addresses == ("10.0.0.7",)


def test_a_node_has_no_more_addresses_than_an_agent_tries() -> None:
    job = announce(Jobs(), link(1), addresses=tuple(f"10.0.0.{number}" for number in range(1, 100)))
    assert len(job.served[1].addresses) == config.ADDRESSES_MAX


def test_a_broken_connection_is_not_asked_any_more() -> None:
    jobs = Jobs()
    one, two = link(1), link(2)
    job = announce(jobs, one, ranks=(1,))
    announce(jobs, two, ranks=(0,))
    assert [served.link.number for served in job.living()] == [2, 1]
    jobs.lose(two, 11.0)
    assert [served.link.number for served in job.living()] == [1]
    assert not job.deserted(11.0 + limits.ABANDONED_S + 1)
    jobs.lose(one, 11.0)
    assert not job.deserted(10.0 + limits.ABANDONED_S)
    assert job.deserted(10.0 + limits.ABANDONED_S + 1)


def test_a_job_of_which_ranks_are_unknown_is_not_judged_in_its_first_seconds() -> None:
    jobs = Jobs()
    job = announce(jobs, link(1))
    assert job.is_partial(14.9)
    assert not job.is_partial(15.0)
    announce(jobs, link(2), ranks=(1,))
    assert not job.is_partial(10.0)


def test_jobs_are_bounded_and_ended_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOBS_MAX", 2)
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
    jobs.prune(100.0 + limits.ENDED_KEPT_S)
    assert jobs.listed() == (job,)
    jobs.prune(101.0 + limits.ENDED_KEPT_S)
    assert jobs.listed() == ()


def test_an_agent_that_reads_nothing_is_let_go_and_never_waited_for() -> None:
    slow = link(1)
    for _ in range(limits.OUTBOX_MAX):
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
    job.likeness.compare(20.0, 1, {})
    assert job.likeness.setup.worlds == {4: (("h", (3,)),)}
    assert not jobs.may_begin(other)


def test_a_child_that_is_no_rank_says_nothing_of_the_number_of_ranks() -> None:
    jobs = Jobs()
    job = announce(jobs, link(1))
    set_up(jobs, link(2), announce(jobs, link(2), world_size=1, ranks=(0,)), ())
    job.likeness.compare(20.0, 1, {})
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
        job.likeness.compare(20.0, 1, {})
        assert bool(job.likeness.setup.twice) is twice


def test_a_higher_attempt_from_somebody_who_owns_nothing_runs_beside_the_one_that_reports() -> None:
    jobs = Jobs()
    job = announce(jobs, link(1))
    forged = announce(jobs, link(2), attempt=7)
    assert jobs.get("job") is job
    assert forged.id.startswith("job~")
    assert jobs.retiring == []
    assert "attempt 7 of 'job' reports while attempt 0 goes on" in job.notices[0]
    assert job.notices == forged.notices


def test_a_claimed_rank_gives_no_right_to_say_what_attempt_or_run_comes_next() -> None:
    jobs = Jobs()
    job = announce(jobs, link(1))
    announce(jobs, link(2))
    announce(jobs, link(2), ranks=())
    assert announce(jobs, link(2), run=2) is job
    assert announce(jobs, link(2), attempt=1).id != "job"
    assert jobs.get("job") is job


def test_an_attempt_that_a_new_node_tells_of_first_takes_the_name_when_an_old_node_tells_of_it() -> None:
    jobs = Jobs()
    old = announce(jobs, link(1))
    early = announce(jobs, link(2), attempt=1, ranks=(1,))
    assert announce(jobs, link(1), attempt=1, index=1) is early
    assert jobs.listed() == (early,)
    assert (early.id, early.notices, jobs.retiring) == ("job", (), [old])


def test_agents_of_the_attempt_before_get_the_ranks_that_a_stranger_was_first_to_claim() -> None:
    jobs = Jobs()
    announce(jobs, link(1))
    squatted = announce(jobs, link(2), attempt=1, ranks=(0, 1))
    announce(jobs, link(1), attempt=1)
    assert [squatted.state.owner(rank) for rank in (0, 1)] == [1, 2]


def test_an_attempt_takes_the_place_of_one_of_which_nobody_is_heard_any_more() -> None:
    jobs = Jobs()
    old = announce(jobs, link(1))
    beside = announce(jobs, link(2), attempt=1)
    jobs.lose(link(1), 11.0)
    jobs.prune(11.0)
    assert jobs.listed() == (beside,)
    assert (beside.id, jobs.retiring) == ("job", [old])


def test_a_restart_follows_its_own_attempt_whatever_a_stranger_has_put_in_between() -> None:
    jobs = Jobs()
    announce(jobs, link(1))
    forged = announce(jobs, link(2), attempt=2**31 - 1)
    jobs.lose(link(1), 10.5)
    jobs.prune(10.5)
    assert jobs.get("job") is forged
    again = announce(jobs, link(3, "agent1"), attempt=1)
    assert jobs.get("job") is again
    assert forged in jobs.retiring


def test_jobs_of_one_name_are_all_listed() -> None:
    jobs = Jobs()
    for number in range(700):
        one = Link(number=number, agent=f"a{number}", host=f"host{number}", version="1")
        announce(jobs, one, instance=f"host{number}")
    assert len(jobs.listed()) == 700


def test_an_announcement_without_ranks_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RANKS_TOTAL_MAX", 3)
    jobs = Jobs()
    for number in range(9):
        announce(jobs, link(number), job=f"empty{number}", world_size=100_000, ranks=())
    announce(jobs, link(20), job="a")
    announce(jobs, link(20), job="b", ranks=(0, 1))
    with pytest.raises(WireError, match=r"no room for job c of 2 ranks: this server watches 11 jobs of 3 ranks"):
        announce(jobs, link(20), job="c")
    with pytest.raises(WireError, match="no room for job a"):
        announce(jobs, link(21), job="a", ranks=(1,))


def test_one_connection_cannot_say_more_ranks_than_are_to_be_expected_of_one() -> None:
    jobs = Jobs()
    announce(jobs, link(1), job="a", world_size=limits.UNSEEN_PER_AGENT_MAX // 2 + 1)
    with pytest.raises(WireError, match="of which 100001 ranks are still to come"):
        announce(jobs, link(1), job="b", world_size=limits.UNSEEN_PER_AGENT_MAX // 2)
    announce(jobs, link(2), job="b", world_size=limits.UNSEEN_PER_AGENT_MAX // 2)


def test_agents_of_one_host_and_of_one_token_begin_so_many_jobs_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOBS_PER_HOST_MAX", 1)
    jobs, few = Jobs(), Caller(name="bob", bounds=Bounds(jobs_max=1))
    announce(jobs, link(1), job="a")
    with pytest.raises(WireError, match="agents on h have begun 1 jobs, and 1 are the limit"):
        announce(jobs, link(2), job="b")
    elsewhere = [Link(number=n, agent=f"a{n}", host=f"h{n}", version="1", caller=few) for n in (3, 4)]
    announce(jobs, elsewhere[0], job="c")
    with pytest.raises(WireError, match="agents with the token of bob have begun 1 jobs"):
        announce(jobs, elsewhere[1], job="d")
    announce(jobs, elsewhere[1], job="c", ranks=(1,))
    jobs.prune(11.0)
    with pytest.raises(WireError, match="the token of bob"):
        announce(jobs, elsewhere[1], job="d")


def test_a_token_that_is_bound_allows_its_own_jobs_only() -> None:
    bound = Link(
        number=1, agent="a", host="h", version="1", caller=Caller(name="bob", bounds=Bounds(namespaces=("team-a",)))
    )
    announce(Jobs(), bound, job="team-a/x")
    with pytest.raises(WireError, match="the token of bob is bound to namespace=team-a, and does not allow job 'x'"):
        announce(Jobs(), bound, job="x")


def test_what_a_job_remembers_of_its_agents_does_not_grow_with_their_connections() -> None:
    jobs = Jobs()
    for number in range(2000):
        job = announce(jobs, link(number))
        job.state.fold(10.0)
        jobs.lose(link(number), 10.0)
    assert (len(job.served), job.state.links) == (2, 1)
    assert len(job.agents) <= limits.AGENTS_PER_RANK_MAX * job.world_size + 16


def bound(number: int, token: str = "a", **bounds: object) -> Link:
    known = {"namespaces": ("team",), **bounds}
    caller = Caller(name=token, holder=token, bounds=Bounds(**known))  # type: ignore[arg-type]
    return Link(number=number, agent=f"agent{number}", host="h", version="1", caller=caller)


def test_a_token_is_told_how_many_ranks_it_may_announce_and_others_have_room() -> None:
    jobs = Jobs()
    greedy = bound(1, ranks_max=3)
    announce(jobs, greedy, job="team/a", ranks=(0, 1))
    announce(jobs, greedy, job="team/b")
    with pytest.raises(WireError, match="agents with the token of a have announced 3 ranks, and 3 are the limit"):
        announce(jobs, greedy, job="team/b", ranks=(0, 1))
    with pytest.raises(WireError, match="no room for 1 more ranks of job team/c"):
        announce(jobs, greedy, job="team/c")
    assert announce(jobs, bound(2, "b", ranks_max=1), job="team/b", ranks=(1,)).seen == 2
    jobs.prune(10.0)
    with pytest.raises(WireError, match="have announced 3 ranks"):
        announce(jobs, greedy, job="team/c")


def test_ranks_of_a_token_in_the_job_of_another_one_count_for_the_token_that_announced_them() -> None:
    jobs = Jobs()
    owner = bound(1, ranks_max=2, jobs_max=1)
    announce(jobs, owner, job="team/a", world_size=100, ranks=(0,))
    announce(jobs, bound(2, "b"), job="team/a", world_size=100, ranks=tuple(range(1, 99)))
    jobs.prune(10.0)
    assert announce(jobs, owner, job="team/a", world_size=100, ranks=(0, 99)).seen == 100


def test_many_tokens_of_one_namespace_have_its_share_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOBS_SHARE_MAX", 3)
    jobs = Jobs()
    for number in range(3):
        announce(jobs, bound(number, f"t{number}"), job=f"team/{number}")
    with pytest.raises(WireError, match="agents in namespace team have begun 3 jobs"):
        announce(jobs, bound(3, "t3"), job="team/3")
    announce(jobs, bound(4, "t3", namespaces=("other",)), job="other/3")


def test_a_job_that_starts_again_has_room_beside_what_is_left_of_it() -> None:
    jobs = Jobs()
    mine = bound(1, jobs_max=1, ranks_max=2)
    announce(jobs, mine, job="team/a", ranks=(0, 1))
    again = announce(jobs, mine, job="team/a", attempt=1)
    jobs.prune(10.0)
    assert announce(jobs, mine, job="team/a", attempt=1, ranks=(0, 1)) is again
    with pytest.raises(WireError, match="no room for another attempt of job team/a yet"):
        announce(jobs, mine, job="team/a", attempt=2)
    jobs.retiring[0].release()
    jobs.prune(10.0)
    assert announce(jobs, mine, job="team/a", attempt=2, ranks=(0, 1)).seen == 2


def test_jobs_that_have_ended_make_room_for_ranks_of_one_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RANKS_TOTAL_MAX", 2)
    jobs = Jobs()
    announce(jobs, link(1), job="over").release()
    going = announce(jobs, link(2), job="going")
    assert announce(jobs, link(2), job="going", ranks=(0, 1)) is going


def test_a_bound_token_says_no_more_ranks_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SAID_SHARE_MAX", 300)
    monkeypatch.setattr(limits, "RANKS_SHARE_MAX", 300)
    jobs = Jobs()
    announce(jobs, bound(1), job="team/a", world_size=200)
    with pytest.raises(WireError, match="say to have 200 ranks, and 300 are the limit"):
        announce(jobs, bound(2), job="team/b", world_size=101)
    announce(jobs, bound(3, "b", namespaces=("other",)), job="other/a", world_size=200)


def test_jobs_that_come_and_go_push_ended_jobs_of_their_token_from_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "JOBS_MAX", 4)
    jobs = Jobs()
    announce(jobs, bound(1, "a"), job="team/first").release()
    for number in range(9):
        announce(jobs, bound(2, "b"), job=f"team/{number}").release()
    assert [job.id for job in jobs.listed()] == ["team/6", "team/7", "team/8", "team/first"]
    before = jobs.room.jobs, jobs.room.ranks, jobs.room.said
    jobs.prune(10.0)
    assert (jobs.room.jobs, jobs.room.ranks, jobs.room.said) == before


def test_what_others_told_of_a_rank_before_it_came_is_forgotten() -> None:
    jobs = Jobs()
    job = announce(jobs, link(1), world_size=3)
    told = [replace(view(rank, Ending(kind="crashed")), attached=rank == 2) for rank in (1, 2)]
    job.inspection.receive_views(told, (1, 0), 10.0)
    job.state.note_ended(1)
    announce(jobs, link(2), world_size=3, ranks=(1, 2))
    assert (job.inspection.view(1), job.inspection.view(2)) == (None, told[1])
    assert not job.state.ended[1]


def test_a_job_whose_name_is_only_an_address_learns_from_its_own_attempts_and_from_no_stranger() -> None:
    kind = WaitClass(phase=Phase.STEP, op="barrier", size=8)
    jobs = Jobs(Memory({"job": [Lesson(kind=kind).with_wait(40.0, 2.0)]}))
    assert kind in announce(jobs, link(1, "a")).patience.habits
    stranger = announce(jobs, link(2, "b"), instance="j", named=False)
    assert not stranger.patience.habits
    again = announce(jobs, link(2, "b"), instance="j", attempt=1, named=False)
    assert again.patience._habits is stranger.patience._habits


def test_what_a_launch_says_of_itself_is_bounded() -> None:
    job = announce(Jobs(), link(1), title="t" * 1000, command="c" * 10_000, user="u" * 1000)
    assert (len(job.launch_facts.title), len(job.launch_facts.command), len(job.launch_facts.user)) == (80, 300, 80)
