"""Tells of an incident: the store, the log, the figures, the stream, the terminal of the job, and people."""

import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

from ncclwatch.contract import wire
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server import limits
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.incidents import aftermath
from ncclwatch_server.incidents.book import Incident
from ncclwatch_server.incidents.event_stream import Announcements, What
from ncclwatch_server.incidents.terminal_text import brief, first_line, lines_of
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.security.audit import SERVER, Act, AuditEntry, AuditTrail
from ncclwatch_server.state.waits.history import Lesson
from ncclwatch_server.watch.counters import Counters

log = logging.getLogger("ncclwatch.server")


class Keeper(Protocol):
    """Keeps incidents beyond the life of this process."""

    lasting: bool  # what is put there outlives this process

    def put(self, incident: Incident) -> None:
        """Keep the newest form of an incident. Never waits."""

    def learn(self, job: str, lesson: Lesson) -> None:
        """Keep what a job has taught about one class of its waits. Never waits."""

    def note(self, entry: AuditEntry) -> None:
        """Keep a line of the audit log. Never waits."""


class Teller(Protocol):
    """Alerts people."""

    def hear(self, incident: Incident, *, step: int = 0, settled: bool = False) -> None:
        """Take the newest form of an incident; `settled`: no more stacks are expected. Never waits."""


class NoTeller:
    """Alerts nobody."""

    def hear(self, incident: Incident, *, step: int = 0, settled: bool = False) -> None:
        """Do nothing."""


class Publisher:
    """Carries out what the incident book decided."""

    def __init__(
        self, keeper: Keeper, counters: Counters, announcements: Announcements, teller: Teller | None = None
    ) -> None:
        self._keeper = keeper
        self._announcements = announcements
        self._counters = counters
        self._audit = AuditTrail(keeper)
        self._teller = teller or NoTeller()

    def opened(self, job: Job, incident: Incident) -> None:
        """Tell of a new incident."""
        self._keeper.put(incident)
        self._counters.count_opened(incident)
        self._announcements.tell(What.OPENED, incident)
        self._teller.hear(incident, step=job.state.steps)
        self._tell(job, incident)

    def changed(self, incident: Incident) -> None:
        """Keep a new form of a known incident."""
        self._keeper.put(incident)
        self._announcements.tell(What.CHANGED, incident)
        self._teller.hear(incident)

    def settled(self, incidents: Iterable[Incident]) -> None:
        """Note that no more stacks are expected of incidents."""
        for incident in incidents:
            self._teller.hear(incident, settled=True)

    def escalated(self, job: Job, incident: Incident) -> None:
        """Tell again of an incident that has become more urgent."""
        self._keeper.put(incident)
        self._announcements.tell(What.ESCALATED, incident)
        self._teller.hear(incident, step=job.state.steps)
        self._tell(job, incident)

    def learned(self, job: Job, lessons: Iterable[Lesson]) -> None:
        """Keep what waits that ended have taught, for the next launch of a job that has a name."""
        for lesson in lessons if job.launch_facts.named else ():
            self._keeper.learn(job.key.name, lesson)

    def looked(self, job: Job, ranks: Sequence[int], *, deeply: bool) -> None:
        """Write down that stacks were asked for, for a verdict."""
        kind = "native frames too" if deeply else "Python frames"
        self._audit.note(SERVER, Act.STACKS, job.id, f"{ranks_words(ranks)}, {kind}, for a verdict that stands")

    def claimed(self, job: Job, link: Link) -> None:
        """Write down that an agent claims ranks of which another one speaks, once of each token on each host."""
        claim = link.caller.name, link.host, link.machine
        ranks = job.state.contested.get(link.number, ())
        if not ranks or claim in job.claims or len(job.claims) >= limits.CONTESTED_MAX:
            return
        job.claims.add(claim)
        owner = job.served.get(job.state.owner(ranks[0]))
        whose = "another agent" if owner is None else f"the agent on {owner.link.host} of {owner.link.caller.name}"
        detail = f"{ranks_words(ranks)}, as the agent on {link.host}; they belong to {whose}"
        self._audit.note(link.caller.name, Act.CLAIM, job.id, detail)

    def closed(self, incident: Incident) -> None:
        """Tell of the end of an incident."""
        self._keeper.put(incident)
        self._counters.count_closed(incident)
        self._announcements.tell(What.CLOSED, incident)
        self._teller.hear(incident)
        log.info("job %s: incident %s is %s", incident.job, incident.id, incident.state.value)

    def recovered(self, incident: Incident) -> None:
        """Tell that a job was started again after an incident, and went on. Whoever is alerted knows of its end."""
        self._keeper.put(incident)
        self._counters.count_recovered(incident)
        self._announcements.tell(What.RECOVERED, incident)
        log.info("job %s: incident %s: %s", incident.job, incident.id, aftermath.words(incident))

    def came_back(self, before: Incident, incident: Incident) -> None:
        """Tell that a job hangs as it did in an earlier attempt."""
        self._counters.count_came_back(incident)
        self.changed(before)
        self.changed(incident)

    def _tell(self, job: Job, incident: Incident) -> None:
        log.warning("job %s: %s (incident %s)", job.id, first_line(incident), incident.id)
        # One terminal is enough: torchrun and srun bring the output of all ranks together. Of several nodes it is the
        # one of rank 0, where people look first.
        first = job.served.get(job.state.owner(0))
        able = [served for served in job.living() if served.terminal]
        teller = first if first in able else next(iter(able), None)
        if teller is not None:
            # Evidence and stacks can be asked for later only where they are kept.
            lines = brief(incident) if self._keeper.lasting else lines_of(incident)
            teller.link.command(wire.CommandKind.PRINT, teller.index, text="\n".join(lines) + "\n")
