"""Silences and maintenance windows: of which jobs nobody is told, and that they outlive a restart."""

import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from ncclwatch_server.notify import records as records_module
from ncclwatch_server.notify import silences as module
from ncclwatch_server.notify.records import Records
from ncclwatch_server.notify.silences import Silence, SilenceError, Silences, SilenceState
from ncclwatch_server.notify.stages import Stage, Told
from tests.unit.server.incidents.test_texts import INCIDENT

NOW = 1_800_000_000.0
HOUR = 3600.0


def made(clock: list[float], records: Records | None = None) -> Silences:
    """Return silences with a clock of the test's own."""
    return Silences((), records or Records(""), lambda: clock[0])


def test_a_silence_holds_for_its_jobs_and_its_time() -> None:
    clock = [NOW]
    silences = made(clock)
    silences.add("j*", NOW + HOUR, NOW + 3 * HOUR, "upgrade", "me@head")
    for at, muted_s in ((NOW, 0.0), (NOW + HOUR, 2 * HOUR), (NOW + 3 * HOUR - 1, 1.0), (NOW + 3 * HOUR, 0.0)):
        clock[0] = at
        assert silences.muted_for(INCIDENT) == muted_s
    clock[0] = NOW + 2 * HOUR
    assert silences.muted_for(replace(INCIDENT, job="other", key=replace(INCIDENT.key, name="other"))) == 0.0
    assert silences.muted_for(replace(INCIDENT, job="job~1a2b")) > 0


def test_of_two_silences_the_longer_one_counts_and_one_that_is_ended_does_not() -> None:
    silences = made([NOW])
    silences.add("job", NOW, NOW + 60)
    longer = silences.add("job", NOW, NOW + 120)
    assert silences.muted_for(INCIDENT) == 120
    ended = silences.end(longer.id)
    assert ended is not None and ended.state(NOW) is SilenceState.EXPIRED
    assert silences.muted_for(INCIDENT) == 60
    assert silences.end("nope") is None


def test_a_silence_that_is_over_stays_as_it_was_when_it_is_ended_again() -> None:
    clock = [NOW]
    silences = made(clock)
    over = silences.add("job", NOW, NOW + 60)
    clock[0] = NOW + 3600
    assert silences.end(over.id) == over
    assert silences.all() == (over,)


def test_a_window_that_is_removed_before_it_begins_never_begins() -> None:
    silences = made([NOW])
    window = silences.add("job", NOW + HOUR, NOW + 2 * HOUR)
    assert window.state(NOW) is SilenceState.PENDING
    ended = silences.end(window.id)
    assert ended is not None
    assert [ended.state(at) for at in (NOW, NOW + 1.5 * HOUR)] == [SilenceState.EXPIRED] * 2


@pytest.mark.parametrize(
    ("job", "starts", "ends", "why"),
    [
        ("", 0, 60, "1 to 200 printable"), ("x" * 201, 0, 60, "1 to 200 printable"), ("a\x00b", 0, 60, "printable"),
        ("a", 60, 60, "must end after it begins"), ("a", -120, -60, "not before now"),
        ("a", 0, 367 * 24 * HOUR, "within a year"), ("a", float("nan"), 60, "must end after"),
    ],
)  # fmt: skip
def test_what_is_no_silence_is_refused(job: str, starts: float, ends: float, why: str) -> None:
    with pytest.raises(SilenceError, match=why):
        made([NOW]).add(job, NOW + starts, NOW + ends)


def test_the_words_of_a_silence_are_one_line_of_a_length() -> None:
    for reason in ("x" * 501, "a\nb"):
        with pytest.raises(SilenceError, match="one line"):
            made([NOW]).add("job", NOW, NOW + 60, reason)


def test_silences_are_bounded_and_those_long_over_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCES_MAX", 2)
    clock = [NOW]
    silences = made(clock)
    for _ in range(2):
        silences.add("job", NOW, NOW + 60)
    with pytest.raises(SilenceError, match="2 silences already"):
        silences.add("job", NOW, NOW + 60)
    clock[0] = NOW + 61
    silences.add("job", clock[0], clock[0] + 60)
    assert len(silences.all()) == 3
    clock[0] += module.KEPT_S
    silences.add("job", clock[0], clock[0] + 60)
    assert len(silences.all()) == 2


