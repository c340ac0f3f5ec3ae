"""Writes the figures of each single rank, by hand, for whoever asks for them.

prometheus-client takes ten times as long for 80,000 lines, all of it with the interpreter's lock held.
"""

from collections.abc import Iterable, Sequence

from ncclwatch_server.metrics.moment import JobMoment, hosts_of
from ncclwatch_server.metrics.summary import Groups, RankFigures, RankState, rank_figures

_STATES = ", ".join(f"{state.value} {state.name.lower().replace('_', ' ')}" for state in RankState)
_FAMILIES = (
    ("ncclwatch_rank_state", "gauge", f"How a rank stands: {_STATES}"),
    ("ncclwatch_rank_heartbeat_timestamp_seconds", "gauge", "When the pulse thread of a rank last ran"),
    ("ncclwatch_rank_wait_seconds", "gauge", "For how long a rank has waited for peers; 0 if it does not"),
    ("ncclwatch_rank_lag_collectives", "gauge", "Collectives that a rank is behind the first of one of its groups"),
    ("ncclwatch_rank_step", "gauge", "Optimizer steps of a rank"),
    ("ncclwatch_rank_collectives_completed", "counter", "Collectives that a rank has completed"),
)


def write(jobs: Iterable[JobMoment], wall: float, *, openmetrics: bool) -> bytes:
    """Return the series of all ranks that were ever seen, without the mark of the end."""
    columns: list[list[str]] = [[] for _ in _FAMILIES]
    for job in jobs:
        _add(columns, job, wall)
    parts = []
    for (name, kind, text), lines in zip(_FAMILIES, columns, strict=True):
        # OpenMetrics names the family, Prometheus' older format its series.
        family = f"{name}_total" if kind == "counter" and not openmetrics else name
        parts.append(f"# HELP {family} {text}\n# TYPE {family} {kind}\n")
        parts += lines
    return "".join(parts).encode()


def _add(columns: list[list[str]], job: JobMoment, wall: float) -> None:
    found = rank_figures(job, Groups(job.picture))
    hosts = [escaped(host) for host in hosts_of(job).tolist()]
    at, seen = f'job_id="{escaped(job.id)}"', job.picture.seen.nonzero()[0].tolist()
    labels = [f'{{host="{hosts[rank]}",{at},rank="{rank}"}}' for rank in seen]
    for lines, (name, kind, _), values in zip(columns, _FAMILIES, _values(found, wall), strict=True):
        series = f"{name}_total" if kind == "counter" else name
        lines += [f"{series}{label} {values[rank]}\n" for label, rank in zip(labels, seen, strict=True)]


def _values(found: RankFigures, wall: float) -> tuple[Sequence[float], ...]:
    return (
        found.state.tolist(),
        (wall - found.pulse_age_s).round(3).tolist(),
        found.wait_s.round(3).tolist(),
        found.lag.tolist(),
        found.steps.tolist(),
        found.completed.tolist(),
    )


def escaped(text: str) -> str:
    """Return a label's value as both formats want it."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
