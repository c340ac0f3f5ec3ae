"""Which agents hear of hangs, of which hangs, and how often."""

from dataclasses import replace

from ncclwatch.contract import wire
from ncclwatch.contract.model.verdict import Cause, Certainty, Severity
from ncclwatch.contract.on_hang.hangs import Hangs, Hooks, decode
from ncclwatch.contract.on_hang.hook import PER_ATTEMPT_MAX
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.incidents.book import IncidentBook, IncidentState, JobKey, Opening
from ncclwatch_server.jobs.hook_grants import HookGrants
from ncclwatch_server.jobs.job import Job, KeptCapture
from ncclwatch_server.jobs.registry import Jobs
from ncclwatch_server.state.waits.history import Memory
from ncclwatch_server.watch.hangs import acting as watch_acting
from tests.unit.server.server_values import VERDICT, verdict


def announced(
    jobs: Jobs, *, number: int, acts: bool, attempt: int = 1, link: Link | None = None, **hooks: bool
) -> tuple[Job, Link]:
    link = link or Link(number=number, agent=f"a{number}", host=f"node{number}", version="1")
    said = wire.Announce(
        index=7,
        job="llama",
        instance="i",
        attempt=attempt,
        world_size=2,
        ranks=((number - 1) % 2,),
        terminal=False,
        acts=acts,
        hooks=hooks,
    )
    return jobs.announce(link, said, 0.0), link


def opened(book: IncidentBook, at_s: float, attempt: int = 1, name: str = "llama", **changes: object) -> str:
    key = JobKey(name=name, instance="i", attempt=attempt)
    said = replace(VERDICT, **changes)  # type: ignore[arg-type]
    incident = book.open(Opening(key=key, job=name, world_size=2, verdict=said, delay_s=0.0), at_s)
    assert incident is not None
    return incident.id


def tell_agents(job: Job, book: IncidentBook, now: float, capture: str | None = "capture: a:/b") -> None:
    for each in book.open_of(job.key):  # the look that has opened it has told agents as well
        job.hangs_since.setdefault(each.id, max(each.opened_at, each.reopened_at))
    watch_acting.tell_agents(job, book, now, lambda _: capture)


def heard(link: Link) -> list[Hangs]:
    found = [each for each in link.outbox if isinstance(each, wire.Command) and each.kind is wire.CommandKind.HANGS]
    link.outbox.clear()
    assert all(each.index == 7 for each in found)
    return [decode(each.text) for each in found]


def test_only_agents_that_act_hear_of_a_hang_and_only_when_it_is_news() -> None:
    jobs, book = Jobs(Memory()), IncidentBook()
    job, acting = announced(jobs, number=1, acts=True)
    _, other = announced(jobs, number=2, acts=False)
    tell_agents(job, book, 100.0)
    assert heard(acting) == []  # there is nothing to tell
    incident = opened(book, 100.0)
    tell_agents(job, book, 101.0)
    assert heard(acting) == []  # stacks may come yet
    for now in (103.0, 104.0, 105.0):
        tell_agents(job, book, now)
    (found,) = heard(acting)
    assert [(each.incident, each.stands_s, each.hang.cause) for each in found.open] == [
        (incident, 3.0, VERDICT.cause.value)
    ]
    book.close(job.key, IncidentState.RESOLVED, 106.0)
    tell_agents(job, book, 107.0)
    assert heard(acting) == [Hangs()]
    assert heard(other) == []


def test_a_wall_clock_that_is_set_makes_no_hang_older_or_younger() -> None:
    """A hang that may end by itself would else be acted on at once, or one that is proven not for hours."""
    for set_by in (3600.0, -3600.0):
        jobs, book = Jobs(Memory()), IncidentBook()
        job, link = announced(jobs, number=1, acts=True)
        incident = opened(book, 1_800_000_000.0 + set_by)
        for now in (50.0, 60.0):
            watch_acting.tell_agents(job, book, now, lambda _: "capture: a:/b")
        assert [(each.incident, each.stands_s) for found in heard(link) for each in found.open] == [(incident, 10.0)]


def test_a_hang_that_comes_back_while_no_agent_acts_stands_since_then() -> None:
    jobs, book = Jobs(Memory()), IncidentBook()
    job, link = announced(jobs, number=1, acts=True)
    incident = opened(book, 100.0)
    watch_acting.tell_agents(job, book, 100.0, lambda _: "capture: a:/b")
    jobs.lose(link, 1.0)
    book.close(job.key, IncidentState.RESOLVED, 110.0)
    watch_acting.tell_agents(job, book, 110.0, lambda _: "capture: a:/b")
    known = book.get(incident)
    assert known is not None
    book.update(known, VERDICT, frozenset(), 200.0)
    watch_acting.tell_agents(job, book, 200.0, lambda _: "capture: a:/b")
    _, again = announced(jobs, number=3, acts=True)
    for now in (210.0, 220.0):
        watch_acting.tell_agents(job, book, now, lambda _: "capture: a:/b")
    assert [each.stands_s for found in heard(again) for each in found.open] == [10.0]


def test_an_agent_hears_of_a_hang_when_its_capture_is_there() -> None:
    jobs, book = Jobs(Memory()), IncidentBook()
    job, link = announced(jobs, number=1, acts=True)
    opened(book, 100.0)
    tell_agents(job, book, 110.0, None)  # it is being written
    assert heard(link) == []
    tell_agents(job, book, 111.0, "capture: node:/a.zip")
    (found,) = heard(link)
    assert [each.capture for each in found.open] == ["capture: node:/a.zip"]


