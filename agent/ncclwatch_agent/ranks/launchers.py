"""Remembers the launchers of jobs that are over on this node, which may start them again."""

from ncclwatch.contract.model.rank import ProcessState
from ncclwatch_agent.process.procfs import Stat, parse_stat, read_text
from ncclwatch_agent.ranks.jobs import LocalJob

AGAIN_S = 120.0  # after a job is over: torchrun gives ranks 30 s to end, and all nodes meet before the next begin


class Launchers:
    """The torchrun processes whose ranks have ended here. Time is an argument, in seconds on any one clock."""

    def __init__(self) -> None:
        self._until: dict[tuple[int, int], float] = {}  # by pid and start time

    def note(self, job: LocalJob, now_s: float) -> None:
        """Remember who started a job that is over."""
        for pid in {rank.watch.parent for rank in job.everyone()} if job.under_torchrun else ():
            stat = _stat_of(pid)
            if pid > 1 and stat is not None:
                self._until[pid, stat.start_ticks] = now_s + AGAIN_S

    def may_start_again(self, now_s: float) -> bool:
        """Whether some launcher lives, and its ranks have not been gone for long."""
        self._until = {known: until for known, until in self._until.items() if now_s < until and _lives(*known)}
        return bool(self._until)


def _lives(pid: int, start_ticks: int) -> bool:
    stat = _stat_of(pid)
    return stat is not None and stat.start_ticks == start_ticks and stat.state is not ProcessState.ZOMBIE


def _stat_of(pid: int) -> Stat | None:
    return parse_stat(read_text(f"/proc/{pid}/stat").encode())
