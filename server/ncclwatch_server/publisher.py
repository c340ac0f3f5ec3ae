"""Who learns of an incident? The store, the log, the figures and the terminal of the job."""

import logging
from collections.abc import Iterable
from typing import Protocol

from ncclwatch.contract import wire
from ncclwatch_server.counters import Counters
from ncclwatch_server.habits import Lesson
from ncclwatch_server.incidents import Incident
from ncclwatch_server.jobs import Job
from ncclwatch_server.stream import Announcements, What
from ncclwatch_server.terminal import first_line, render

log = logging.getLogger("ncclwatch.server")


class Keeper(Protocol):
    """Keeps incidents beyond the life of this process."""

    def put(self, incident: Incident) -> None:
        """Keep the newest form of an incident. Never waits."""

    def learn(self, job: str, lesson: Lesson) -> None:
        """Keep what a job has taught about one class of its waits. Never waits."""


class Publisher:
    """Carries out what the incident book decided."""

    def __init__(self, keeper: Keeper, counters: Counters, announcements: Announcements | None = None) -> None:
        self._keeper = keeper
        self._counters = counters
        self._announcements = announcements or Announcements()

    def opened(self, job: Job, incident: Incident) -> None:
        """Tell of a new incident."""
        self._keeper.put(incident)
        self._counters.count_opened(incident.verdict.cause.value, incident.verdict.severity.value)
        self._announcements.tell(What.OPENED, incident)
        self._tell(job, incident)

    def changed(self, incident: Incident) -> None:
        """Keep a new form of a known incident."""
        self._keeper.put(incident)
        self._announcements.tell(What.CHANGED, incident)

    def escalated(self, job: Job, incident: Incident) -> None:
        """Tell again of an incident that has become more urgent."""
        self._keeper.put(incident)
        self._announcements.tell(What.ESCALATED, incident)
        self._tell(job, incident)

    def learned(self, job: Job, lessons: Iterable[Lesson]) -> None:
        """Keep what waits that ended have taught."""
        for lesson in lessons:
            self._keeper.learn(job.key.name, lesson)

    def closed(self, incident: Incident) -> None:
        """Tell of the end of an incident."""
        self._keeper.put(incident)
        self._announcements.tell(What.CLOSED, incident)
        log.info("job %s: incident %s is %s", incident.job, incident.id, incident.state.value)

    def _tell(self, job: Job, incident: Incident) -> None:
        log.warning("job %s: %s (incident %s)", job.id, first_line(incident), incident.id)
        # One terminal is enough: torchrun and srun bring the output of all ranks together.
        teller = next((served for served in job.living() if served.terminal), None)
        if teller is not None:
            teller.link.command(wire.CommandKind.PRINT, teller.index, text=render(incident))
