"""The life of an incident: one hang is one incident."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.verdict import Cause, Certainty, Culprit, Lateness, Severity, Verdict
from ncclwatch_server import limits
from ncclwatch_server.incidents.book import Incident, IncidentBook, IncidentState, JobKey, Opening, fingerprint
from ncclwatch_server.incidents.confirmation import Confirmation, key_of, said_again
from tests.unit.server.server_values import KEY, VERDICT, verdict

NOBODY: frozenset[int] = frozenset()
NONE: frozenset[str] = frozenset()


def opened(book: IncidentBook, said: Verdict = VERDICT, key: JobKey = KEY, now: float = 100.0) -> Incident:
    incident = book.open(Opening(key=key, job=key.name, world_size=4, verdict=said, delay_s=0.5), now)
    assert incident is not None
    return incident


def test_an_incident_says_how_long_after_the_onset_it_opened() -> None:
    assert opened(IncidentBook()).onset_to_open_s == 2.5


@pytest.mark.parametrize("late", [False, True])
def test_it_is_news_once_that_an_incident_of_the_store_still_stands(late: bool) -> None:
    known = opened(IncidentBook())
    book = IncidentBook([] if late else [known])
    if late:  # the store came after the server had begun
        book.recall([known])
    assert book.update(known, VERDICT, NONE) == known
    assert book.update(known, VERDICT, NONE) is None


def test_the_fingerprint_depends_on_what_hangs_and_not_on_how_it_is_told() -> None:
    assert fingerprint(KEY, VERDICT) == fingerprint(KEY, replace(VERDICT, summary="other", onset_s=9.0))
    for other in (verdict(culprits=(2,)), verdict(seq=8), verdict(group="1")):
        assert fingerprint(KEY, VERDICT) != fingerprint(KEY, other)
    for key in (replace(KEY, attempt=1), replace(KEY, instance="x"), replace(KEY, name="x")):
        assert fingerprint(KEY, VERDICT) != fingerprint(key, VERDICT)


def test_two_warnings_about_the_same_ranks_are_two_incidents_and_a_hang_keeps_its_own() -> None:
    warning = replace(VERDICT, severity=Severity.WARNING)
    assert fingerprint(KEY, warning) != fingerprint(KEY, replace(warning, cause=Cause.RNG_STATE_MISMATCH))
    assert fingerprint(KEY, VERDICT) == fingerprint(KEY, replace(VERDICT, cause=Cause.RNG_STATE_MISMATCH))


def test_a_verdict_about_the_same_ranks_belongs_to_the_open_incident() -> None:
    book = IncidentBook()
    incident = opened(book)
    assert book.match(KEY, verdict(Cause.HOST_STALL, culprits=(3,), victims=(1,), seq=9), 100.0) == incident
    assert book.match(KEY, verdict(culprits=(8,), victims=(9,), seq=9), 100.0) is None
    assert book.match(replace(KEY, attempt=1), VERDICT, 100.0) is None
    assert book.match(KEY, verdict(severity=Severity.WARNING), 100.0) is None


def test_two_roots_that_hold_up_the_same_ranks_are_two_incidents() -> None:
    book = IncidentBook()
    first, second = verdict(culprits=(3,), victims=(0, 1)), verdict(culprits=(2,), victims=(0, 1))
    incident = opened(book, first)
    assert book.assign(KEY, [second, first], 100.0) == (None, incident)
    assert book.assign(KEY, [second], 100.0, frozenset([incident.id])) == (None,)
    other = opened(book, second)
    assert book.assign(KEY, [first, second], 100.0) == (incident, other)


def test_a_root_that_is_told_in_another_way_stays_with_its_culprits() -> None:
    book = IncidentBook()
    incident, other = (opened(book, verdict(culprits=(rank,), victims=(0, 1))) for rank in (3, 2))
    moved = [verdict(culprits=(rank, 4), victims=(0, 1), seq=9) for rank in (2, 3)]
    assert book.assign(KEY, moved, 100.0) == (other, incident)
    assert book.assign(KEY, [verdict(culprits=(4,), victims=(0, 1), seq=9), moved[0]], 100.0) == (incident, other)


def test_the_dying_of_a_hung_job_belongs_to_its_incident_and_does_not_change_its_text() -> None:
    book = IncidentBook()
    incident = opened(book)
    crash = verdict(Cause.RANK_CRASHED, culprits=(8,), victims=())
    assert book.match(KEY, crash, 100.0) == incident
    assert book.update(incident, crash, NONE) is None
    assert book.get(incident.id) == incident


def test_a_crash_soon_after_a_resolved_hang_does_not_open_another_but_a_later_one_does() -> None:
    book = IncidentBook()
    incident = opened(book)
    book.close(KEY, IncidentState.RESOLVED, 200.0)
    crash = verdict(Cause.RANK_CRASHED, culprits=(8,), victims=())
    matched = book.match(KEY, crash, 215.0)
    assert matched is not None
    assert matched.id == incident.id
    assert book.update(matched, crash, NONE) is None
    assert book.match(KEY, crash, 215.1) is None


def test_a_crash_is_no_part_of_a_hang_that_another_clock_says_will_resolve_later() -> None:
    """The clock was set back, or another server whose clock is ahead led then."""
    book = IncidentBook()
    opened(book, now=4900.0)
    book.close(KEY, IncidentState.RESOLVED, 5000.0)
    crash = verdict(Cause.RANK_CRASHED, culprits=(8,), victims=())
    assert book.match(KEY, crash, 4985.0) is not None
    assert book.match(KEY, crash, 1400.0) is None


held = replace(VERDICT, culprits=tuple(replace(each, traced=True) for each in VERDICT.culprits))
both_write, all_write = (
    verdict(Cause.CONFLICTING_SAVE, culprits=ranks, victims=(), severity=Severity.WARNING, explained=(0, 0))
    for ranks in ((1, 2), (0, 1, 2))
)


@pytest.mark.parametrize(
    ("old", "new", "shown", "better"),
    [
        (verdict(certainty=Certainty.STALLED), VERDICT, True, True),
        (VERDICT, verdict(certainty=Certainty.STALLED), False, False),
        (verdict(Cause.UNDETERMINED), VERDICT, True, True),
        (VERDICT, verdict(Cause.UNDETERMINED), False, False),
        (verdict(one_of=True), VERDICT, True, True),
        (VERDICT, verdict(one_of=True), False, False),
        (verdict(explained=(2, 3)), VERDICT, True, True),
        (VERDICT, verdict(explained=(2, 3)), False, False),
        (VERDICT, verdict(Cause.HOST_STALL, culprits=(3,)), True, False),
        (VERDICT, verdict(Cause.HOST_STALL, culprits=(3,)), False, True),
        (VERDICT, replace(VERDICT, onset_s=9.0), False, False),
        (verdict(Cause.UNDETERMINED), verdict(Cause.RANK_CRASHED), False, True),
        (VERDICT, verdict(certainty=Certainty.STALLED, disputed=True), True, True),
        (verdict(certainty=Certainty.STALLED, disputed=True), VERDICT, False, False),
        (VERDICT, held, True, True),  # a debugger has come, and has gone
        (held, VERDICT, True, True),
        (both_write, all_write, True, True),
        (all_write, both_write, True, False),
        (verdict(culprits=(1, 2)), verdict(culprits=(0, 1, 2)), True, False),
    ],
)
def test_a_better_verdict_takes_the_place_of_the_old_one(old: Verdict, new: Verdict, shown: bool, better: bool) -> None:
    book = IncidentBook()
    incident = opened(book, old)
    changed = book.update(incident, new, frozenset({incident.id}) if shown else NONE)
    assert (changed is not None) is better
    known = book.get(incident.id)
    assert known is not None
    assert known.verdict == (new if better else old)
    assert known.onset_to_open_s == incident.onset_to_open_s


LATE = verdict(
    Cause.STRAGGLER, culprits=(0, 2), certainty=Certainty.LATE, severity=Severity.WARNING, lateness=Lateness.UNUSUAL,
    victims=(1, 3),
)  # fmt: skip


def test_a_wait_of_which_a_late_rank_has_come_meanwhile_is_the_same_incident() -> None:
    book = IncidentBook()
    incident = opened(book, LATE)
    fewer = replace(LATE, culprits=LATE.culprits[:1])
    assert book.match(KEY, fewer, 100.0) == incident
    assert book.match(KEY, replace(fewer, seq=8), 100.0) is None
    assert book.match(KEY, replace(fewer, certainty=Certainty.STALLED), 100.0) is None


def test_the_sentence_on_a_late_rank_is_always_the_newest_and_only_more_than_time_is_news() -> None:
    book = IncidentBook()
    opened(book, LATE)
    (incident,) = book.all()
    later = replace(LATE, summary="31 s", onset_s=31.0)
    assert book.update(incident, later, frozenset({incident.id})) is None
    (incident,) = book.all()
    assert incident.verdict.summary == "31 s"
    for said in (replace(later, lateness=Lateness.DEADLINE), replace(later, culprits=LATE.culprits[:1])):
        changed = book.update(incident, said, frozenset({incident.id}))
        assert changed is not None
        assert changed.verdict == said


def test_an_open_warning_insists_on_its_urgency_and_on_its_own_wait_only() -> None:
    book = IncidentBook()
    opened(book, replace(LATE, lateness=Lateness.DEADLINE))
    calm = replace(LATE, severity=Severity.INFO, lateness=Lateness.NONE)
    insisted = book.insist(KEY, calm)
    assert (insisted.severity, insisted.lateness) == (Severity.WARNING, Lateness.DEADLINE)
    assert book.insist(KEY, replace(calm, seq=8)) == replace(calm, seq=8)
    assert book.insist(replace(KEY, attempt=1), calm) == calm
    assert book.insist(KEY, VERDICT) == VERDICT


def test_two_snapshots_in_a_row_without_it_resolve_an_incident() -> None:
    book = IncidentBook()
    incident = opened(book)
    assert book.miss(KEY, NONE, NOBODY, 101.0) == ()
    (missed,) = book.open_of(KEY)
    book.update(missed, VERDICT, NONE)
    assert book.miss(KEY, NONE, NOBODY, 102.0) == ()
    assert book.miss(KEY, frozenset({incident.id}), NOBODY, 103.0) == ()
    assert book.miss(KEY, NONE, NOBODY, 104.0) == ()
    (resolved,) = book.miss(KEY, NONE, NOBODY, 105.0)
    assert (resolved.state, resolved.closed_at) == (IncidentState.RESOLVED, 105.0)


def test_no_news_of_its_ranks_does_not_resolve_an_incident() -> None:
    book = IncidentBook()
    opened(book)
    for _ in range(5):
        assert book.miss(KEY, NONE, frozenset({3}), 101.0) == ()


def test_a_resolved_hang_that_comes_back_is_the_same_incident() -> None:
    book = IncidentBook()
    incident = opened(book)
    book.close(KEY, IncidentState.RESOLVED, 110.0)
    known = book.match(KEY, VERDICT, 111.0)
    assert known is not None
    again = book.update(known, VERDICT, NONE)
    assert again == replace(incident, state=IncidentState.OPEN)


def test_a_later_run_of_the_same_name_that_hangs_in_the_same_place_is_another_incident() -> None:
    book = IncidentBook()
    first = opened(book)
    book.close(KEY, IncidentState.ENDED, 110.0)
    assert book.match(KEY, VERDICT, 120.0) is None
    assert opened(book).id == f"{first.id}-2"


def test_open_incidents_are_bounded_and_what_finds_no_room_is_counted() -> None:
    book = IncidentBook()
    for seq in range(limits.OPEN_PER_JOB_MAX):
        opened(book, verdict(seq=seq + 100))
    assert book.open(Opening(key=KEY, job="job", world_size=4, verdict=VERDICT), 1.0) is None
    assert book.refused == 1


def test_jobs_of_one_token_leave_room_for_incidents_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OPEN_SHARE_MAX", 2)
    book = IncidentBook()

    def opens(job: str, *accounts: str) -> bool:
        key = replace(KEY, name=job)
        return book.open(Opening(key=key, job=job, world_size=4, verdict=VERDICT, accounts=accounts), 1.0) is not None

    assert [opens(f"b/{number}", "token b", "namespace b") for number in range(3)] == [True, True, False]
    assert opens("b/3", "token c", "namespace b") is False
    assert opens("a/0", "token a", "namespace a")
    assert opens("anyone")
    book.close(replace(KEY, name="b/0"), IncidentState.RESOLVED, 2.0)
    assert opens("b/4", "token b", "namespace b")


def test_the_oldest_closed_incidents_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLOSED_KEPT_MAX", 2)
    book = IncidentBook()
    ids = []
    for attempt in range(4):
        key = replace(KEY, attempt=attempt)
        ids.append(opened(book, key=key).id)
        book.close(key, IncidentState.ENDED, float(attempt))
    assert {incident.id for incident in book.all()} == set(ids[2:])


def test_a_verdict_stands_when_a_second_snapshot_shows_it() -> None:
    for later, stands in ((0.39, False), (0.4, True), (5.0, True)):
        confirmation = Confirmation()
        assert confirmation.confirm((VERDICT,), 10.0, final=False) == ()
        assert bool(confirmation.confirm((replace(VERDICT, onset_s=3.0),), 10.0 + later, final=False)) is stands


def test_a_verdict_that_was_not_shown_in_between_has_to_be_confirmed_anew() -> None:
    confirmation = Confirmation()
    confirmation.confirm((VERDICT,), 10.0, final=False)
    confirmation.confirm((verdict(culprits=(2,)),), 10.5, final=False)
    assert confirmation.confirm((VERDICT,), 11.0, final=False) == ()
    assert confirmation.confirm((VERDICT,), 11.5, final=False) == (VERDICT,)


def test_the_last_judgement_of_a_job_stands_at_once() -> None:
    assert Confirmation().confirm((VERDICT,), 10.0, final=True) == (VERDICT,)


def test_a_later_judgement_may_name_the_cause_of_the_same_ranks_more_closely() -> None:
    before = verdict(Cause.HOST_STALL, culprits=(3,))
    closer = verdict(Cause.STUCK_SAVE, culprits=(3,))
    assert said_again(before, [closer]) is closer
    again = replace(before, summary="with a line")
    assert said_again(before, [closer, again]) is again
    for other in (verdict(Cause.STUCK_SAVE, culprits=(2,)), replace(closer, severity=Severity.WARNING)):
        assert said_again(before, [other]) is before


def test_two_findings_about_the_same_ranks_are_two_incidents_and_one_finding_stays_one() -> None:
    book = IncidentBook()
    drift = verdict(Cause.CONFIGURATION_DRIFT, (1,), severity=Severity.WARNING, group="", seq=0)
    versions, models = replace(drift, about="versions: torch"), replace(drift, about="models DDP 0-3")
    assert key_of(versions) != key_of(models)
    for each in (versions, models):
        assert book.match(KEY, each, 0.0) is None
        book.open(Opening(key=KEY, job="job", world_size=4, verdict=each), 0.0)
    assert len(book.open_of(KEY)) == 2

    more = replace(versions, culprits=(Culprit(rank=1), Culprit(rank=3)), summary="ranks 1,3 differ")
    known = book.match(KEY, more, 1.0)

    assert key_of(more) == key_of(versions)
    assert known is not None
    assert known.verdict.about == "versions: torch"
    changed = book.update(known, more, frozenset((known.id,)))
    assert changed is not None
    assert changed.verdict.summary == "ranks 1,3 differ"
    assert book.update(changed, more, frozenset((known.id,))) is None


def test_a_hang_of_the_same_ranks_is_no_part_of_what_they_differ_in() -> None:
    book = IncidentBook()
    drift = verdict(Cause.CONFIGURATION_DRIFT, (1,), severity=Severity.WARNING, group="", seq=0, about="clocks")
    book.open(Opening(key=KEY, job="job", world_size=4, verdict=drift), 0.0)
    assert book.match(KEY, VERDICT, 1.0) is None


def test_two_endings_of_one_judgement_keep_their_own_incidents_after_the_job_is_over() -> None:
    book = IncidentBook()
    first, second = (replace(verdict(culprits=(rank,)), cause=Cause.RANK_CRASHED) for rank in (0, 2))
    known = opened(book, first), opened(book, second)
    book.close(KEY, IncidentState.ENDED, 101.0)
    found = book.assign(KEY, (first, second), 102.0)
    assert [each.id for each in found if each is not None] == [each.id for each in known]


def test_a_second_ending_of_one_judgement_is_no_news_of_the_first_one() -> None:
    book = IncidentBook()
    first, second = (replace(verdict(culprits=(rank,)), cause=Cause.RANK_CRASHED) for rank in (0, 2))
    known = opened(book, first)
    found = book.assign(KEY, (first, second), 102.0)
    assert found[0] is not None and found[0].id == known.id and found[1] is None
