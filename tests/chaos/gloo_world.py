"""The same world, whose job is a torchrun with ranks of torch that talk by gloo."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from tests.chaos.board import Word
from tests.chaos.world import JOB, ROOT, World
from tests.integration.launch import PROGRAMS, environment
from tests.zoo.forking.torch_once import forking_torchrun


class GlooWorld(World):
    """Two ranks. Of `ranks` the one process is the launcher."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, ranks=2)

    def start_ranks(self) -> None:
        """Start the job."""
        environ = environment(
            self.runtime, NCCLWATCH_SERVER=self.proxy.url, NCCLWATCH_JOB=JOB, NCCLWATCH_TERMINAL="0",
            CHAOS_BOARD=str(self.directory / "board"), PYTHONPATH=f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        )  # fmt: skip
        del environ["NCCLWATCH_AGENT"]
        with (self.directory / "ranks.log").open("ab") as log:
            command = forking_torchrun(PROGRAMS / "chaos.py", self.size)
            self.ranks.append(
                subprocess.Popen(command, env=environ, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            )

    def lives(self, rank: int) -> bool:
        """Whether a rank runs, or is stopped."""
        pid = self.board.get(rank, Word.PID)
        with contextlib.suppress(OSError):
            return bool(pid) and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        return False

    def stop_training(self) -> None:
        """End the job as Ctrl-C does."""
        self.ranks[0].send_signal(signal.SIGINT)
