"""Names the figures: one collector, made of one moment, in the shapes of prometheus-client.

Names have a unit and no verb; what only rises ends in `_total`. No label is one that Prometheus itself gives a target
(`job`, `instance`) or that a cluster adds to it (`pod`, `namespace`, `container`, `node`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeHistogramMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ncclwatch.contract import job_labels, job_names
from ncclwatch.contract.model.verdict import Cause, Severity
from ncclwatch.contract.version import VERSION
from ncclwatch_server import limits
from ncclwatch_server.incidents.book import Incident
from ncclwatch_server.incidents.terminal_text import sentences_of
from ncclwatch_server.jobs.read_model import JobStatus
from ncclwatch_server.metrics.moment import JobMoment, Moment, hosts_of
from ncclwatch_server.metrics.summary import LAG_BOUNDS, WAIT_BOUNDS_S, JobFigures, Spread, summarise
from ncclwatch_server.watch.counters import Cost, Counters, RefusedAt

SUSPECTS_MAX = 16  # of one job
LABEL_NAMES_MAX = 16  # of all jobs together
TEXT_MAX = 300  # characters of a sentence in a label

Labels = tuple[str, ...]
Row = tuple[Labels, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    moment: JobMoment
    figures: JobFigures | None  # None: it is over


class Families(Collector):
    """Everything that is said of one moment, but for single ranks."""

    def __init__(self, moment: Moment, *, suspects: bool = True) -> None:
        self._moment = moment
        self._suspects = suspects
        self._jobs = [
            _Job(moment=job, figures=summarise(job) if job.status is not JobStatus.ENDED else None)
            for job in moment.jobs
        ]

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        yield from _server(self._moment, self._jobs)
        yield from _loops(self._moment)
        yield from _of_jobs(self._moment, self._jobs)
        live = [(job.moment.id, job.figures) for job in self._jobs if job.figures is not None]
        yield from _progress(self._moment.wall, live)
        yield from _groups(self._moment.wall, live)
        yield from _incidents(self._moment)
        if self._suspects:
            yield _suspect_ranks(self._moment.jobs)
        yield from self._moment.counters.timings.collect()


def gauge(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    """Return a family of gauges."""
    family = GaugeMetricFamily(f"ncclwatch_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def rising(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    """Return a family of counters; `_total` is added to its name."""
    family = CounterMetricFamily(f"ncclwatch_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _server(moment: Moment, jobs: list[_Job]) -> Iterator[Metric]:
    counters = moment.counters
    states = Counter(job.moment.status for job in jobs)
    quiet_s = max((job.figures.digest_age_s for job in jobs if job.figures is not None), default=0.0)
    yield gauge("build_info", "Version of this server", ["version"], [((VERSION,), 1)])
    yield gauge("server_leads", "1 on the server that judges, 0 on one that follows it", [], [((), counters.leads())])
    yield gauge("agents_connected", "Agents connected now", [], [((), moment.agents)])
    kept = [((), float(moment.counters.lines_kept()))]
    yield gauge("agent_lines_kept_bytes", "What waits in memory for the lines of agents", [], kept)
    yield gauge("jobs", "Jobs, by state", ["state"], [((state.value,), states[state]) for state in JobStatus])
    yield gauge("jobs_limit", "Jobs that this server watches at most", [], [((), limits.JOBS_MAX)])
    yield gauge("ranks_limit", "Ranks that it watches at most, of all jobs", [], [((), limits.RANKS_TOTAL_MAX)])
    yield gauge("digest_age_seconds", "Since the quietest connected node was heard", [], [((), quiet_s)])
    for name, text, value in (
        ("digests_received", "Digests taken", counters.digests),
        ("agent_messages", "Messages of agents other than digests", counters.messages),
        ("ticks", "Ticks of the watch", counters.ticks),
        ("look_seconds", "Time spent looking at jobs, judging included", counters.tick_s),
        ("look_failures", "Looks at a job that failed", counters.look_failures),
        ("judgements", "Snapshots judged", counters.judgements),
        ("judge_seconds", "Time the judge took", counters.judge_s),
        ("judge_failures", "Snapshots on which the judge failed", counters.judge_failures),
        ("store_write_failures", "Writes that the incident store refused", moment.store_failures),
        ("jobs_refused", "Announcements of jobs that found no room or may not be watched", counters.jobs_refused),
        ("incidents_not_stored", "Incidents dropped because the store failed", moment.not_stored),
        ("alert_records_not_stored", "Who was told what, and silences, that no database took", counters.unrecorded()),
        ("incidents_not_opened", "Incidents beyond the limit of open ones", moment.not_opened),
    ):
        yield rising(name, text, [], [((), value)])
    connections, newcomers, most = counters.connections()
    rows = [(("known",), float(connections - newcomers)), (("newcomer",), float(newcomers))]
    yield gauge("connections", "Connections, by whether they have shown who they are", ["kind"], rows)
    yield gauge("connections_limit", "Connections that there may be, as descriptors allow", [], [((), float(most))])
    dropped = [((why,), float(count)) for why, count in sorted(counters.dropped().items())]
    yield rising("connections_dropped", "Connections that were not kept, by why", ["why"], dropped)
    denied = [((lack,), float(count)) for lack, count in sorted(counters.denied().items())]
    yield rising("tokens_denied", "Requests and lines without a good token, by what was wrong with it", ["why"], denied)
    refused = [((at.value,), float(counters.refused_at.get(at, 0))) for at in RefusedAt]
    yield rising("agents_refused", "Connections of agents that were closed, by when", ["at"], refused)
    kinds = ("claims", "views", "stacks", "testimonies", "loops", "facts", "parameters", "gone")
    foreign = [((kind,), float(counters.foreign_news.get(kind, 0))) for kind in kinds]
    yield rising("agents_foreign_news", "Messages about ranks for which the sender does not speak", ["kind"], foreign)
    failed = [((evidence,), float(counters.capture_failures.get(evidence, 0))) for evidence in ("stacks", "witness")]
    yield rising("capture_failures", "Ranks of which evidence could not be had", ["evidence"], failed)
    alarming = (Severity.CRITICAL.value, Severity.WARNING.value)
    opened: dict[Labels, float] = {(cause.value, severity): 0 for cause in Cause for severity in alarming}
    opened.update(counters.opened)
    yield rising("incidents", "Incidents opened", ["cause", "severity"], sorted(opened.items()))
    yield from _costs(counters)
    told = [(key, float(count)) for key, count in sorted(counters.notified().items())]
    yield rising("notifications", "Alerts, by target and what became of them", ["channel", "outcome"], told)


def _costs(counters: Counters) -> Iterator[Metric]:
    """Yield what hangs have cost, of causes that there were: at nought from the opening of the first on.

    They are counted when they are over, and once more when their job has recovered.
    """
    opened = {cause for cause, severity in set(counters.opened) if severity == Severity.CRITICAL.value}
    costs = [((cause,), counters.costs.get(cause, Cost())) for cause in sorted(opened.union(set(counters.costs)))]
    lost = [(cause, cost.lost_s) for cause, cost in costs]
    yield rising("lost_seconds", "Time from the onset of hangs until their jobs went on or ended", ["cause"], lost)
    of_ranks = [(cause, cost.rank_s) for cause, cost in costs]
    yield rising("lost_rank_seconds", "The same, times the ranks of the job", ["cause"], of_ranks)
    of_gpus = [(cause, cost.gpu_s) for cause, cost in costs]
    yield rising("lost_gpu_seconds", "The same, times the ranks that had a GPU of their own", ["cause"], of_gpus)
    recovered = [(cause, float(cost.recovered)) for cause, cost in costs]
    text = "Hangs after which a job was started again and went on"
    yield rising("incidents_recovered", text, ["cause"], recovered)
    again = [(cause, float(cost.came_back)) for cause, cost in costs]
    yield rising("incidents_came_back", "Hangs that are the same as one before a restart", ["cause"], again)


def _loops(moment: Moment) -> Iterator[Metric]:
    lives = moment.counters.lives
    ages = [((life.name,), life.age_s()) for life in lives]
    yield gauge("loop_last_tick_age_seconds", "Since a loop of this server last went round", ["loop"], ages)
    begun = [((life.name,), float(life.restarts)) for life in lives]
    yield rising("loop_restarts", "Loops of this server that ended and were begun anew", ["loop"], begun)


def _job_info(jobs: Sequence[JobMoment]) -> Metric:
    called = job_labels.metric_names(((job_names.namespace(job.id), job.labels) for job in jobs), LABEL_NAMES_MAX)
    rows = []
    for job in jobs:
        known = job_labels.parse(job.labels)
        labels = (known.get(name, "") for name in called)
        rows.append(((job.id, job.name, job_names.namespace(job.id), job.user, *labels), 1.0))
    text = "The name under which the ranks of a job report, its namespace, user and labels"
    return gauge("job_info", text, ["job_id", "job_name", "job_namespace", "job_user", *called.values()], rows)


def _of_jobs(moment: Moment, jobs: list[_Job]) -> Iterator[Metric]:
    all_jobs = [job.moment for job in jobs]
    yield _job_info(all_jobs)
    sizes = [((job.id,), float(job.world_size)) for job in all_jobs]
    yield gauge("job_world_size", "Ranks that a job has", ["job_id"], sizes)
    attempts = [((job.id,), float(job.attempt)) for job in all_jobs]
    yield gauge("job_attempt", "How often the launcher has started a job again", ["job_id"], attempts)
    states = [((job.id, state.value), float(job.status is state)) for job in all_jobs for state in JobStatus]
    yield gauge("job_state", "1 for the state that a job is in", ["job_id", "state"], states)
    hangs = [((job.id,), float(job.status is JobStatus.HUNG)) for job in all_jobs]
    yield gauge("job_hung", "Whether a critical incident of a job is open", ["job_id"], hangs)
    yield rising(
        "job_hung_seconds", "Time for which critical incidents of a job were open", ["job_id"],
        [((job.id,), job.hung_s) for job in all_jobs],
    )  # fmt: skip
    done = [((job.id,), float(job.completed)) for job in all_jobs]
    yield rising("job_collectives_completed", "Collectives completed, summed over the ranks", ["job_id"], done)


def _progress(wall: float, live: list[tuple[str, JobFigures]]) -> Iterator[Metric]:
    states = [((job, state.name.lower()), float(count)) for job, found in live for state, count in found.ranks]
    yield gauge("ranks", "Ranks, by state", ["job_id", "state"], states)
    hosts = [((job, state), float(count)) for job, found in live for state, count in found.hosts]
    yield gauge("hosts", "Nodes, by what their agents are heard of", ["job_id", "state"], hosts)
    steps = [((job,), float(found.step)) for job, found in live]
    yield gauge("job_step", "Optimizer steps of the rank that is furthest", ["job_id"], steps)
    moved = [((job,), wall - found.progress_ago_s) for job, found in live if math.isfinite(found.progress_ago_s)]
    yield gauge(
        "job_last_progress_timestamp_seconds", "When any rank last issued or completed something", ["job_id"], moved
    )
    waits = [((job,), found.longest_wait_s) for job, found in live]
    yield gauge("job_longest_wait_seconds", "The longest wait for peers without progress", ["job_id"], waits)
    yield _spread(
        "job_rank_wait_seconds", "Ranks by how long they have waited for peers, 0 for those that do not",
        WAIT_BOUNDS_S, [(job, found.wait_spread) for job, found in live],
    )  # fmt: skip
    yield _spread(
        "job_rank_lag_collectives", "Ranks by how many collectives they are behind the first of a group",
        LAG_BOUNDS, [(job, found.lag_spread) for job, found in live],
    )  # fmt: skip


def _spread(name: str, text: str, bounds: Sequence[float], rows: Iterable[tuple[str, Spread]]) -> Metric:
    family = GaugeHistogramMetricFamily(f"ncclwatch_{name}", text, labels=["job_id"])
    ends = [*(str(bound) for bound in bounds), "+Inf"]
    for job, spread in rows:
        family.add_metric([job], list(zip(ends, map(float, spread.counts), strict=True)), spread.total)
    return family


def _groups(wall: float, live: list[tuple[str, JobFigures]]) -> Iterator[Metric]:
    counts = [((job,), float(found.group_count)) for job, found in live]
    yield gauge("process_groups", "Process groups of a job", ["job_id"], counts)
    lags = [((job,), float(found.lag)) for job, found in live]
    yield gauge(
        "job_sequence_lag", "Collectives between the first and the last member of a group, the widest", ["job_id"], lags
    )
    labels = ["job_id", "process_group", "first_rank"]
    shown = [((job, group.name, str(group.first_rank)), group) for job, found in live for group in found.groups]
    apart = [(at, float(group.lag)) for at, group in shown]
    yield gauge("process_group_sequence_lag", "Collectives between the first and the last member", labels, apart)
    began = [(at, wall - group.inflight_s) for at, group in shown if group.inflight_s > 0]
    yield gauge(
        "process_group_oldest_inflight_timestamp_seconds", "When the oldest unfinished operation began", labels, began
    )
    done = [(at, float(group.completed)) for at, group in shown]
    yield rising("process_group_collectives_completed", "Collectives that a member has completed", labels, done)


def _incidents(moment: Moment) -> Iterator[Metric]:
    found = [incident for job in moment.jobs for incident in job.incidents]
    standing = Counter(
        (incident.job, incident.verdict.cause.value, incident.verdict.severity.value) for incident in found
    )
    rows = [(labels, float(count)) for labels, count in sorted(standing.items())]
    yield gauge("incident_open", "Open incidents", ["job_id", "cause", "severity"], rows)
    labels = ["job_id", "incident_id", "cause", "severity", "certainty", "process_group", "op"]
    labels += ["summary", "line", "advice"]
    yield gauge("incident_info", "1 for each open incident", labels, [(_told(incident), 1.0) for incident in found])
    identity = ["job_id", "incident_id"]
    begun = [((i.job, i.id), i.opened_at - i.onset_to_open_s) for i in found]
    yield gauge("incident_onset_timestamp_seconds", "When what an open incident tells of began", identity, begun)
    blocked = [((i.job, i.id), float(i.verdict.explained[1])) for i in found]
    yield gauge("incident_blocked_ranks", "Ranks that are blocked while an incident is open", identity, blocked)


def _told(incident: Incident) -> Labels:
    verdict = incident.verdict
    kinds = (verdict.cause.value, verdict.severity.value, verdict.certainty.value)
    site = next((each.call_site for each in verdict.culprits if each.call_site is not None), None)
    advice = next(iter(sentences_of(verdict.advice)), "")
    texts = (verdict.summary[:TEXT_MAX], str(site) if site is not None else "", advice[:TEXT_MAX])
    return (incident.job, incident.id, *kinds, verdict.group, verdict.op, *texts)


def _suspect_ranks(jobs: Iterable[JobMoment]) -> Metric:
    labels = ["job_id", "rank", "host", "cause", "severity", "incident_id"]
    rows = [((job.id, *suspect), 1.0) for job in jobs for suspect in _suspects(job)]
    return gauge("suspect_rank_info", "1 for each rank that an open incident names as its culprit", labels, rows)


def _suspects(job: JobMoment) -> list[Labels]:
    """Return (rank, host, cause, severity, incident) of a job's culprits, those of critical incidents first."""
    if not job.incidents:
        return []
    hosts = hosts_of(job)
    critical_first = sorted(job.incidents, key=lambda i: (i.verdict.severity is not Severity.CRITICAL, i.opened_at))
    found: list[Labels] = []
    for incident in critical_first:
        kinds = (incident.verdict.cause.value, incident.verdict.severity.value, incident.id)
        for culprit in incident.verdict.culprits:
            known = hosts[culprit.rank] if culprit.rank < len(hosts) else ""
            found.append((str(culprit.rank), culprit.host or known, *kinds))
    return list(dict.fromkeys(found))[:SUSPECTS_MAX]