def test_an_agent_that_comes_back_hears_all_again() -> None:
    jobs, book = Jobs(Memory()), IncidentBook()
    job, first = announced(jobs, number=1, acts=True)
    opened(book, 100.0)
    tell_agents(job, book, 110.0)
    assert len(heard(first)) == 1
    jobs.lose(first, 1.0)
    _, again = announced(jobs, number=3, acts=True)
    tell_agents(job, book, 111.0)
    assert len(heard(again)) == 1


def test_warnings_and_other_jobs_are_no_hangs_and_former_attempts_are_told_as_such() -> None:
    jobs, book = Jobs(Memory()), IncidentBook()
    job, link = announced(jobs, number=1, acts=True, attempt=2)
    opened(book, 1.0, attempt=2, severity=Severity.WARNING, certainty=Certainty.LATE)
    opened(book, 1.0, attempt=2, predicted=True, group="p")
    opened(book, 1.0, attempt=0, name="other")
    for attempt in (0, 1):
        opened(book, 1.0, attempt=attempt)
        opened(book, 1.0, attempt=attempt, culprits=verdict(culprits=(0,)).culprits, group="g")
    opened(book, 1.0, attempt=3)
    tell_agents(job, book, 100.0)
    (found,) = heard(link)
    assert found.open == ()
    assert [sorted(each.ranks) for each in found.before] == [[1], [0], [1], [0]]
    assert found.attempts == 2


def test_a_run_that_somebody_has_started_by_hand_has_none_of_the_attempts_before_it() -> None:
    """At the same address and under the same name."""
    jobs, book = Jobs(Memory()), IncidentBook()
    job, link = announced(jobs, number=1, acts=True, attempt=1)
    job.key = replace(job.key, run=1)
    opened(book, 1.0, attempt=0)
    tell_agents(job, book, 100.0)
    assert heard(link) == []


def test_what_resolved_or_crashed_in_a_former_attempt_was_no_reason_to_start_again() -> None:
    jobs, book = Jobs(Memory()), IncidentBook()
    job, link = announced(jobs, number=1, acts=True, attempt=3)
    opened(book, 1.0, attempt=0)
    book.close(JobKey(name="llama", instance="i", attempt=0), IncidentState.RESOLVED, 2.0)
    opened(book, 1.0, attempt=1, cause=Cause.RANK_CRASHED)
    opened(book, 1.0, attempt=2)
    for attempt in (1, 2):
        book.close(JobKey(name="llama", instance="i", attempt=attempt), IncidentState.ENDED, 2.0)
    tell_agents(job, book, 100.0)
    (found,) = heard(link)
    assert ([each.cause for each in found.before], found.attempts) == ([VERDICT.cause.value], 1)


def test_a_hang_that_comes_back_stands_since_then() -> None:
    jobs, book = Jobs(Memory()), IncidentBook()
    job, link = announced(jobs, number=1, acts=True)
    incident = opened(book, 100.0)
    book.close(job.key, IncidentState.RESOLVED, 110.0)
    known = book.get(incident)
    assert known is not None
    book.update(known, VERDICT, frozenset(), 9000.0)
    tell_agents(job, book, 9005.0)
    (found,) = heard(link)
    assert [each.stands_s for each in found.open] == [5.0]


def test_what_is_wrong_and_what_to_do_is_told_in_words() -> None:
    jobs, book = Jobs(Memory()), IncidentBook()
    job, link = announced(jobs, number=1, acts=True)
    opened(book, 100.0)
    tell_agents(job, book, 110.0)
    (found,) = heard(link)
    assert [(each.sentence, each.advice) for each in found.open] == [(VERDICT.summary, VERDICT.advice)]


def test_a_hook_is_granted_to_the_agent_that_asks_first_with_what_it_is_given() -> None:
    jobs, book = Jobs(Memory()), IncidentBook()
    job, first = announced(jobs, number=1, acts=True)
    _, second = announced(jobs, number=2, acts=True)
    incident = opened(book, 100.0)
    job.kept_captures[incident] = KeptCapture(begun_at=0.0, words="capture: a:/b", place="a:/b")
    tell_agents(job, book, 110.0)
    assert [heard(each)[0].hooks for each in (first, second)] == [Hooks(), Hooks()]
    announced(jobs, number=2, acts=True, link=second, **{incident: False})
    announced(jobs, number=1, acts=True, link=first, **{incident: False})
    tell_agents(job, book, 111.0)
    ((theirs,), (mine,)) = heard(first), heard(second)
    assert theirs.hooks == Hooks(taken=(incident,))
    assert mine.hooks is not None
    (facts,) = mine.hooks.granted
    assert (facts.incident, facts.culprits, facts.capture) == (incident, VERDICT.culprits, "a:/b")
    assert facts.opened_at.startswith("1970-01-01T00:01:40")
    announced(jobs, number=1, acts=True, link=first, **{incident: True})  # it does not run it
    tell_agents(job, book, 112.0)
    assert heard(first) == heard(second) == []
    announced(jobs, number=2, acts=True, link=second, **{incident: True})
    tell_agents(job, book, 113.0)
    assert [each.hooks.over for link in (first, second) for each in heard(link) if each.hooks] == [(incident,)] * 2


def test_only_so_many_hooks_are_granted_for_an_attempt() -> None:
    grants = HookGrants()
    grants.note("a", {"x" * 65: False})
    grants.note("a", {f"i{number}": False for number in range(1000)})
    assert grants.granted("a", [f"i{number}" for number in range(1000)]) == tuple(
        f"i{number}" for number in range(PER_ATTEMPT_MAX)
    )
    grants.note("b", {"i1": True, "i500": True})
    assert (grants.granted("b", ["i1", "i500"]), grants.over(["i1", "i500"])) == ((), ())
    assert (grants.taken("b", ["i1", "i500"]), grants.taken("a", ["i1"])) == (("i1",), ())
