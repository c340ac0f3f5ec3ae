"""Real rings of ranks that never ran: what they did is written by the recorder's own code and read by the agent's.

The one module of the server that knows the rank and the agent. A simulated job, the benches and the scenarios go
through it, so that whatever a ring cannot hold is missing from their views as it is from those of a real job.
"""

import contextlib
import os
import tempfile
from pathlib import Path
from types import TracebackType

from ncclwatch.contract.model.rank import RankView
from ncclwatch.contract.ring.layout import Word
from ncclwatch.contract.ring.members import unpacked
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.rank.operations import Group
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile
from ncclwatch_agent.ranks.rank_rows import LocalRank

__all__ = ["NOW_NS", "Group", "SimulatedRing", "WrittenRing"]

NOW_NS = 10**15  # at which a ring is read, on a clock of its own: the same arguments give the same views
_MEMORY = "/dev/shm"


class WrittenRing:
    """The ring of a rank that never ran, as it writes itself down. It closes `file` with itself."""

    def __init__(self, file: RingFile, now_ns: int) -> None:
        self._now_ns = self._clock_ns = now_ns
        self.file = file
        self.file.clock = lambda: self._clock_ns
        self.recorder = Recorder(file)

    def close(self) -> None:
        """Unmap it."""
        self.file.close()

    def turn_back(self, age_s: float) -> int:
        """Let what is written from now on have happened so long before the ring is read. Returns that time in ns."""
        self._clock_ns = self._now_ns - round(age_s * 1e9)
        return self._clock_ns

    def say(self, word: int, text: str) -> None:
        """Store a text whose id is a live word."""
        self.file.set_word(word, self.file.string(text) if text else 0)

    def add_thread(self, tid: int, *, main: bool, issued: int = 0) -> int:
        """Begin the row of a thread, which does what is recorded from now on. Returns the row, -1: no room."""
        row = self.file.add_thread(tid, main)
        self.be_thread(row, issued)
        return row

    def be_thread(self, row: int, issued: int) -> None:
        """Let what is recorded from now on be the doing of a thread that has issued so many operations."""
        state = self.recorder.state()
        state.row, state.issued, state.wait = row, issued, b"\0" * len(state.wait)

    def beat(self, age_s: float) -> int:
        """Let the rank's pulse have run last so long ago. Returns that time in ns."""
        now_ns = self.turn_back(age_s)
        self.file.set_word(Word.PULSE_NS, now_ns)
        return now_ns


class SimulatedRing(WrittenRing):
    """Such a ring with its reader. A context manager; it leaves nothing behind, killed or not."""

    def __init__(self, *, rank: int, local_rank: int, world: tuple[int, int], attempt: int = 0) -> None:
        memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
        room = Path(tempfile.mkdtemp(prefix="ncclwatch-simulated-", dir=memory))
        path = str(room / "simulated.ring")
        with contextlib.ExitStack() as opened:
            opened.callback(room.rmdir)
            file = RingFile(path, rank=rank, local_rank=local_rank, world=world, attempt=attempt)
            opened.callback(Path(path).unlink)  # both ends have it open, and need no name
            super().__init__(file, NOW_NS)
            self.reader = Ring(path)
            self._read = LocalRank(self.reader)

    def __enter__(self) -> "SimulatedRing":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close both ends."""
        self._read.close()
        super().close()

    def view(self) -> RankView:
        """Return what the agent makes of the ring, as it comes to the server."""
        return unpacked((self._read.view(NOW_NS),))[0]

    def rows(self) -> tuple[tuple[float, ...], list[tuple[float, ...]]]:
        """Return what the agent makes of it for a digest: the row of the rank, and those of its groups."""
        return self._read.rows(NOW_NS)