def test_silences_and_what_was_told_outlive_the_server(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'incidents.db'}"
    told = Told(stage=Stage.FIRING, count=1, digest="abc", urgency=0)
    now = time.time()
    with Records(url) as records:
        silences = Silences(records.silences, records, time.time)
        kept = silences.add("prod-*", now, now + HOUR, "räson", "me")
        ended = silences.end(silences.add("other", now, now + HOUR).id)
        records.note("slack", "abc123", told)
        records.note("slack", "abc123", replace(told, stage=Stage.UPDATED, count=2))
        records.note("mail", "abc123", told)
    with Records(url) as records:
        assert set(records.silences) == {kept, ended}
        assert records.told("slack", "abc123") == replace(told, stage=Stage.UPDATED, count=2)
        assert records.told("mail", "abc123") == told
        assert records.told("mail", "other") is None


class _Stopping(Event):
    """Lets the write that is under way end once the end has come."""

    def __init__(self, may_end: Event) -> None:
        super().__init__()
        self._may_end = may_end

    def set(self) -> None:
        super().set()
        self._may_end.set()


def test_what_comes_while_it_writes_for_the_last_but_one_time_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'incidents.db'}"
    put, writing, may_end = records_module._put, Event(), Event()

    def slowly(*given: Any) -> None:
        put(*given)
        writing.set()
        assert may_end.wait(30)

    monkeypatch.setattr(records_module, "_put", slowly)
    silence = Silence(id="first", job="j", starts_at=1.0, ends_at=time.time() + HOUR)
    with Records(url) as records:
        records.keep_silence(silence)
        assert writing.wait(30)
        records.keep_silence(replace(silence, id="second"))
        monkeypatch.setattr(records, "_stopping", _Stopping(may_end))
    assert {kept.id for kept in Records(url).silences} == {"first", "second"}


def test_what_is_over_for_long_is_forgotten_and_what_stands_is_not(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'incidents.db'}"
    told = Told(stage=Stage.FIRING, count=1, digest="", urgency=0)
    with Records(url) as records:
        records.note("slack", "open", told)
        records.note("slack", "over", replace(told, stage=Stage.RESOLVED))
        records.keep_silence(Silence(id="s", job="j", starts_at=1.0, ends_at=2.0))
    database = sqlite3.connect(tmp_path / "incidents.db")
    database.execute("UPDATE notifications SET at = 5")
    database.commit()
    database.close()
    with Records(url) as records:
        assert records.told("slack", "open") == told
        assert records.told("slack", "over") is None
        assert records.silences == ()


def test_a_database_that_fails_is_told_once_and_catches_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite:///{tmp_path / 'incidents.db'}"
    records = Records(url)
    blocker = sqlite3.connect(tmp_path / "incidents.db")
    (table,) = blocker.execute("SELECT sql FROM sqlite_master WHERE name = 'notifications'").fetchone()
    blocker.execute("DROP TABLE notifications")
    told = Told(stage=Stage.FIRING, count=1, digest="", urgency=0)
    for number in range(3):
        records.note("slack", str(number), told)
        records._write()
    assert records.failures == 3
    assert len([r for r in caplog.records if "alerting goes on" in r.message]) == 1
    assert records.told("slack", "2") == told
    blocker.execute(table)
    records._write()
    blocker.close()
    assert Records(url).told("slack", "0") == told


def test_what_waits_for_a_failing_database_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ncclwatch_server.notify.records.UNWRITTEN_MAX", 2)
    records = Records(f"sqlite:///{tmp_path / 'incidents.db'}")
    told = Told(stage=Stage.FIRING, count=1, digest="", urgency=0)
    for number in range(5):
        records.note("slack", str(number), told)
    assert records.dropped == 3
