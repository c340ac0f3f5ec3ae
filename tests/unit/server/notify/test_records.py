"""What no database takes is given up alone: it keeps no other back, and does not end the thread that writes."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from ncclwatch_server.notify.records import Records
from ncclwatch_server.notify.silences import Silence
from ncclwatch_server.notify.stages import Stage, Told

TOLD = Told(stage=Stage.FIRING, count=1, digest="d", urgency=1)
UNWRITABLE = "\ud800"  # half a character: no encoding has it


def silence(name: str) -> Silence:
    now = time.time()
    return Silence(id=name, job="job", starts_at=now, ends_at=now + 60)


def rows(path: Path, table: str, column: str) -> set[str]:
    with closing(sqlite3.connect(path)) as store:
        return {row[0] for row in store.execute(f"SELECT {column} FROM {table}")}


@pytest.mark.parametrize("bad", [UNWRITABLE, None, object()])
def test_one_record_that_cannot_be_written_takes_no_other_with_it(
    tmp_path: Path, bad: object, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "i.db"
    with Records(f"sqlite:///{path}") as records:
        records.note("hook", "one", TOLD)
        records.note(bad, "two", TOLD)  # type: ignore[arg-type]
        records.note("hook", "three", TOLD)
        records.keep_silence(silence("four"))
    assert rows(path, "notifications", "incident") == {"one", "three"}
    assert rows(path, "silences", "id") == {"four"}
    assert records.dropped == 1
    assert caplog.text.count("after a restart it is not known") == 1


def test_the_thread_that_could_not_write_one_writes_the_next(tmp_path: Path) -> None:
    path = tmp_path / "i.db"
    with Records(f"sqlite:///{path}") as records:
        records.note(UNWRITABLE, "one", TOLD)
        deadline = time.monotonic() + 20
        while not records.dropped:
            assert time.monotonic() < deadline
        records.note("hook", "two", TOLD)
        while "two" not in rows(path, "notifications", "incident"):
            assert time.monotonic() < deadline
    assert records.life.restarts == 0
