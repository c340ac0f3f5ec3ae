"""Counts what this server has done so far: plain numbers that /metrics shows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ncclwatch.contract.machine.liveness import LoopLife
from ncclwatch_server.incidents import aftermath
from ncclwatch_server.incidents.book import Incident
from ncclwatch_server.watch.timings import Timings


class RefusedAt(str, Enum):
    """When the server ended an agent's connection."""

    HELLO = "hello"  # a wrong token or protocol, or no room
    NEWS = "news"  # it sent what cannot be true, or is no message
    READING = "reading"  # it does not read what it is sent
    MEMORY = "memory"  # all lines together kept too much and it the most, or it sent nothing but pings


@dataclass(slots=True, kw_only=True)
class Cost:
    """What hangs of one cause have cost so far."""

    lost_s: float = 0.0
    rank_s: float = 0.0
    gpu_s: float = 0.0
    recovered: int = 0  # hangs
    came_back: int = 0

    def add(self, incident: Incident, lost_s: float) -> None:
        """Add time for which a job did not go on."""
        self.lost_s += lost_s
        self.rank_s += lost_s * incident.world_size
        self.gpu_s += lost_s * incident.gpus


@dataclass(slots=True, kw_only=True)
class Counters:
    """Running totals. Only the event loop writes them."""

    digests: int = 0
    jobs_refused: int = 0  # announcements
    foreign_news: dict[str, int] = field(default_factory=dict)  # by kind: messages of ranks that are not the sender's
    messages: int = 0
    refused_at: dict[RefusedAt, int] = field(default_factory=dict)
    capture_failures: dict[str, int] = field(default_factory=dict)  # by evidence
    judgements: int = 0
    judge_failures: int = 0
    look_failures: int = 0
    judge_s: float = 0.0
    ticks: int = 0
    tick_s: float = 0.0
    opened: dict[tuple[str, ...], int] = field(default_factory=dict)  # (cause, severity)
    costs: dict[str, Cost] = field(default_factory=dict)  # of hangs that are over, by cause
    timings: Timings = field(default_factory=Timings)
    leads: Callable[[], bool] = lambda: True  # it may judge now; of several servers one does
    unrecorded: Callable[[], int] = int  # facts of alerting that no database took
    lives: tuple[LoopLife, ...] = ()  # of the loops of this server
    lines_kept: Callable[[], int] = int  # bytes that wait for the lines of agents
    connections: Callable[[], tuple[int, int, int]] = lambda: (0, 0, 0)  # all, of them newcomers, how many may be
    dropped: Callable[[], Mapping[str, int]] = dict  # connections that were not kept, by why
    denied: Callable[[], Mapping[str, int]] = dict  # what was shown and opened nothing, by what was wrong with it
    notified: Callable[[], Mapping[tuple[str, str], int]] = dict  # messages by (target, outcome)

    def count_refused(self, at: RefusedAt) -> None:
        """Count a connection that the server ended."""
        self.refused_at[at] = self.refused_at.get(at, 0) + 1

    def count_foreign(self, kind: str) -> None:
        """Count a message of ranks for which its sender does not speak."""
        self.foreign_news[kind] = self.foreign_news.get(kind, 0) + 1

    def count_capture_failures(self, evidence: str, ranks: int) -> None:
        """Count ranks of which an agent could not get what it was asked for."""
        self.capture_failures[evidence] = self.capture_failures.get(evidence, 0) + ranks

    def count_closed(self, incident: Incident) -> None:
        """Count what a hang has cost that was closed, since it was opened last."""
        if aftermath.lost_s(incident, 0.0) is None or incident.closed_at is None:
            return
        since = incident.reopened_at or aftermath.began_at(incident)
        self._cost(incident).add(incident, max(0.0, incident.closed_at - since))

    def count_recovered(self, incident: Incident) -> None:
        """Count a hang after which its job was started again and went on, and the time since it was closed."""
        cost = self._cost(incident)
        cost.recovered += 1
        if incident.recovered_after_s is not None and incident.closed_at is not None and incident.end_seen:
            ended_after_s = incident.closed_at - aftermath.began_at(incident)
            cost.add(incident, max(0.0, incident.recovered_after_s - ended_after_s))

    def count_came_back(self, incident: Incident) -> None:
        """Count a hang that is the same as one before a restart."""
        self._cost(incident).came_back += 1

    def _cost(self, incident: Incident) -> Cost:
        return self.costs.setdefault(incident.verdict.cause.value, Cost())

    def count_opened(self, incident: Incident) -> None:
        """Count an incident that opened, and how long after its onset."""
        verdict = incident.verdict
        key = verdict.cause.value, verdict.severity.value
        self.opened[key] = self.opened.get(key, 0) + 1
        self.timings.detected(verdict.certainty.value, verdict.severity.value, incident.onset_to_open_s, incident.id)
