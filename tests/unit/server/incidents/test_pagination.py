"""Lists of incidents: pages that lose and repeat nothing, whatever is held and whatever is only stored."""

import sqlite3
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import StackFrame
from ncclwatch.contract.model.verdict import Cause, Certainty, MergedStack, Severity, Verdict
from ncclwatch_server import limits
from ncclwatch_server.incidents.book import Incident, IncidentState, JobKey
from ncclwatch_server.incidents.pagination import Cursor, Wanted, cursor_of, page_of, seconds_of
from ncclwatch_server.store.incident_store import StoreFailed, opened
from ncclwatch_server.store.queries import wanted_rows
from tests.integration.fake_agent import until

KEY = JobKey(name="job", instance="i", attempt=0)
BEGAN = 1_790_000_000.0


def incident(number: int, at: float, **changes: object) -> Incident:
    verdict = Verdict(
        cause=Cause.DATA_STALL if number % 2 else Cause.HOST_STALL, certainty=Certainty.PROVEN,
        severity=Severity.CRITICAL, summary=f"number {number}", explanation="", advice="", culprits=(), victims=(),
    )  # fmt: skip
    made = Incident(
        id=f"{number:012x}", key=KEY, job="job", world_size=2, state=IncidentState.ENDED, verdict=verdict,
        onset_to_open_s=1.0, opened_at=BEGAN + at, closed_at=BEGAN + at + 1,
    )  # fmt: skip
    return replace(made, **changes)


def finder(stored: list[Incident]):
    """Return what a store does, in plain Python."""

    def find(wanted: Wanted, held: frozenset[str], limit: int) -> tuple[Incident, ...]:
        some = [each for each in stored if each.id not in held and wanted.fits(each)]
        return tuple(sorted(some, key=lambda each: (-each.opened_at, each.id))[:limit])

    return find


moments = st.lists(st.integers(0, 30).map(lambda n: n / 1000), min_size=1, max_size=40)


@settings(max_examples=200)
@given(moments, st.integers(0, 40), st.integers(1, 7))
def test_pages_hold_every_incident_once_the_newest_first(at: list[float], held: int, limit: int):
    every = [incident(number, when) for number, when in enumerate(at)]
    wanted, seen = Wanted(limit=limit), []
    while True:
        page = page_of(wanted, every[:held], finder(every[held // 2 :]))
        seen += page.incidents
        if page.next is None:
            break
        wanted = replace(wanted, after=Cursor.parse(str(page.next)))
    assert sorted(each.id for each in seen) == [each.id for each in every]
    assert [each.opened_at for each in seen] == sorted((each.opened_at for each in every), reverse=True)


def test_what_is_held_is_told_and_not_its_older_form_in_the_store():
    old = incident(1, 0.0, state=IncidentState.OPEN)
    page = page_of(Wanted(state=IncidentState.OPEN), [incident(1, 0.0)], finder([old]))
    assert page.incidents == ()


@pytest.mark.parametrize("text", ["", "1", "_a", "x_a", "1_", "1_" + "a" * 41, "1_a;drop", "9" * 16 + "_a"])
def test_what_is_no_place_in_the_list_is_refused(text: str):
    with pytest.raises(ValueError, match="next page"):
        Cursor.parse(text)


LISTED = (
    incident(0, -0.0, job="b"),
    incident(2, -100.0, state=IncidentState.OPEN),
    incident(1, -200.0),  # of another cause
    incident(4, -300.0, verdict=replace(incident(4, 0.0).verdict, severity=Severity.WARNING)),
    incident(6, -400.0),
)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Wanted(), "02146"),
        (Wanted(job="b"), "0"),
        (Wanted(job="nobody"), ""),
        (Wanted(state=IncidentState.OPEN), "2"),
        (Wanted(cause=Cause.DATA_STALL), "1"),
        (Wanted(severity=Severity.WARNING), "4"),
        (Wanted(job="job", cause=Cause.HOST_STALL, severity=Severity.CRITICAL), "26"),
        (Wanted(since=BEGAN - 200), "021"),
        (Wanted(since=BEGAN - 199.9), "02"),
        (Wanted(until=BEGAN - 200), "46"),
        (Wanted(until=BEGAN - 199.9), "146"),
        (Wanted(since=BEGAN - 300, until=BEGAN - 100), "14"),
        (Wanted(limit=2, after=cursor_of(LISTED[1])), "14"),
        (Wanted(after=cursor_of(LISTED[4])), ""),
        (Wanted(job="job", limit=1, after=cursor_of(LISTED[0])), "2"),
    ],
)
def test_a_list_shows_what_fits_in_its_order_whether_it_is_held_or_stored(wanted: Wanted, found: str):
    for held in range(len(LISTED) + 1):
        page = page_of(wanted, LISTED[:held], finder(list(LISTED[held:])))
        assert "".join(str(int(each.id, 16)) for each in page.incidents) == found


