"""Small values for tests of the server's pure parts."""

from dataclasses import replace

from ncclwatch.contract import digests
from ncclwatch.contract.model.rank import CallSite, Ending, ProcessState, ProcessView, RankView
from ncclwatch.contract.model.verdict import Cause, Certainty, Culprit, Severity, Verdict
from ncclwatch_server.incidents.book import JobKey
from ncclwatch_server.state.job_state import JobState

KEY = JobKey(name="job", instance="host:1", attempt=0)
VERDICT = Verdict(
    cause=Cause.UNEVEN_BATCHES,
    certainty=Certainty.PROVEN,
    severity=Severity.CRITICAL,
    summary="rank 1 left the loop",
    explanation="It had fewer batches.",
    advice="Give all ranks the same number of batches.",
    culprits=(Culprit(rank=1, call_site=CallSite(file="/u/train.py", line=3, function="main"), doing="in barrier"),),
    victims=(0, 2, 3),
    group="0",
    seq=7,
    op="all_reduce",
    onset_s=2.0,
    explained=(3, 3),
)


def verdict(cause: Cause = Cause.UNEVEN_BATCHES, culprits: tuple[int, ...] = (1,), **changes: object) -> Verdict:
    """Return a verdict with some fields changed."""
    said = tuple(Culprit(rank=rank) for rank in culprits)
    return replace(VERDICT, cause=cause, culprits=said, **changes)  # type: ignore[arg-type]


def view(rank: int, ending: Ending | None = None) -> RankView:
    """Return a view of a rank that does nothing special."""
    return RankView(
        rank=rank, local_rank=rank, host="h", pid=1, device="cpu", world_size=4, local_world_size=4, attempt=0,
        process=ProcessView(state=ProcessState.SLEEPING), pulse_age_s=0.0, initialised=True, ending=ending,
    )  # fmt: skip


def digest(
    state: JobState,
    link: int,
    now: float,
    ranks: dict[int, float],
    *,
    enqueued: int = 5,
    ended: tuple[int, ...] = (),
    detached: tuple[int, ...] = (),
    gpus: tuple[int, ...] = (),
) -> None:
    """Hand in a digest: ranks with the seconds they have waited, each in one group."""
    rows: list[tuple[float, ...]] = [
        (
            rank,
            0,
            int(rank in ended),
            1,
            int(rank in detached),
            0.1,
            wait_s,
            enqueued,
            enqueued - 1,
            0,
            *digests.NO_WAIT,
            digests.NO_FACTS[0],
            100 + rank if rank in gpus else 0,
            *digests.NO_FACTS[2:],
        )
        for rank, wait_s in ranks.items()
    ]
    groups: list[tuple[float, ...]] = [
        (rank, wait_s, 9, enqueued, 1, max(0, enqueued - 4), 8) for rank, wait_s in ranks.items()
    ]
    _, rank_rows, group_rows = digests.split_digest(digests.pack_digest(0, rows, groups))
    state.receive_digest(link, rank_rows, group_rows, now)
