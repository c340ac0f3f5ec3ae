"""Keeps a capture of each hang that agents act on, before they hear of it: what they end takes its records along."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ncclwatch.cli.output.kept_files import keep_capture
from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.machine import boot
from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import StackDump
from ncclwatch_server import limits
from ncclwatch_server.incidents.book import Incident, IncidentBook
from ncclwatch_server.incidents.capture_file import written
from ncclwatch_server.jobs.job import Job, KeptCapture

log = logging.getLogger("ncclwatch.server")

CAPTURES_MAX = 5  # of one attempt of a job
HOURLY_MAX = 60  # of all jobs: they take room on the disk of the server
CAPTURE_S = 5.0  # agents hear of a hang without its capture after so long
Keep = Callable[[str, bytes], Path]  # a job's name and a capture; may raise OSError and `ConfigError`


@dataclass(frozen=True, slots=True)
class _Moment:
    """What was known when a capture was begun; the event loop goes on while it is written."""

    snapshot: JobSnapshot
    incidents: tuple[Incident, ...]
    stacks: dict[int, StackDump]
    at_s: float


class HangCaptures:
    """Writes captures in threads, one for each hang. `news` is called when one is there."""

    def __init__(self, book: IncidentBook, news: Callable[[], None], keep: Keep = keep_capture) -> None:
        self._book = book
        self._news = news
        self._keep = keep
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun: deque[float] = deque(maxlen=HOURLY_MAX)  # when the newest were

    def told_of(self, job: Job, incident: Incident, snapshot: Callable[[], JobSnapshot], now: float) -> str | None:
        """Return in words where the capture of a hang is, or why there is none; None while it is being written."""
        known = job.kept_captures.get(incident.id)
        if known is None:
            if len(job.kept_captures) >= CAPTURES_MAX:
                return f"no capture: {CAPTURES_MAX} of this attempt are kept"
            if len(self._begun) == HOURLY_MAX and now - self._begun[0] < 3600:
                return f"no capture: this server has taken {HOURLY_MAX} within an hour"
            self._begun.append(now)
            known = job.kept_captures[incident.id] = KeptCapture(begun_at=now)
            stacks = {**job.stacks, **(job.gathering.dumps if job.gathering is not None else {})}
            incidents = tuple(each for each in self._book.all() if each.key == job.key)[-limits.CAPTURE_INCIDENTS_MAX :]
            moment = _Moment(snapshot(), incidents, stacks, time.time())
            task = asyncio.get_running_loop().create_task(self._take(job.id, known, moment))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if not known.words and now - known.begun_at >= CAPTURE_S:
            return f"no capture yet: it has taken more than {CAPTURE_S:.0f} s"
        return known.words or None

    async def _take(self, job: str, known: KeptCapture, moment: _Moment) -> None:
        try:
            path = await asyncio.to_thread(self._written, job, moment)
            known.place = f"{boot.host_name()}:{path}"
            known.words = f"capture: {known.place}"
        except (OSError, ConfigError) as error:
            known.words = f"no capture: {error}"
            log.warning("job %s: no capture could be kept (%s)", job, error)
        finally:
            known.words = known.words or "no capture: an error, which is in the log of the server"
            self._news()

    def _written(self, job: str, moment: _Moment) -> Path:
        return self._keep(job, written(moment.snapshot, moment.incidents, moment.at_s, moment.stacks))
