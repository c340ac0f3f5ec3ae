"""What a target is told of an incident: first, one update, one resolve, never the same again."""

from dataclasses import replace

import msgspec
import pytest

from ncclwatch.contract.model.rank import StackFrame
from ncclwatch.contract.model.verdict import Certainty, Lateness, MergedStack
from ncclwatch_server.incidents.book import Incident, IncidentState
from ncclwatch_server.incidents.report import IncidentReport, report_incident, revive
from ncclwatch_server.notify.stages import HOLD_S, NEVER, UNSURE_S, Due, Matter, Stage, Told, digest, due, tell
from tests.unit.server.incidents.test_texts import INCIDENT

BARE = replace(INCIDENT, stacks=())
FIRED = tell(BARE, Stage.FIRING, None)
UPDATED = tell(INCIDENT, Stage.UPDATED, FIRED)
RESOLVED = replace(BARE, state=IncidentState.RESOLVED, closed_at=BARE.opened_at + 60)
ENDED = replace(RESOLVED, state=IncidentState.ENDED)


def matter(incident: Incident = BARE, told: Told | None = None, **changes: object) -> Matter:
    """Return a matter with nothing special about it."""
    usual = Matter(
        incident=incident, told=told, settled=False, owed=told is None, muted=False, known_s=0.0, closed_s=0.0
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


def test_an_open_incident_that_nobody_knows_is_told_at_once() -> None:
    assert due(matter()) == Due(stage=Stage.FIRING)


def test_what_was_told_is_not_told_again() -> None:
    assert due(matter(told=FIRED)) == Due()
    assert due(matter(told=FIRED, settled=True)) == Due()


def test_stacks_that_came_later_are_told_once_and_only_when_all_are_here() -> None:
    assert due(matter(INCIDENT, FIRED)) == Due()
    assert due(matter(INCIDENT, FIRED, settled=True)) == Due(stage=Stage.UPDATED)
    assert due(matter(INCIDENT, UPDATED, settled=True)) == Due()
    more = replace(INCIDENT, stacks=(*INCIDENT.stacks, MergedStack(ranks=(1,), thread="t", frames=())))
    assert due(matter(more, UPDATED, settled=True)) == Due()


def test_the_seconds_of_a_wait_are_no_update() -> None:
    later = replace(BARE, verdict=replace(BARE.verdict, summary="now for 40 s", onset_s=40.0))
    assert due(matter(later, FIRED, settled=True)) == Due()


def test_a_warning_that_becomes_more_urgent_is_told_once_more() -> None:
    late = replace(BARE, verdict=replace(BARE.verdict, certainty=Certainty.LATE, lateness=Lateness.UNUSUAL))
    told = tell(late, Stage.FIRING, None)
    urgent = replace(late, verdict=replace(late.verdict, lateness=Lateness.DEADLINE))
    assert due(matter(late, told, settled=True)) == Due()
    assert due(matter(urgent, told)) == Due(stage=Stage.UPDATED)
    assert due(matter(urgent, tell(urgent, Stage.UPDATED, told), settled=True)) == Due()


@pytest.mark.parametrize("over", [RESOLVED, ENDED])
@pytest.mark.parametrize("told", [FIRED, UPDATED])
def test_the_end_is_told_once_after_it_has_lasted(over: Incident, told: Told) -> None:
    assert due(matter(over, told, closed_s=HOLD_S - 1)) == Due(wait_s=1.0)
    assert due(matter(over, told, closed_s=HOLD_S)) == Due(stage=Stage.RESOLVED)
    assert due(matter(over, told, closed_s=HOLD_S, muted=True)) == Due(stage=Stage.RESOLVED)
    assert due(matter(over, tell(over, Stage.RESOLVED, told), closed_s=HOLD_S)) == Due()


def test_a_hang_that_comes_back_soon_is_no_news_and_later_it_is() -> None:
    assert due(matter(BARE, FIRED, owed=True)) == Due()
    assert due(matter(BARE, tell(RESOLVED, Stage.RESOLVED, FIRED), owed=True)) == Due(stage=Stage.FIRING)


def test_a_job_that_went_on_before_anybody_could_be_told_wakes_nobody_and_one_that_died_does() -> None:
    assert due(matter(RESOLVED, owed=True, closed_s=60.0)) == Due()
    assert due(matter(ENDED, owed=True, closed_s=0.0)) == Due(stage=Stage.FIRING)
    assert due(matter(ENDED, owed=False, known_s=UNSURE_S)) == Due()


def test_a_stored_incident_that_nobody_was_told_of_waits_until_its_job_would_have_been_heard() -> None:
    assert due(matter(owed=False, known_s=UNSURE_S - 30)) == Due(wait_s=30.0)
    assert due(matter(owed=False, known_s=UNSURE_S)) == Due(stage=Stage.FIRING)


def test_a_silence_holds_back_first_and_update() -> None:
    assert due(matter(muted=True)) == Due(wait_s=NEVER)
    assert due(matter(INCIDENT, FIRED, settled=True, muted=True)) == Due()


def test_messages_are_counted() -> None:
    over = tell(RESOLVED, Stage.RESOLVED, UPDATED)
    assert [told.count for told in (FIRED, UPDATED, over)] == [1, 2, 3]


def test_the_digest_is_the_same_after_a_restart() -> None:
    frame = StackFrame(function="f", file='/u/"x"\u00e9.py', line=3)
    full = replace(INCIDENT, stacks=(MergedStack(ranks=(1, 2), thread="MainThread", frames=(frame,)),))
    stored = msgspec.json.decode(msgspec.json.encode(report_incident(full)), type=IncidentReport)
    assert digest(revive(stored, full.key, full.world_size)) == digest(full)
