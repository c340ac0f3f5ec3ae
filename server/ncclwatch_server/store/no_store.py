"""Stands in for a store where nothing is to be kept beyond the life of the server."""

from collections import deque
from itertools import islice

from ncclwatch_server.incidents.book import Incident
from ncclwatch_server.incidents.losses import Loss
from ncclwatch_server.incidents.pagination import Wanted
from ncclwatch_server.security.audit import AuditEntry
from ncclwatch_server.state.waits.history import Lesson
from ncclwatch_server.store.health import MEMORY, StoreHealth
from ncclwatch_server.store.retention import Removed

NOTED_MAX = 1000  # lines of the audit log in memory, where there is no store


class NoStore:
    """Keeps nothing but the newest lines of the audit log: what the incident book remembers is all there is."""

    lasting = False
    failures = 0
    dropped = 0

    def __init__(self) -> None:
        self._audit: deque[AuditEntry] = deque(maxlen=NOTED_MAX)

    def put(self, incident: Incident) -> None:
        """Do nothing."""

    def learn(self, job: str, lesson: Lesson) -> None:
        """Do nothing."""

    def note(self, entry: AuditEntry) -> None:
        """Keep a line as long as this process lives."""
        self._audit.append(entry)

    def health(self) -> StoreHealth:
        """Return that nothing is kept."""
        return StoreHealth(place=MEMORY, working=True)

    def audit_log(self, limit: int, before: str = "", job: str = "") -> list[AuditEntry]:
        """Return lines of the audit log, the newest first."""
        found = (e for e in reversed(self._audit) if (not before or e.id < before) and job in ("", e.job))
        return list(islice(found, limit))

    def find(self, wanted: Wanted, held: frozenset[str], limit: int) -> tuple[Incident, ...]:
        """Find nothing."""
        return ()

    def losses(self, since: float, held: frozenset[str], limit: int) -> tuple[Loss, ...]:
        """Find nothing."""
        return ()

    def get(self, incident: str) -> Incident | None:
        """Find nothing."""
        return None

    def delete_job(self, job: str) -> Removed:
        """Return that nothing was stored of a job."""
        return Removed(incidents=0, lessons=0)
