"""Writes down who asked for stacks, silenced or deleted a job, guessed, or claimed ranks of others, and when.

Lines are only added.

Stacks halt a rank for a moment and show lines of its program, so each look is written down: those that operators ask
for, and those that the server asks for itself when a verdict stands. A line also goes to the server's own log, so that
a store that fails hides nothing.
"""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ncclwatch.contract.words.printable import harmless

log = logging.getLogger("ncclwatch.audit")

DETAIL_CHARS_MAX = 500
SERVER = "ncclwatch-server"  # who looks when a verdict stands


class Act(str, Enum):
    """What somebody did."""

    TRACE = "trace"
    STACKS = "stacks"
    CAPTURE = "capture"
    DELETE = "delete"
    GUESS = "guess"
    CLAIM = "claim"  # of ranks that another agent speaks for
    SILENCE = "silence"
    UNSILENCE = "unsilence"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One line of the log."""

    id: str  # rises with time
    at: float  # seconds since 1970
    who: str
    act: str  # an `Act`; another version may know more of them
    job: str
    detail: str


class AuditKeeper(Protocol):
    """Keeps the lines."""

    def note(self, entry: AuditEntry) -> None:
        """Keep a line. Never waits."""


class AuditTrail:
    """Writes lines of the log."""

    def __init__(self, keeper: AuditKeeper, wall: Callable[[], float] = time.time) -> None:
        self._keeper = keeper
        self._wall = wall

    def note(self, who: str, act: Act, job: str, detail: str) -> AuditEntry:
        """Write a line, here and in the log of the server."""
        at = self._wall()
        entry = AuditEntry(
            id=f"{int(at * 1e6):017d}-{secrets.token_hex(4)}",
            at=at,
            who=harmless(who)[:255],
            act=act.value,
            job=harmless(job)[:255],
            detail=harmless(detail)[:DETAIL_CHARS_MAX],
        )
        self._keeper.note(entry)
        log.info("%s: %s of job %s: %s", entry.who, entry.act, entry.job, entry.detail)
        return entry