def test_the_store_is_asked_for_no_more_than_can_be_on_the_page():
    asked: list[Wanted] = []

    def find(wanted: Wanted, held: frozenset[str], limit: int) -> tuple[Incident, ...]:
        asked.append(wanted)
        return ()

    page_of(Wanted(limit=2), LISTED, find)
    page_of(Wanted(limit=5), LISTED, find)
    assert [each.since for each in asked] == [pytest.approx(BEGAN - 200, abs=0.01), None]


def test_a_moment_without_a_zone_is_utc():
    naive = datetime(2026, 11, 22)
    assert seconds_of(naive) == seconds_of(naive.replace(tzinfo=timezone.utc))
    assert seconds_of(naive.replace(tzinfo=timezone(timedelta(hours=1)))) == seconds_of(naive) - 3600


def test_a_real_store_finds_what_is_wanted_and_pages_through_it(store_url: str):
    with opened(store_url) as store:
        for number in range(60):
            store.put(incident(number, number * 0.4, job="other" if number % 5 == 0 else "job"))
        until(lambda: len(store.find(Wanted(), frozenset(), 100)) == 60)
        found = page_of(Wanted(limit=25), (), store.find)
        assert [each.verdict.summary for each in found.incidents] == [f"number {n}" for n in range(59, 34, -1)]
        rest = page_of(Wanted(limit=50, after=found.next), (), store.find)
        assert [each.verdict.summary for each in rest.incidents] == [f"number {n}" for n in range(34, -1, -1)]
        assert rest.next is None
        for wanted, count in (
            (Wanted(job="other"), 12),
            (Wanted(cause=Cause.DATA_STALL), 30),
            (Wanted(severity=Severity.WARNING), 0),
            (Wanted(state=IncidentState.OPEN), 0),
            (Wanted(since=BEGAN + 20.0), 10),
            (Wanted(until=BEGAN + 4.0), 10),
            (Wanted(since=BEGAN + 4.0, until=BEGAN + 8.0), 10),
        ):
            assert len(store.find(wanted, frozenset(), 100)) == count, wanted
        assert store.find(Wanted(), frozenset(f"{n:012x}" for n in range(59)), 100)[0].verdict.summary == "number 59"
        one = store.get(f"{7:012x}")
        assert one is not None
        assert cursor_of(one) == cursor_of(incident(7, 7 * 0.4))
        assert store.get("nope") is None
        for odd in ("\0", "\ud800", "'; drop table incidents; --", "x" * 1000):
            assert store.get(odd) is None
            assert store.find(Wanted(job=odd), frozenset(("it's",)), 100) == ()
        assert len(store.find(Wanted(until=1e300, since=-1e300), frozenset(), 100)) == 60


def test_the_newest_are_found_without_sorting_all(tmp_path: Path):
    with opened(f"sqlite:///{tmp_path / 'i.db'}"), sqlite3.connect(tmp_path / "i.db") as database:
        for wanted, index in ((Wanted(), "incidents_by_time"), (Wanted(job="a"), "incidents_by_job")):
            text = str(wanted_rows(wanted, frozenset(), 50).compile(compile_kwargs={"literal_binds": True}))
            plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {text}")]
            assert f"USING INDEX {index}" in plan[0]


