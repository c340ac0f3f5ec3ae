"""Hears a simulated job as the server does: its own state, choice of ranks and judge, without clock and sockets."""

from dataclasses import dataclass, field

from ncclwatch.contract import digests, wire
from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import RankView
from ncclwatch.contract.model.verdict import Verdict
from ncclwatch_server.incidents.book import JobKey
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.judge import judge
from ncclwatch_server.simulation.fleet import Fleet
from ncclwatch_server.state.job_state import JobState
from ncclwatch_server.watch.examiner import ranks_to_inspect

JOB = "simulated"


@dataclass(slots=True, kw_only=True)
class Hearing:
    """A job as the server knows it while its nodes report.

    `hang_s` is for how long the job has stood; `now`, where it is given, is another clock to go by, for a job that
    moves before it stands.
    """

    fleet: Fleet
    job: Job = field(init=False)

    def __post_init__(self) -> None:
        """Let all nodes announce the job."""
        state = JobState(self.fleet.still.world_size)
        self.job = Job(
            id=JOB, key=JobKey(name=JOB, instance=JOB, attempt=0), state=state, known_since=-3600.0,
        )  # fmt: skip
        for node in range(self.fleet.nodes):
            state.announce(node, self.fleet.ranks_of(node), 0.0)

    def report(self, hang_s: float, now: float | None = None) -> None:
        """Take one digest of every node."""
        now = hang_s if now is None else now
        ranks, groups = self.fleet.rows(hang_s)
        each, node_size = len(self.fleet.still.layout.axes), self.fleet.still.layout.node
        rank_bytes, group_bytes = memoryview(ranks.tobytes()), memoryview(groups.tobytes())
        rank_size, group_size = node_size * digests.RANK_ROW.size, node_size * each * digests.GROUP_ROW.size
        for node in range(self.fleet.nodes):
            mine = rank_bytes[node * rank_size : (node + 1) * rank_size]
            theirs = group_bytes[node * group_size : (node + 1) * group_size]
            self.job.state.receive_digest(node, mine, theirs, now)

    def tick(self, now: float) -> bool:
        """Look at the job as the watch loop does. Returns whether it deserves a closer look."""
        self.job.state.fold(now)
        self.job.suspicion = self.job.state.suspicion(now)
        return bool(self.job.suspicion)

    def snapshot(self, hang_s: float, now: float | None = None) -> JobSnapshot:
        """Ask the nodes of the ranks that are worth it for their views, and return what is known then."""
        now = hang_s if now is None else now
        ranks = ranks_to_inspect(self.job)
        self.job.inspection.focus(ranks)
        self.job.inspection.ask([(0, 1)], now)
        self.job.inspection.receive_views(arrived(self.fleet.views(ranks, hang_s)), (0, 1), now)
        return self.job.snapshot(now)


def arrived(views: tuple[RankView, ...]) -> tuple[RankView, ...]:
    """Return views as they are on the other side of the wire."""
    message = wire.decode_from_agent(wire.encode(wire.Views(index=0, ranks=views)))
    return message.ranks if isinstance(message, wire.Views) else ()


def hear(fleet: Fleet, *, hang_s: float = 20.0) -> tuple[Verdict, ...]:
    """Return the verdicts on a job that has stood for so long; none if nothing about it is suspicious."""
    hearing = Hearing(fleet=fleet)
    for seconds in (0.0, hang_s):
        hearing.report(seconds)
        suspicious = hearing.tick(seconds)
    verdicts = judge(hearing.snapshot(hang_s)) if suspicious else ()
    return tuple(hearing.job.counted(verdict) for verdict in verdicts)
