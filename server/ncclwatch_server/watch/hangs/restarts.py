"""Sees what becomes of hangs when their job is started again: it goes on, or hangs in the same way.

A job has recovered when every rank of a later attempt has completed a collective: that is known of every job, and a
step is not. What this server has not seen itself stays unknown.
"""

from collections.abc import Iterable
from dataclasses import replace

from ncclwatch_server import limits
from ncclwatch_server.incidents.aftermath import follows, is_hang, is_restart, same_before, was_over
from ncclwatch_server.incidents.book import Incident, IncidentBook, IncidentState
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.watch.examiner import Clock
from ncclwatch_server.watch.publisher import Publisher


class Restarts:
    """Links the incidents of a job's attempts; the watch loop calls it."""

    def __init__(self, book: IncidentBook, publisher: Publisher, clock: Clock, wall: Clock) -> None:
        self._book = book
        self._publisher = publisher
        self._clock = clock
        self._wall = wall
        self._began_at, self._began_wall = clock(), wall()

    def look(self, job: Job, jobs: Iterable[Job]) -> None:
        """Note what a job that was started again says about the incidents of its earlier attempts."""
        if not is_restart(job.key):
            return
        if job.went_on_at is None and job.state.under_way:
            job.went_on_at = self._wall()
        if job.went_on_at is not None and not job.recovery_noted:
            self._note_recovery(job, jobs, job.went_on_at)
        self._note_return(self._book.open_of(job.key))

    def over(self, job: Job) -> None:
        """Do the same for a job that was just judged for the last time."""
        if is_restart(job.key):
            self._note_return(incident for incident in self._book.all() if incident.key == job.key)

    def _note_recovery(self, job: Job, jobs: Iterable[Job], went_on_at: float) -> None:
        if any(not each.ended and follows(job.key, each.key) for each in jobs):
            return  # what hung before may still get its last words
        job.recovery_noted = True
        for incident in self._book.all():
            ended = incident.state is IncidentState.ENDED and incident.recovered_after_s is None
            follower = follows(job.key, incident.key) and was_over(incident, job.key, went_on_at)
            if ended and is_hang(incident) and follower and self._saw(incident, job):
                after_s = max(0.0, went_on_at - incident.opened_at + incident.onset_to_open_s)
                self._publisher.recovered(self._book.amend(replace(incident, recovered_after_s=after_s)))

    def _saw(self, incident: Incident, job: Job) -> bool:
        """Whether this server knows that the attempt came after this incident, and when it went on."""
        heard_at = self._wall() - (self._clock() - job.known_since)
        soon = heard_at - (incident.closed_at or incident.opened_at) <= limits.RESTART_S
        # To a server that has just been started an old attempt looks new, since its agents come back.
        ours = incident.opened_at >= self._began_wall or job.known_since - self._began_at > limits.COME_BACK_S
        return soon and ours

    def _note_return(self, incidents: Iterable[Incident]) -> None:
        for incident in incidents:
            if incident.came_back_from or not is_hang(incident):
                continue
            before = same_before(incident, self._book.all())
            if before is None:
                continue
            self._publisher.came_back(
                self._book.amend(replace(before, came_back_as=before.came_back_as or incident.id)),
                self._book.amend(replace(incident, came_back_from=before.id)),
            )
