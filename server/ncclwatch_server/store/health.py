"""Says how the store is doing, in plain figures, for /health, the pages and /metrics."""

from dataclasses import dataclass

MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHealth:
    """How a store is doing. What waits is written when it works again; what is not stored is lost to it."""

    place: str  # its address without a password, "memory" where nothing is kept
    working: bool
    problem: str = ""  # what the database said last
    failing_s: float = 0.0
    waiting: int = 0  # incidents, lessons and lines of the audit log to be written
    behind_s: float = 0.0  # since when the oldest of them waits
    not_stored: int = 0  # that found no room while it failed, or that it refused
    failures: int = 0  # of attempts to write
    begun_anew: int = 0  # how often its file was deleted or replaced under the server
