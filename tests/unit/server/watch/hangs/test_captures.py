"""A capture is written once for each hang, in a bounded number, and a server that cannot write one says so."""

import asyncio
import threading
from functools import partial
from pathlib import Path

import pytest

from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.machine import boot
from ncclwatch_server.incidents.book import Incident, IncidentBook
from ncclwatch_server.incidents.capture_file import read
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.jobs.registry import Jobs
from ncclwatch_server.state.waits.history import Memory
from ncclwatch_server.watch.hangs.captures import CAPTURE_S, CAPTURES_MAX, HOURLY_MAX, HangCaptures, Keep
from tests.unit.server.server_values import VERDICT
from tests.unit.server.watch.hangs.test_acting import announced, opened


def hung(**changes: object) -> tuple[Job, IncidentBook, Incident]:
    book = IncidentBook()
    job, _ = announced(Jobs(Memory()), number=1, acts=True)
    opened(book, 100.0, **changes)
    (incident,) = book.all()
    return job, book, incident


async def words_of(captures: HangCaptures, job: Job, incident: Incident, news: asyncio.Event) -> str | None:
    asked = 0

    def snapshot():  # type: ignore[no-untyped-def]
        nonlocal asked
        asked += 1
        return job.snapshot(1.0)

    assert captures.told_of(job, incident, snapshot, 1.0) is None
    assert captures.told_of(job, incident, snapshot, 1.0) is None  # it is being written: not once more
    await asyncio.wait_for(news.wait(), 60)
    found = captures.told_of(job, incident, snapshot, 2.0)
    assert asked == 1
    return found


def told(keep: Keep) -> str | None:
    job, book, incident = hung()

    async def tell() -> str | None:
        news = asyncio.Event()
        return await words_of(HangCaptures(book, news.set, keep), job, incident, news)

    return asyncio.run(tell())


def test_a_capture_holds_the_hang_and_is_written_once(tmp_path: Path) -> None:
    kept: list[bytes] = []

    def keep(job: str, data: bytes) -> Path:
        kept.append(data)
        return tmp_path / f"{job}.zip"

    assert told(keep) == f"capture: {boot.host_name()}:{tmp_path / 'llama.zip'}"
    (data,) = kept
    (tmp_path / "capture.zip").write_bytes(data)
    with (tmp_path / "capture.zip").open("rb") as file:
        found = read(file)
    assert (found.snapshot.job, found.snapshot.world_size) == ("llama", 2)
    assert [each.summary for each in found.report.incidents] == [VERDICT.summary]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device"), "no capture: [Errno 28] No space left on device"),
        (ConfigError("cannot write the capture"), "no capture: cannot write the capture"),
        (MemoryError(), "no capture: an error, which is in the log of the server"),
    ],
)
def test_where_none_can_be_kept_agents_hear_of_the_hang_all_the_same(error: BaseException, words: str) -> None:
    def keep(job: str, data: bytes) -> Path:
        raise error

    assert told(keep) == words


def test_agents_do_not_wait_for_a_capture_for_ever() -> None:
    job, book, incident = hung()
    over = threading.Event()

    def keep(job: str, data: bytes) -> Path:
        over.wait(60)
        return Path("/late")

    async def tell() -> tuple[str | None, str | None]:
        captures = HangCaptures(book, lambda: None, keep)

        def take(now: float) -> str | None:
            return captures.told_of(job, incident, lambda: job.snapshot(1.0), now)

        try:
            return take(1.0), take(1.0 + CAPTURE_S)
        finally:
            over.set()

    assert asyncio.run(tell()) == (None, f"no capture yet: it has taken more than {CAPTURE_S:.0f} s")


def test_many_jobs_that_hang_fill_no_disk(tmp_path: Path) -> None:
    kept: list[str] = []

    def keep(job: str, data: bytes) -> Path:
        kept.append(job)
        return tmp_path

    async def tell() -> tuple[str | None, str | None]:
        captures = HangCaptures(IncidentBook(), lambda: None, keep)
        jobs = [hung() for _ in range(HOURLY_MAX + 2)]
        said = [captures.told_of(job, each, partial(job.snapshot, 1.0), 1.0) for job, _, each in jobs[:-1]]
        job, _, last = jobs[-1]
        later = captures.told_of(job, last, partial(job.snapshot, 1.0), 3601.0)
        while len(kept) < HOURLY_MAX + 1:
            await asyncio.sleep(0.01)
        return said[-1], later

    assert asyncio.run(tell()) == (f"no capture: this server has taken {HOURLY_MAX} within an hour", None)


def test_a_job_that_hangs_again_and_again_fills_no_disk() -> None:
    job, book, _ = hung()
    for number in range(CAPTURES_MAX):
        opened(book, 100.0, group=f"g{number}")
    kept: list[str] = []

    def keep(job: str, data: bytes) -> Path:
        kept.append(job)
        return Path("/a.zip")

    async def tell() -> list[str | None]:
        captures = HangCaptures(book, lambda: None, keep)
        for each in book.all():
            captures.told_of(job, each, lambda: job.snapshot(1.0), 1.0)
        while len(kept) < CAPTURES_MAX:
            await asyncio.sleep(0.01)
        return [captures.told_of(job, each, lambda: job.snapshot(1.0), 1.0) for each in book.all()]

    assert asyncio.run(tell())[-1] == f"no capture: {CAPTURES_MAX} of this attempt are kept"
    assert len(kept) == CAPTURES_MAX
