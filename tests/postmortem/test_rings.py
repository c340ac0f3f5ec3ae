"""Rings that ranks left behind: the same records as of a live job, read when nobody writes to them any more."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from ncclwatch.contract.model import Op, WaitKind
from ncclwatch.contract.ring import Word
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ringfile import RingFile
from tests.postmortem.analysis import brief, said, told
from tests.postmortem.dumps import OPEN, Job

CODES = {op: tuple(Op).index(op) for op in Op}
S = 1_000_000_000


class Pending:
    """A work that is not complete."""

    def is_completed(self) -> bool:
        """Say so."""
        return False


@dataclass
class Writer:
    """A rank that writes a ring and leaves it."""

    folder: Path
    rank: int
    world: int

    def __post_init__(self) -> None:
        path = self.folder / f"{self.rank}-{1000 + self.rank}.ring"
        self.ring = RingFile(str(path), rank=self.rank, local_rank=self.rank, world=(self.world, self.world), attempt=0)
        self.recorder = Recorder(self.ring)
        self.ring.set_word(Word.IDENTITY, self.ring.string(json.dumps({"job": "j", "host": "node9"})))
        self.ring.set_word(Word.INITIALISED, 1)
        self.group = self.recorder.add_group("0", "default_pg", list(range(self.world)), 0)

    def issue(
        self, op: Op = Op.ALL_REDUCE, *, line: int = 7, numel: int = 8, root: int = -1, done: bool = True
    ) -> None:
        """Issue one operation, and wait in it if it is not done."""
        site = self.ring.string(f"/home/user/train.py\x1f{line}\x1fstep")
        issued = self.recorder.issue(self.group, CODES[op], numel, (root, 1, 1 if root < 0 else 0), site)
        self.recorder.track(issued, None if done else Pending())
        if not done:
            self.recorder.enter(WaitKind.COLLECTIVE, site, issued)

    def leave(self, after_s: float) -> None:
        """Let the pulse run for so long and stop."""
        self.ring.set_word(Word.PULSE_NS, time.monotonic_ns() + int(after_s * S))
        self.ring.close()


def ranks(folder: Path, world: int = 3) -> list[Writer]:
    """Return ranks that have completed five collectives."""
    made = [Writer(folder, rank, world) for rank in range(world)]
    for writer in made:
        for _ in range(5):
            writer.issue()
    return made


def test_the_rank_that_stopped_before_the_others_is_named(tmp_path: Path):
    made = ranks(tmp_path)
    for writer in made[:2]:
        writer.issue(line=60, done=False)
        writer.leave(30.0)
    made[2].leave(2.0)
    assert [each[3:] for each in brief(tmp_path)] == [([2], [0, 1])]
    assert "its pulse stopped 28 s before the others'" in told(tmp_path)
    assert "train.py:60" in told(tmp_path)


def test_different_roots_are_a_proof(tmp_path: Path):
    made = ranks(tmp_path)
    for writer in made:
        writer.issue(Op.BROADCAST, line=12, root=1 if writer.rank == 2 else 0, done=False)
        writer.leave(20.0)
    assert [each[:4] for each in brief(tmp_path)] == [("critical", "PROVEN", "signature_mismatch", [2])]


def test_rings_of_a_job_that_is_well_say_nothing(tmp_path: Path):
    for writer in ranks(tmp_path):
        writer.leave(1.0)
    assert brief(tmp_path) == []


def test_a_torn_ring_is_a_note(tmp_path: Path):
    for writer in ranks(tmp_path):
        writer.leave(1.0)
    (tmp_path / "9-9.ring").write_bytes((tmp_path / "0-1000.ring").read_bytes()[:5000])
    assert any("9-9.ring" in note and "truncated" in note for note in said(tmp_path)["notes"])


def test_rings_of_some_ranks_and_dumps_of_others_go_together(tmp_path: Path):
    made = ranks(tmp_path, 4)[:1]
    made[0].issue(numel=100, done=False)
    made[0].leave(600.0)
    for rank in (1, 2, 3):
        (tmp_path / f"{rank}-{1000 + rank}.ring").unlink()
    job = Job(4)
    job.steps(5)
    job.op([0, 1, 2], state=OPEN)
    job.write(tmp_path, missing=[0])
    assert [each[3:] for each in brief(tmp_path)] == [([3], [0, 1, 2])]
