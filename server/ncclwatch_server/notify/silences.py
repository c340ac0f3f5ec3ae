"""Keeps the silences: of which jobs nobody is told, and until when. One that begins later is a maintenance window.

A silence mutes the first message and the update, never the resolve of what was told. What still stands when a silence
ends is told then.
"""

import secrets
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from typing import Protocol

from ncclwatch.contract.errors import NcclwatchError
from ncclwatch_server.incidents.book import Incident

SILENCES_MAX = 1000  # that are not over; as many that are
LASTS_S_MAX = 366 * 86_400.0
KEPT_S = 30 * 86_400.0  # after their end
JOB_MAX = 200
WORDS_MAX = 500


class SilenceError(NcclwatchError):
    """A silence that cannot be."""


class SilenceState(str, Enum):
    """Where a silence is in its life."""

    PENDING = "pending"
    ACTIVE = "active"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Nobody is told of some jobs for some time. Times are seconds since 1970 by the server's clock."""

    id: str
    job: str  # pattern of names, as a shell's
    starts_at: float
    ends_at: float
    reason: str = ""
    author: str = ""  # as the token says that made it
    signed: str = ""  # what its maker wrote, which may be anything
    made_at: float = 0.0

    def state(self, now: float) -> SilenceState:
        """Return where it is in its life."""
        if now >= self.ends_at:
            return SilenceState.EXPIRED
        return SilenceState.ACTIVE if now >= self.starts_at else SilenceState.PENDING

    def covers(self, incident: Incident) -> bool:
        """Whether it is about the job of an incident."""
        return fnmatchcase(incident.job, self.job) or fnmatchcase(incident.key.name, self.job)


def newest_over(silences: Iterable[Silence], now: float) -> list[Silence]:
    """Return the silences that are over and still kept: for a while, and not more than there may be at a time."""
    over = [s for s in silences if 0 <= now - s.ends_at < KEPT_S]
    return sorted(over, key=lambda s: s.ends_at)[-SILENCES_MAX:]


class SilenceKeeper(Protocol):
    """Keeps silences beyond the life of this process."""

    def keep_silence(self, silence: Silence) -> None:
        """Keep the newest form of a silence. Never waits."""


class Silences:
    """All silences of this server. Used by the API and by the notifier, which are different threads."""

    def __init__(self, known: Iterable[Silence], keeper: SilenceKeeper, wall: Callable[[], float]) -> None:
        self._all = {silence.id: silence for silence in known}
        self._keeper = keeper
        self._wall = wall
        self._lock = threading.Lock()
        self.on_change: Callable[[], None] | None = None

    def all(self) -> tuple[Silence, ...]:
        """Return all silences, the one that ends last first."""
        with self._lock:
            return tuple(sorted(self._all.values(), key=lambda s: (-s.ends_at, s.id)))

    def get(self, silence: str) -> Silence | None:
        """Return a silence by its id."""
        with self._lock:
            return self._all.get(silence)

    def recall(self, known: Iterable[Silence]) -> None:
        """Take silences of before that come late. What is known already is newer."""
        with self._lock:
            self._all = {**{silence.id: silence for silence in known}, **self._all}
        if self.on_change is not None:
            self.on_change()

    def add(
        self, job: str, starts_at: float, ends_at: float, reason: str = "", author: str = "", signed: str = ""
    ) -> Silence:
        """Make a silence. Raises `SilenceError`."""
        now = self._wall()
        _check(job, reason, signed)
        if not starts_at < ends_at or ends_at <= now:
            raise SilenceError("a silence must end after it begins, and not before now")
        if ends_at - min(starts_at, now) > LASTS_S_MAX:
            raise SilenceError("a silence ends within a year; make a new one then")
        made = Silence(
            id=secrets.token_hex(4), job=job, starts_at=starts_at, ends_at=ends_at, reason=reason,
            author=author[:WORDS_MAX], signed=signed, made_at=now,
        )  # fmt: skip
        with self._lock:
            standing = [s for s in self._all.values() if s.ends_at > now]
            if len(standing) >= SILENCES_MAX:
                raise SilenceError(f"there are {SILENCES_MAX} silences already; remove one first")
            self._all = {s.id: s for s in (*newest_over(self._all.values(), now), *standing)}
            self._all[made.id] = made
        self._changed(made)
        return made

    def end(self, silence: str) -> Silence | None:
        """End a silence now. Returns it as it is then, None if there is none of that id."""
        now = self._wall()
        with self._lock:
            known = self._all.get(silence)
            if known is None or known.ends_at <= now:
                return known
            ended = replace(known, starts_at=min(known.starts_at, now), ends_at=now)
            self._all[silence] = ended
        self._changed(ended)
        return ended

    def muted_for(self, incident: Incident) -> float:
        """Return for how many seconds more nobody is to be told of an incident; 0: it is not muted."""
        now = self._wall()
        with self._lock:
            covering = [s for s in self._all.values() if s.state(now) is SilenceState.ACTIVE and s.covers(incident)]
        return max((s.ends_at - now for s in covering), default=0.0)

    def _changed(self, silence: Silence) -> None:
        self._keeper.keep_silence(silence)
        if self.on_change is not None:
            self.on_change()


def _check(job: str, reason: str, signed: str) -> None:
    if not 1 <= len(job) <= JOB_MAX or not job.isprintable():
        raise SilenceError(f"the job of a silence is a name or pattern of 1 to {JOB_MAX} printable characters")
    if any(len(words) > WORDS_MAX or not words.isprintable() for words in (reason, signed)):
        raise SilenceError(f"the reason and the signature of a silence are one line of up to {WORDS_MAX} characters")
