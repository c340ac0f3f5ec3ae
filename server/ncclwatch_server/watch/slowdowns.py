"""Opens an incident for a slow rank when a finding comes, keeps it true, and closes it when the finding goes.

They are apart from those of hangs: a job that goes on resolves a hang, and says nothing of a rank that is slow.
"""

from ncclwatch.contract.model.rank import CallSite
from ncclwatch.contract.model.verdict import Severity, Verdict
from ncclwatch.contract.wire import CommandKind
from ncclwatch_server import limits
from ncclwatch_server.evidence.inspection import Question
from ncclwatch_server.incidents.book import Incident, IncidentBook, IncidentState, Opening
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.stragglers.words import Whereabouts, verdict_of
from ncclwatch_server.watch.examiner import Clock
from ncclwatch_server.watch.publisher import Publisher


class Slowdowns:
    """Keeps the incidents of slow ranks; the watch loop calls it."""

    def __init__(self, book: IncidentBook, publisher: Publisher, wall: Clock) -> None:
        self._book = book
        self._publisher = publisher
        self._wall = wall

    def update(self, job: Job, now: float) -> None:
        """Take what came of a job's pace, and bring its incidents up to date."""
        if now - job.paced_at < limits.TICK_S:
            return
        job.paced_at = now
        rows, rank = job.state.living()
        if not len(rank) or not job.stragglers.add_rows(rows, rank, now):
            return
        found = job.stragglers.findings
        suspects = [rank for finding in found for rank in finding.ranks]
        job.closely.ask_about(suspects, rank.tolist(), lambda ranks: _inspect(job, ranks), now)
        where = Whereabouts(
            host_of=lambda rank: _host_of(job, rank),
            site_of=lambda rank: _site_of(job, rank),
            detail_of=job.closely.detail,
            on_gpus=bool((rows["device"] != 0).any()),
        )
        verdicts = [verdict_of(each, job.world_size, where, now) for each in found]
        shown = {incident.id for verdict in verdicts if (incident := self._show(job, verdict)) is not None}
        for incident in self._book.slow_of(job.key):
            # A server that was started again has to see some windows before it finds what the one before had found.
            awaited = self._book.is_remembered(incident) and not job.stragglers.is_settled
            if incident.id not in shown and not awaited:
                closed = self._book.end(incident, IncidentState.RESOLVED, self._wall())
                self._publisher.closed(closed)

    def _show(self, job: Job, verdict: Verdict) -> Incident | None:
        known = next((each for each in self._book.slow_of(job.key) if _same(each.verdict, verdict)), None)
        if known is None:
            opening = Opening(
                key=job.key, job=job.id, world_size=job.world_size, verdict=verdict, accounts=job.accounts
            )
            opened = self._book.open(opening, self._wall())
            if opened is not None:
                self._publisher.opened(job, opened)
            return opened
        before = known.verdict
        changed = self._book.say(known, verdict)
        if before.severity is Severity.INFO and verdict.severity is Severity.WARNING:
            self._publisher.escalated(job, changed)
        elif _is_news(before, verdict):
            self._publisher.changed(changed)
        return changed


def _same(one: Verdict, other: Verdict) -> bool:
    """Whether two verdicts are about one slowness: of common ranks, or of all and of one kind."""
    ranks = [{culprit.rank for culprit in each.culprits} for each in (one, other)]
    kinds = [each.slowness.kind if each.slowness is not None else None for each in (one, other)]
    return bool(ranks[0] & ranks[1]) or (not (ranks[0] or ranks[1]) and kinds[0] == kinds[1])


def _is_news(one: Verdict, other: Verdict) -> bool:
    """Whether more than the time has passed: what it costs is stored when it has doubled."""
    if one.slowness is None or other.slowness is None:
        return True
    told = (one.slowness.kind, one.culprits, one.severity) != (other.slowness.kind, other.culprits, other.severity)
    return told or other.slowness.lost_s > 2 * one.slowness.lost_s


def _inspect(job: Job, ranks: tuple[int, ...]) -> list[Question]:
    """Ask the agents of these ranks for their views."""
    by_link: dict[int, list[int]] = {}
    for rank in ranks:
        by_link.setdefault(job.state.owner(rank), []).append(rank)
    alive = [(job.served[number], asked) for number, asked in by_link.items() if number in job.served]
    return [
        (served.link.number, served.link.command(CommandKind.INSPECT, served.index, tuple(asked)))
        for served, asked in alive
        if served.alive
    ]


def _host_of(job: Job, rank: int) -> str:
    served = job.served.get(job.state.owner(rank))
    return served.link.host if served is not None else ""


def _site_of(job: Job, rank: int) -> CallSite | None:
    loop = job.loops.of(rank)
    if loop is None:
        return None
    file, _, line = loop.loader.rpartition(":")
    return CallSite(file=file, line=int(line), function=loop.function) if file and line.isdigit() else None
