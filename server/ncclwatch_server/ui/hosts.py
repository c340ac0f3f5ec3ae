"""Shows what is known of one machine: its connections, its ranks in each job, and the incidents that blame them."""

from collections.abc import Iterable
from dataclasses import dataclass

from ncclwatch_server.evidence.rank_labels import RankNote
from ncclwatch_server.http.job_views import NodeView, nodes_of
from ncclwatch_server.http.rank_views import RankRow, ranks_of
from ncclwatch_server.incidents.book import Incident
from ncclwatch_server.jobs.read_model import JobSight, JobStatus

RANKS_MAX = 64  # of one job on one machine
INCIDENTS_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRank:
    """One rank on the machine."""

    row: RankRow
    note: RankNote | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostJob:
    """What a job has on the machine."""

    job: str
    status: JobStatus
    node: NodeView
    ranks: tuple[HostRank, ...]
    more_ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine."""

    name: str
    jobs: tuple[HostJob, ...]
    incidents: tuple[Incident, ...]  # the newest first

    @property
    def known(self) -> bool:
        """Whether anything is known of it."""
        return bool(self.jobs or self.incidents)


def host_of(name: str, sights: Iterable[JobSight], incidents: Iterable[Incident]) -> Host:
    """Return what is known of a machine."""
    jobs = tuple(_job(sight, node) for sight in sights for node in nodes_of(sight) if node.host == name and node.ranks)
    blamed = [i for i in incidents if any(culprit.host == name for culprit in i.verdict.culprits)]
    return Host(name=name, jobs=jobs, incidents=tuple(blamed[:INCIDENTS_MAX]))


def _job(sight: JobSight, node: NodeView) -> HostJob:
    shown = node.ranks[:RANKS_MAX]
    rows = {row.rank: row for row in ranks_of(sight, shown[0], shown[-1] - shown[0] + 1).ranks}
    return HostJob(
        job=sight.id,
        status=sight.status,
        node=node,
        ranks=tuple(HostRank(row=rows[rank], note=sight.notes.get(rank)) for rank in shown),
        more_ranks=len(node.ranks) - len(shown),
    )
