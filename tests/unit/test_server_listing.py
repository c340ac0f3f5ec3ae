"""Which incidents a list shows, and its pages."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from ncclwatch.contract.model import Cause, Certainty, Severity, Verdict
from ncclwatch_server.incidents import Incident, IncidentState, JobKey
from ncclwatch_server.listing import NoSuchPage, Wanted, page

NOW = 1_000_000.0
VERDICT = Verdict(
    cause=Cause.HOST_STALL, certainty=Certainty.STALLED, severity=Severity.CRITICAL, summary="s", explanation="e",
    advice="a", culprits=(), victims=(),
)  # fmt: skip


def incident(number: int, **changes: object) -> Incident:
    made = Incident(
        id=f"i{number}", key=JobKey(name="a", instance="", attempt=0), job="a", world_size=2,
        state=IncidentState.RESOLVED, verdict=VERDICT, onset_to_open_s=1.0, opened_at=NOW - 100.0 * number,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


LISTED = (
    incident(0, job="b"),
    incident(1, state=IncidentState.OPEN),
    incident(2, verdict=replace(VERDICT, cause=Cause.TRANSPORT)),
    incident(3, verdict=replace(VERDICT, severity=Severity.WARNING)),
    incident(4),
)


def ids(wanted: Wanted) -> str:
    return "".join(found.id[1:] for found in page(LISTED, wanted, NOW))


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Wanted(), "01234"),
        (Wanted(job="b"), "0"),
        (Wanted(job="nobody"), ""),
        (Wanted(state=IncidentState.OPEN), "1"),
        (Wanted(cause=Cause.TRANSPORT), "2"),
        (Wanted(severity=Severity.WARNING), "3"),
        (Wanted(job="a", cause=Cause.HOST_STALL, severity=Severity.CRITICAL), "14"),
        (Wanted(since=at(NOW - 200)), "012"),
        (Wanted(since=at(NOW - 199.9)), "01"),
        (Wanted(until=at(NOW - 200)), "34"),
        (Wanted(until=at(NOW - 199.9)), "234"),
        (Wanted(since=at(NOW - 300), until=at(NOW - 100)), "23"),
        (Wanted(within_s=200.0), "012"),
        (Wanted(within_s=199.0), "01"),
        (Wanted(limit=2), "01"),
        (Wanted(limit=2, before="i1"), "23"),
        (Wanted(before="i4"), ""),
        (Wanted(job="a", limit=1, before="i0"), "1"),
    ],
)
def test_a_list_shows_what_fits_in_its_order(wanted: Wanted, found: str):
    assert ids(wanted) == found


def test_a_time_without_a_zone_is_utc_and_one_with_a_zone_is_understood():
    naive = at(NOW - 200).replace(tzinfo=None)
    elsewhere = at(NOW - 200).astimezone(timezone(timedelta(hours=9)))
    assert ids(Wanted(since=naive)) == ids(Wanted(since=elsewhere)) == "012"


def test_pages_put_together_are_the_list_whatever_their_size():
    for size in range(1, 7):
        seen, before = "", None
        while part := ids(Wanted(limit=size, before=before)):
            seen, before = seen + part, f"i{part[-1]}"
        assert seen == "01234"


def test_a_page_after_an_incident_that_is_forgotten_is_refused():
    with pytest.raises(NoSuchPage):
        page(LISTED, Wanted(before="gone"), NOW)
