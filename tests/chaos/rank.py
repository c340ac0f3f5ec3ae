"""A rank without torch: real ring, real pulse, which starts a real agent; its collectives meet on a page of memory.

python -m tests.chaos.rank BOARD RANK WORLD_SIZE, with the environment of a job.
"""

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import Op, WaitKind
from ncclwatch.contract.ring.layout import OPS
from ncclwatch.contract.ring.layout import Word as RingWord
from ncclwatch.rank import endings
from ncclwatch.rank.operations import Group
from ncclwatch.rank.pulse import Pulse
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile, place_of_rings
from tests.chaos.board import Board, Gaps, Wish, Word

CULPRIT = 1
POLL_S = 0.01
STEP_S = 0.05
GATE = "gate"  # the file whose lock a rank that stalls waits for


class _Work:
    through = False

    def is_completed(self) -> bool:
        return self.through


class Rank:
    """One rank, and how it trains."""

    def __init__(self, board: Path, rank: int, world_size: int) -> None:
        self.board, self.gate = Board(board), board.with_name(GATE)
        self.rank, self.world_size = rank, world_size
        self.gaps = Gaps(self.board, rank)
        self.recorder: Recorder | None = None
        self.group: Group | None = None

    def attach(self) -> None:
        """Begin to record, as `ncclwatch.attach()` does. Without a ring it trains unwatched."""
        directory, job = config.runtime_dir(), os.environ[config.ENV_JOB]
        place = place_of_rings(directory, job)
        ring = RingFile(
            f"{place.path}/{self.rank}-{os.getpid()}.ring", place=place, rank=self.rank, local_rank=self.rank,
            world=(self.world_size, self.world_size), attempt=0,
        )  # fmt: skip
        identity = {
            "job": job, "instance": os.environ["CHAOS_INSTANCE"], "host": "node", "named": "1", "terminal": "0",
            "server": config.server_url(), "server_named": config.server_naming(), "share": "0",
        }  # fmt: skip
        ring.set_word(RingWord.IDENTITY, ring.told(identity, kept=True))
        ring.set_word(RingWord.PULSE_NS, time.monotonic_ns())
        ring.set_word(RingWord.INITIALISED, 1)
        self.recorder = Recorder(ring)
        self.recorder.thread()
        self.group = self.recorder.add_group("0", "default_pg", list(range(self.world_size)), 0)
        Pulse(self.recorder, directory, first=self.rank == 0, witness="", warn=_warn).start()

    def train(self) -> None:
        """Train until the test wants the end."""
        step = 0
        self.gaps.skip()
        while self.board.wish is not Wish.END:
            step += 1
            if self.board.wish is Wish.STALL and self.rank == CULPRIT:
                self.load()
            if self.board.wish is Wish.PART and self.rank == CULPRIT:
                self.barrier(step)
            self.all_reduce(step)
            self.board.set(self.rank, Word.STEPS, step)
            if self.recorder is not None:
                self.recorder.count_step(step)
            self.gaps.say()
            time.sleep(STEP_S)

    def load(self) -> None:
        """Wait for a lock that the test holds."""
        with self.gate.open("a") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
        self.gaps.skip()

    def all_reduce(self, seq: int) -> None:
        """Meet all others."""
        self._meet(seq, Op.ALL_REDUCE, 4)

    def barrier(self, seq: int) -> None:
        """Meet all others, who come to something else."""
        self._meet(seq, Op.BARRIER, 0)

    def _meet(self, seq: int, op: Op, numel: int) -> None:
        board, rank, code = self.board, self.rank, OPS.index(op)
        with self._recorded(code, numel, sys._getframe(2)):
            board.set(rank, Word.OP, code)
            board.set(rank, Word.SEQ, seq)
            board.set(rank, Word.WAITS, 1)
            while not board.met(range(self.world_size), seq, code) and board.wish is not Wish.END:
                self.gaps.say()
                time.sleep(POLL_S)
            board.set(rank, Word.WAITS, 0)

    @contextlib.contextmanager
    def _recorded(self, code: int, numel: int, caller: FrameType) -> Iterator[None]:
        recorder, group = self.recorder, self.group
        if recorder is None or group is None:
            yield
            return
        at = caller.f_code
        site = recorder.ring.string(f"{at.co_filename}\x1f{caller.f_lineno}\x1f{at.co_name}")
        issued, work = recorder.issue(group, code, numel, (-1, 1, 1), site), _Work()
        recorder.track(issued, work)
        outer = recorder.enter(WaitKind.COLLECTIVE, site, issued)
        yield
        work.through = True
        recorder.leave(outer)
        recorder.drain(group)


def _warn(sentence: str) -> None:
    print(f"ncclwatch: {sentence}", file=sys.stderr, flush=True)


def main() -> None:
    """Train."""
    rank = Rank(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    try:
        rank.attach()
    except Exception as error:  # noqa: BLE001 as attach() does: training goes on
        _warn(f"not watching this rank: {error}")
    rank.board.set(rank.rank, Word.PID, os.getpid())
    rank.train()
    if rank.recorder is not None:
        endings.note(rank.recorder, "exited", 0, {})


if __name__ == "__main__":
    main()