def test_a_store_that_cannot_be_read_says_so(tmp_path: Path):
    with opened(f"sqlite:///{tmp_path / 'i.db'}") as store:
        with sqlite3.connect(tmp_path / "i.db") as database:
            database.execute("drop table incidents")
        with pytest.raises(StoreFailed, match=r"cannot read the incident store .* \(no such table"):
            store.find(Wanted(), frozenset(), 100)
        with pytest.raises(StoreFailed):
            store.get("a")


def test_all_open_incidents_are_on_one_page_for_who_asks_for_as_many_as_there_are():
    assert limits.OPEN_MAX <= config.INCIDENTS_PAGE_MAX


def named(number: int, at: float, summary: str, stack: str = "") -> Incident:
    plain = incident(number, at)
    frames = (StackFrame(function=stack, file="/job/train.py", line=1),) if stack else ()
    stacks = (MergedStack(ranks=(0,), thread="MainThread", frames=frames),) if stack else ()
    return replace(plain, verdict=replace(plain.verdict, summary=summary), stacks=stacks)


OWNED = (
    incident(1, 1.0, job="team-a/run", user="alice", labels="team=vision,run=42"),
    incident(2, 2.0, job="team-a/other", user="bob", labels="team=text,urgent"),
    incident(3, 3.0, job="team-ab/run", user="alice", labels="team=vision"),
    incident(4, 4.0, job="run", verdict=replace(incident(4, 4.0).verdict, summary="of alice: team=vision")),
)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Wanted(namespace="team-a"), "21"),
        (Wanted(namespace=""), "4"),
        (Wanted(namespace="team_a"), ""),
        (Wanted(user="alice"), "31"),
        (Wanted(user="ali"), ""),
        (Wanted(labels=("team=vision",)), "31"),
        (Wanted(labels=("team=v*", "run")), "1"),
        (Wanted(labels=("urgent",)), "2"),
        (Wanted(user="alice", namespace="team-a", labels=("team",)), "1"),
        (Wanted(text="run=42"), "1"),
        (Wanted(text="bob"), "2"),
    ],
)
def test_incidents_of_some_jobs_are_found_whether_held_or_stored(store_url: str, wanted: Wanted, found: str):
    with opened(store_url) as store:
        for each in OWNED:
            store.put(each)
        until(lambda: len(store.find(Wanted(), frozenset(), 100)) == len(OWNED))
        for held in ((), OWNED[:2], OWNED):
            page = page_of(wanted, held, store.find)
            assert "".join(str(int(each.id, 16)) for each in page.incidents) == found


@pytest.mark.parametrize("text", ["GRAD_norm", 'say "no"', "100%", "back\\slash", "_x_"])
def test_a_text_is_found_in_what_is_held_and_what_is_stored(store_url: str, text: str):
    held = [named(1, 1.0, f"rank 1 is in {text.lower()} alone"), named(2, 2.0, "another")]
    stored = [named(3, 3.0, f"rank 3: {text}!"), named(4, 4.0, "other grad norm 1000 say no backslash axxb")]
    with opened(store_url) as store:
        for each in stored:
            store.put(each)
        until(lambda: len(store.find(Wanted(), frozenset(), 100)) == 2)
        page = page_of(Wanted(text=text), held, store.find)
    assert [each.id for each in page.incidents] == [stored[0].id, held[0].id]
    assert page.next is None


def test_a_text_that_the_store_finds_in_stacks_alone_costs_nobody_a_page():
    """The store looks into stacks too: what it returns beside the point must not end the list too early."""
    many = [named(number, 100.0 - number / 100, "dull", stack="needle") for number in range(200)]
    last = named(999, 1.0, "the needle")

    def find(wanted: Wanted, held: frozenset[str], limit: int) -> tuple[Incident, ...]:
        after = wanted.after.place if wanted.after is not None else (-(2**60), "")
        some = [each for each in (*many, last) if cursor_of(each).place > after]
        return tuple(sorted(some, key=lambda each: cursor_of(each).place)[:limit])

    page = page_of(Wanted(text="needle", limit=5), (), find)
    assert [each.id for each in page.incidents] == [last.id]
    held = named(998, 0.5, "an older needle")
    assert [each.id for each in page_of(Wanted(text="needle", limit=5), [held], find).incidents] == [last.id, held.id]
