"""Ends the ranks of a job on this node: with SIGTERM, then with SIGKILL, and names those that do not end even then.

Under torchrun a rank that fails is a reason to start all ranks of all nodes again, as often as --max-restarts allows.
So a restart ends the ranks alone; where the job is to end, torchrun is ended first, and ends its ranks. Under any other
launcher the ranks are ended, and it does what it does when ranks fail.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from ncclwatch.contract.model.rank import ProcessState
from ncclwatch.contract.on_hang.policy import Action
from ncclwatch_agent.acting.launcher import Launcher
from ncclwatch_agent.ranks.jobs import LocalJob
from ncclwatch_agent.ranks.rank_rows import LocalRank

TERMINATE_S = 5.0  # from SIGTERM to SIGKILL
STUCK_S = 15.0  # after which a process that still lives is named
_STOPPED = (ProcessState.STOPPED, ProcessState.TRACED)


class Ending:
    """The end of a job's ranks on this node. Call `go_on` each second; the first call begins it.

    That leaves the agents of all nodes a second to put on their terminals what they do: in a container of which
    torchrun is the first process, the agent ends with it.
    """

    def __init__(self, job: LocalJob, launcher: Launcher | None, action: Action) -> None:
        """`launcher`: the torchrun that started the ranks."""
        self._job = job
        self._action = action
        self._began: float | None = None
        self._killed = self._named = False
        self._launcher = launcher
        self.restarts = action is Action.RESTART and job.restarts_left > 0

    def _begin(self) -> None:
        if not self.restarts and self._launcher is not None:
            self._launcher.send(signal.SIGTERM)
        for rank in self._living():  # one that is stopped would hear SIGTERM only after it was continued
            if rank.watch.state in _STOPPED:
                _kill(rank)
            else:
                _send(rank, signal.SIGTERM)

    @property
    def launcher_lives(self) -> bool:
        """Whether whoever started the ranks is still there to start them again."""
        return self._launcher is not None and self._launcher.lives

    @property
    def launcher_gone(self) -> bool:
        """Whether whoever started the ranks has ended since, and starts nothing again."""
        return self._launcher is not None and not self._launcher.lives

    def was_started_by(self, launcher: Launcher) -> bool:
        """Whether this process, which lives, also started the ranks that were ended here."""
        return self.launcher_lives and self._launcher is not None and self._launcher.pid == launcher.pid

    def close(self) -> None:
        """Let go of whoever started the ranks."""
        if self._launcher is not None:
            self._launcher.close()

    @property
    def words(self) -> str:
        """Return what is done, in words."""
        torchrun, left = self._launcher is not None, self._job.restarts_left
        if self.restarts:
            times = "once more" if left == 1 else f"up to {left} times more"
            return f"ending the ranks, so that torchrun starts them again, {times}"
        if self._action is Action.RESTART:
            return (
                "ending the job, which torchrun starts again no more (--max-restarts)"
                if torchrun
                else "ending the ranks, for their launcher to start them again"
            )
        if self._job.restarts_left and not torchrun:
            return "ending the ranks; what started them was not found, and may start them again"
        return "ending the job" if torchrun else "ending the ranks"

    def go_on(self, now: float) -> Iterator[str]:
        """Do what is due, `now` being monotonic, in seconds. Yields sentences for the job's terminal."""
        if self._began is None:
            self._began = now
            self._begin()
        if not self._killed and now - self._began >= TERMINATE_S:
            self._killed = True
            for rank in self._living():
                _kill(rank)
        if not self._named and now - self._began >= STUCK_S:
            self._named = True
            for rank in self._living():
                yield _does_not_end(rank)

    def _living(self) -> Iterator[LocalRank]:
        return (rank for rank in self._job.everyone() if rank.is_here)


def _kill(rank: LocalRank) -> None:
    _send(rank, signal.SIGKILL)
    own = rank.identity.get("exit_signal", "")
    if own.isdecimal() and signal.SIGRTMIN <= int(own) <= signal.SIGRTMAX:
        # The first process of a container gets no SIGKILL from inside it, and handles this while it is not stopped.
        _send(rank, signal.SIGCONT)
        _send(rank, int(own))


def _send(rank: LocalRank, number: int) -> None:
    with contextlib.suppress(OSError):
        if rank.watch.pidfd.fd >= 0:
            signal.pidfd_send_signal(rank.watch.pidfd.fd, number)
        else:
            os.kill(rank.header.pid, number)


def _does_not_end(rank: LocalRank) -> str:
    pid, place = rank.header.pid, ""
    with contextlib.suppress(OSError):
        place = Path(f"/proc/{pid}/wchan").read_text()
    inside = f", in {place}" if place not in ("", "0") else ""
    if rank.watch.state is ProcessState.DISK_WAIT:
        return (
            f"rank {rank.rank} (pid {pid}) does not end: the kernel holds it (state D{inside}); its node needs a look"
        )
    return f"rank {rank.rank} (pid {pid}) does not end after SIGKILL{inside}"
