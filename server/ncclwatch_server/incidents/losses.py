"""Sums up what hangs have cost in a period, by cause. Pure.

Several incidents may tell of one hang. Time that one job loses is counted once: with the incident that began first.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum

from ncclwatch.contract.model.verdict import Cause
from ncclwatch_server.incidents.aftermath import began_at, is_hang, lost_s
from ncclwatch_server.incidents.book import Incident, IncidentState

SCHEMA = 1
# A launcher notices a crash by itself, long before any timeout: nothing is saved there.
_NOTICED = frozenset({Cause.RANK_CRASHED})


class Fate(str, Enum):
    """What became of a hang."""

    OPEN = "open"
    WENT_ON = "went on"  # by itself
    RECOVERED = "recovered"  # the job was started again, and went on
    CAME_BACK = "came back"  # it was started again, and hung in the same way
    ENDED = "ended"  # the job was ended; nobody knows of another attempt that went on


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What counts of one hang."""

    job: str
    cause: Cause
    fate: Fate
    onset_at: float  # seconds since 1970
    closed_at: float | None  # None: it is open
    over_at: float | None  # when its job went on or had ended; None: it is open, or nobody knows
    ranks: int
    gpus: int  # ranks that had a GPU of their own
    timeout_s: float  # after which the job would have ended by itself; 0: unknown

    @property
    def stood_s(self) -> float | None:
        """For how long the job hung before it was ended; None: it was not, by anybody but its launcher, or unknown."""
        was_ended = self.fate in (Fate.RECOVERED, Fate.CAME_BACK, Fate.ENDED) and self.cause not in _NOTICED
        if not was_ended or self.closed_at is None or self.over_at is None:
            return None
        return max(0.0, self.closed_at - self.onset_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What several hangs have cost."""

    hangs: int = 0
    jobs: int = 0
    open: int = 0  # of them: see `Fate`
    went_on: int = 0
    recovered: int = 0
    came_back: int = 0
    ended: int = 0
    lost_s: float = 0.0
    rank_s: float = 0.0  # that, times the ranks
    gpu_s: float = 0.0  # that, times the ranks that had a GPU of their own
    saved_s: float = 0.0  # for which jobs would have hung longer, until the timeout of their process group
    timeout_unknown: int = 0  # hangs of which nobody knows what was saved
    end_unknown: int = 0  # hangs of which nobody knows what they have cost


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseLosses:
    """What the hangs of one cause have cost."""

    cause: Cause
    losses: Losses


@dataclass(frozen=True, slots=True, kw_only=True)
class LossReport:
    """What the hangs of a period have cost: those that were reported in it, the costliest cause first."""

    schema: int
    since: str  # ISO 8601, UTC
    until: str
    total: Losses
    causes: tuple[CauseLosses, ...]
    without: str  # why some are missing, "" if none are


@dataclass(slots=True)
class _Sum:
    hangs: int = 0
    jobs: set[str] = field(default_factory=set)
    fates: Counter[Fate] = field(default_factory=Counter)
    lost_s: float = 0.0
    rank_s: float = 0.0
    gpu_s: float = 0.0
    saved_s: float = 0.0
    timeout_unknown: int = 0
    end_unknown: int = 0

    def add(self, loss: Loss, lost: float | None, *, first: bool) -> None:
        """Add a hang. `lost`: seconds that no other one has counted; `first`: it began while no other one stood."""
        self.hangs += 1
        self.jobs.add(loss.job)
        self.fates[loss.fate] += 1
        if lost is None:
            self.end_unknown += 1
            return
        self.lost_s += lost
        self.rank_s += lost * loss.ranks
        self.gpu_s += lost * loss.gpus
        stood = loss.stood_s
        if first and stood is not None and loss.timeout_s > 0:
            self.saved_s += max(0.0, loss.timeout_s - stood)
        elif first and stood is not None:
            self.timeout_unknown += 1

    def losses(self) -> Losses:
        """Return it."""
        return Losses(
            hangs=self.hangs, jobs=len(self.jobs), lost_s=round(self.lost_s, 1), rank_s=round(self.rank_s, 1),
            gpu_s=round(self.gpu_s, 1), saved_s=round(self.saved_s, 1), timeout_unknown=self.timeout_unknown,
            end_unknown=self.end_unknown, **{fate.name.lower(): self.fates[fate] for fate in Fate},
        )  # fmt: skip


def loss_of(incident: Incident) -> Loss | None:
    """Return what counts of an incident, None if it tells of no hang."""
    if not is_hang(incident):
        return None
    onset_at = began_at(incident)
    lost = None if incident.open else lost_s(incident, 0.0)
    return Loss(
        job=incident.job,
        cause=incident.verdict.cause,
        fate=_fate(incident),
        onset_at=onset_at,
        closed_at=incident.closed_at,
        over_at=None if lost is None else onset_at + lost,
        ranks=incident.world_size,
        gpus=incident.gpus,
        timeout_s=incident.timeout_s,
    )


def _fate(incident: Incident) -> Fate:
    if incident.open:
        return Fate.OPEN
    if incident.state is IncidentState.RESOLVED:
        return Fate.WENT_ON
    if incident.came_back_as:
        return Fate.CAME_BACK
    return Fate.ENDED if incident.recovered_after_s is None else Fate.RECOVERED


def summed(losses: Iterable[Loss], since: float, now: float, without: str = "") -> LossReport:
    """Return what hangs have cost until now."""
    total, causes = _Sum(), {cause: _Sum() for cause in Cause}
    reached: dict[str, float] = {}  # until when the time of each job is counted
    stood: dict[str, float] = {}  # until when a hang of each job stood: before a restart, and before that was noticed
    for loss in sorted(losses, key=lambda each: each.onset_at):
        over_at = now if loss.fate is Fate.OPEN else loss.over_at
        counted = reached.get(loss.job, float("-inf"))
        lost = None if over_at is None else max(0.0, over_at - max(loss.onset_at, counted))
        for each in (total, causes[loss.cause]):
            each.add(loss, lost, first=loss.onset_at >= stood.get(loss.job, float("-inf")))
        reached[loss.job] = max(counted, loss.onset_at if over_at is None else over_at)
        stood[loss.job] = max(stood.get(loss.job, 0.0), now if loss.closed_at is None else loss.closed_at)
    found = [CauseLosses(cause=cause, losses=each.losses()) for cause, each in causes.items() if each.hangs]
    found.sort(key=lambda each: (-each.losses.rank_s, -each.losses.hangs, each.cause.value))
    return LossReport(
        schema=SCHEMA, since=_iso(since), until=_iso(now), total=total.losses(), causes=tuple(found), without=without
    )


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds")
