"""A page of shared memory: the ranks of a small job meet there, and a test steers and watches them."""

import mmap
import os
import time
from enum import IntEnum
from pathlib import Path

RANKS_MAX = 15


class Wish(IntEnum):
    """What the ranks are to do."""

    TRAIN = 0
    PART = 1  # rank CULPRIT goes to a barrier that nobody else comes to
    STALL = 2  # rank CULPRIT waits for a lock between two steps
    END = 3  # all end well


class Word(IntEnum):
    """What a rank says of itself."""

    PID = 0
    SEQ = 1  # the collective it has entered last
    OP = 2
    STEPS = 3
    POLLS = 4  # grows while its program runs
    GAP_MS = 5  # the longest time between two of these, without that in which it waited for a core
    WAITS = 6  # 1: in a collective


class Board:
    """The page. The first row is the test's, the others are the ranks'."""

    def __init__(self, path: Path, *, make: bool = False) -> None:
        fd = os.open(path, os.O_RDWR | (os.O_CREAT if make else 0), 0o600)
        try:
            os.ftruncate(fd, mmap.PAGESIZE)
            self._words = memoryview(mmap.mmap(fd, mmap.PAGESIZE)).cast("Q")
        finally:
            os.close(fd)

    @property
    def wish(self) -> Wish:
        """What the ranks are to do now."""
        return Wish(self._words[0])

    @wish.setter
    def wish(self, wish: Wish) -> None:
        self._words[0] = wish

    def get(self, rank: int, word: Word) -> int:
        """Return what a rank says."""
        return self._words[(rank + 1) * 8 + word]

    def set(self, rank: int, word: Word, value: int) -> None:
        """Let a rank say something."""
        self._words[(rank + 1) * 8 + word] = value

    def met(self, ranks: range, seq: int, op: int) -> bool:
        """Whether all ranks are in this collective, or have been."""
        return all(
            self.get(rank, Word.SEQ) > seq or (self.get(rank, Word.SEQ), self.get(rank, Word.OP)) == (seq, op)
            for rank in ranks
        )


class Gaps:
    """Says on the board that a thread runs, and for how long it did not though a core was free for it."""

    def __init__(self, board: Board, rank: int) -> None:
        self._board, self._rank = board, rank
        self._said_s, self._queued_s = time.monotonic(), _queued_s()

    def skip(self) -> None:
        """Leave out the time since it last said something."""
        self._said_s, self._queued_s = time.monotonic(), _queued_s()

    def say(self) -> None:
        """Say that it runs."""
        now_s, queued_s = time.monotonic(), _queued_s()
        gap_ms = max(0, round(1000 * (now_s - self._said_s - (queued_s - self._queued_s))))
        self._said_s, self._queued_s = now_s, queued_s
        self._board.set(self._rank, Word.POLLS, self._board.get(self._rank, Word.POLLS) + 1)
        if gap_ms > self._board.get(self._rank, Word.GAP_MS):
            self._board.set(self._rank, Word.GAP_MS, gap_ms)


def _queued_s() -> float:
    """Return for how long this thread has waited for a core (proc(5), schedstat)."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
