"""How a job ended: by its incidents first, then by how its ranks ended, and unknown where nobody saw it."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import Ending
from ncclwatch.contract.model.verdict import Cause, Certainty, Severity
from ncclwatch_server.incidents.book import Incident, IncidentState, JobKey
from ncclwatch_server.jobs.outcome import End, Outcome, end_of
from tests.unit.server.server_values import verdict

WELL, FAILED = Ending(kind="exited", exit_code=0), Ending(kind="crashed", exit_code=1)
KILLED, VANISHED = Ending(kind="signalled", signal=9), Ending(kind="vanished")


def incident(cause: Cause, state: IncidentState = IncidentState.ENDED, **changes: object) -> Incident:
    said = replace(verdict(cause), summary=f"the sentence of {cause.value}", severity=Severity.CRITICAL)
    made = Incident(
        id=cause.value, key=JobKey(name="job", instance="i", attempt=0), job="job", world_size=2, state=state,
        verdict=said, onset_to_open_s=1.0, opened_at=1.0, closed_at=2.0,
    )  # fmt: skip
    return replace(made, verdict=replace(said, **changes))  # type: ignore[arg-type]


def test_a_job_that_was_over_while_it_hung_has_hung():
    found = end_of([incident(Cause.UNEVEN_BATCHES)], (KILLED, KILLED), all_ended=True)
    assert found == End(outcome=Outcome.HUNG, sentence="the sentence of uneven_batches", incident="uneven_batches")


def test_a_job_that_a_crash_ended_has_crashed_with_its_sentence():
    found = end_of([incident(Cause.RANK_CRASHED)], (FAILED, KILLED), all_ended=True)
    assert (found.outcome, found.sentence) == (Outcome.CRASHED, "the sentence of rank_crashed")


def test_a_warning_of_a_lost_node_tells_why_ranks_failed_and_says_nothing_where_nobody_saw_an_end():
    lost = incident(Cause.NODE_LOST, severity=Severity.WARNING)
    assert end_of([lost], (FAILED, None), all_ended=False) == End(
        outcome=Outcome.CRASHED, sentence="the sentence of node_lost", incident="node_lost"
    )
    assert end_of([lost], (None, None), all_ended=False).outcome is Outcome.UNKNOWN
    assert end_of([lost], (WELL, WELL), all_ended=True).outcome is Outcome.COMPLETED


@pytest.mark.parametrize(
    "over",
    [
        incident(Cause.UNEVEN_BATCHES, IncidentState.RESOLVED),
        incident(Cause.STRAGGLER, severity=Severity.WARNING),
        incident(Cause.UNEVEN_BATCHES, predicted=True),
        incident(Cause.STUCK_SAVE, certainty=Certainty.STALLED),
    ],
)
def test_what_did_not_end_the_job_does_not_count(over: Incident):
    assert end_of([over], (WELL, WELL), all_ended=True).outcome is Outcome.COMPLETED


@pytest.mark.parametrize(
    ("endings", "all_ended", "outcome"),
    [
        ((WELL, WELL), True, Outcome.COMPLETED),
        ((WELL, FAILED), True, Outcome.CRASHED),
        ((WELL, KILLED), True, Outcome.CRASHED),
        ((WELL, VANISHED), True, Outcome.UNKNOWN),
        ((WELL, None), True, Outcome.UNKNOWN),
        ((WELL, WELL), False, Outcome.UNKNOWN),
        ((), True, Outcome.UNKNOWN),
    ],
)
def test_without_an_incident_the_ends_of_the_ranks_say_it(
    endings: tuple[Ending | None, ...], all_ended: bool, outcome: Outcome
):
    assert end_of([], endings, all_ended=all_ended).outcome is outcome


def test_what_was_proven_to_hang_did_not_complete_though_its_ranks_were_made_to_end_well():
    assert end_of([incident(Cause.UNEVEN_BATCHES)], (WELL, WELL), all_ended=True).outcome is Outcome.HUNG


def test_a_stall_that_the_job_did_not_survive_is_a_hang():
    stalled = incident(Cause.STUCK_SAVE, certainty=Certainty.STALLED)
    assert end_of([stalled], (WELL, KILLED), all_ended=True).outcome is Outcome.HUNG


def test_the_ranks_that_failed_are_counted():
    assert end_of([], (FAILED, WELL), all_ended=True).sentence == "1 rank ended with an error"
    assert end_of([], (FAILED, KILLED), all_ended=True).sentence == "2 ranks ended with an error"
