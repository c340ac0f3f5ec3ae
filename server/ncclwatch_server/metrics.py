"""What do figures say about this server and its jobs? Aggregates only, in Prometheus' format.

The figures are copied at the tick and rendered in a thread when somebody asks, so that a scrape
never stops the event loop. Per-rank series are left out: 16,384 ranks would be 14 MB a scrape.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ncclwatch.contract.version import VERSION
from ncclwatch_server.views import job_state
from ncclwatch_server.watch import Watch


class Losses(Protocol):
    """What a store has to say about itself."""

    failures: int
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One moment of the server."""

    single: tuple[tuple[str, str, bool, float], ...]  # (name, help, whether it only rises, value)
    jobs: tuple[tuple[str, int], ...]  # by state
    open_incidents: tuple[tuple[str, str, str, int], ...]  # job, severity, cause
    opened: tuple[tuple[str, str, int], ...]  # cause, severity
    notified: tuple[tuple[str, str, int], ...]  # target, outcome


def measure(watch: Watch, losses: Losses) -> Figures:
    """Copy the figures of this moment."""
    counters, jobs = watch.counters, watch.jobs.listed()
    incidents = [incident for incident in watch.book.all() if incident.open]
    states = Counter(job_state(job, watch.book) for job in jobs)
    opened = Counter((i.job, i.verdict.severity.value, i.verdict.cause.value) for i in incidents)
    return Figures(
        single=(
            ("agents_connected", "Agents connected now", False, watch.agents),
            ("ranks", "Ranks seen of jobs that are not over", False, sum(_ranks_seen(watch))),
            ("digests", "Digests taken", True, counters.digests),
            ("messages", "Messages other than digests taken", True, counters.messages),
            ("refused", "Connections closed for what they sent", True, counters.refused),
            ("ticks", "Ticks of the watch", True, counters.ticks),
            ("look_seconds", "Time spent looking at jobs, judging included", True, counters.tick_s),
            ("judgements", "Snapshots judged", True, counters.judgements),
            ("judge_seconds", "Time the judge took", True, counters.judge_s),
            ("judge_failures", "Snapshots on which the judge failed", True, counters.judge_failures),
            ("look_failures", "Looks at a job that failed", True, counters.look_failures),
            ("store_failures", "Writes that the incident store refused", True, losses.failures),
            ("incidents_not_stored", "Incidents dropped because the store failed", True, losses.dropped),
            ("incidents_not_opened", "Incidents beyond the limit of open ones", True, watch.book.refused),
        ),
        jobs=tuple((state, states[state]) for state in ("running", "hung", "waiting", "ended")),
        open_incidents=tuple((*labels, count) for labels, count in sorted(opened.items())),
        opened=tuple((*labels, count) for labels, count in sorted(counters.opened.items())),
        notified=tuple((*labels, count) for labels, count in counters.notified().items()),
    )


def render(figures: Figures) -> bytes:
    """Return the text of a scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(figures))
    return generate_latest(registry)


def _ranks_seen(watch: Watch) -> Iterator[int]:
    return (int(job.state.seen.sum()) for job in watch.jobs.listed() if not job.ended)


class _Snapshot(Collector):
    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("ncclwatch_build_info", "Version of this server", labels=["version"])
        info.add_metric([VERSION], 1)
        yield info
        for name, text, rises, value in self._figures.single:
            family = CounterMetricFamily if rises else GaugeMetricFamily
            yield family(f"ncclwatch_{name}", text, value=value)
        jobs = GaugeMetricFamily("ncclwatch_jobs", "Jobs, by state", labels=["state"])
        for state, count in self._figures.jobs:
            jobs.add_metric([state], count)
        yield jobs
        standing = GaugeMetricFamily(
            "ncclwatch_open_incidents", "Open incidents", labels=["job_id", "severity", "cause"]
        )
        for job, severity, cause, count in self._figures.open_incidents:
            standing.add_metric([job, severity, cause], count)
        yield standing
        opened = CounterMetricFamily("ncclwatch_incidents_opened", "Incidents opened", labels=["cause", "severity"])
        for cause, severity, count in self._figures.opened:
            opened.add_metric([cause, severity], count)
        yield opened
        told = CounterMetricFamily(
            "ncclwatch_notifications", "Alerts, by target and what became of them", labels=["channel", "outcome"]
        )
        for target, outcome, count in self._figures.notified:
            told.add_metric([target, outcome], count)
        yield told
