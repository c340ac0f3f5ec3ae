"""Rings that ranks left behind: the same records as of a live job, read when nobody writes to them any more."""

import json
import random
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from ncclwatch.contract.model.rank import Op, WaitKind
from ncclwatch.contract.ring.layout import Word
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile
from ncclwatch_server.judge.theory.case import open_case
from ncclwatch_server.offline.rings import read, views_of
from ncclwatch_server.offline.snapshot import Witness, snapshot_of
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


def test_a_rank_that_stopped_in_a_call_that_the_others_completed_is_named(tmp_path: Path):
    made = ranks(tmp_path)
    for writer in made[:2]:
        writer.issue(line=60)
        writer.issue(line=61, done=False)
        writer.leave(30.0)
    made[2].issue(line=60, done=False)
    made[2].leave(1.0)
    assert brief(tmp_path) == [("warning", "LATE", "undetermined", [2], [0, 1])]
    assert "its pulse stopped 29 s before the others'" in told(tmp_path)
    assert "Rank 2 is in an operation that another member has completed, so nobody holds it up" in told(tmp_path)


def test_a_rank_that_stopped_in_a_call_to_which_another_has_not_come_is_not_named(tmp_path: Path):
    made = ranks(tmp_path)
    for writer in (made[0], made[2]):
        writer.issue(line=60, done=False)
    made[0].leave(30.0)
    made[1].leave(30.0)
    made[2].leave(1.0)
    assert [each[3] for each in brief(tmp_path)] == [[1]]


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


def test_a_ring_of_another_job_is_left_out(tmp_path: Path):
    made = ranks(tmp_path)
    for writer in made[:2]:
        writer.issue(line=60, done=False)
    made[2].issue(Op.BROADCAST, line=12, root=1, done=False)
    made[2].ring.set_word(Word.IDENTITY, made[2].ring.string(json.dumps({"job": "other", "host": "node9"})))
    for writer in made:
        writer.leave(20.0)
    assert [each[1:4] for each in brief(tmp_path)] == [("LATE", "undetermined", [2])]
    assert "left out, it is of job other, and most rings are of job j" in told(tmp_path)


def test_a_rank_that_may_work_is_late_and_nothing_is_said_of_why(tmp_path: Path):
    made = ranks(tmp_path)
    for writer in made[:2]:
        writer.issue(line=60, done=False)
    made[2].ring.set_sample(0, time.monotonic_ns(), {"leaf": "validate /home/user/val.py:9"})
    for writer in made:
        writer.leave(30.0)
    assert [each[:4] for each in brief(tmp_path)] == [("warning", "LATE", "undetermined", [2])]
    assert "its stack had not changed for 30 s" in told(tmp_path)


@pytest.mark.parametrize(
    ("seen_s_before", "said_of_it"),
    [(25.0, ("critical", "host_stall")), (0.0, ("critical", "undetermined"))],
    ids=["stood still", "its stack had just changed"],
)
def test_who_is_waited_for_to_the_timeout_stood_still_only_if_its_stack_did(
    tmp_path: Path, seen_s_before: float, said_of_it: tuple[str, str]
):
    made = ranks(tmp_path)
    for writer in made:
        writer.ring.limit_group(writer.group.number, 30_000)
    for writer in made[:2]:
        writer.issue(line=60, done=False)
    at_ns = time.monotonic_ns() + int((30.0 - seen_s_before) * S)
    made[2].ring.set_sample(0, at_ns, {"leaf": "validate /home/user/val.py:9"})
    for writer in made:
        writer.leave(30.0)
    assert [(each[0], *each[2:]) for each in brief(tmp_path)] == [(*said_of_it, [2], [0, 1])]


def test_of_a_rank_that_is_late_without_a_stack_only_its_record_is_told(tmp_path: Path):
    made = ranks(tmp_path)
    for writer in made[:2]:
        writer.issue(line=60, done=False)
    for writer in made:
        writer.leave(30.0)
    (incident,) = said(tmp_path)["incidents"]
    assert [each["fact"] for each in incident["evidence"] if each["rank"] == 2] == [
        "in no operation; the last one was all_reduce #5 of the default group at train.py:7 in step()"
    ]


def test_a_torn_ring_is_a_note(tmp_path: Path):
    for writer in ranks(tmp_path):
        writer.leave(1.0)
    (tmp_path / "9-9.ring").write_bytes((tmp_path / "0-1000.ring").read_bytes()[:5000])
    assert any("9-9.ring" in note and "truncated" in note for note in said(tmp_path)["notes"])


def test_a_ring_that_says_an_absurd_number_of_ranks_is_a_note(tmp_path: Path):
    for writer in ranks(tmp_path):
        writer.leave(1.0)
    RingFile(str(tmp_path / "9-9.ring"), rank=9, local_rank=9, world=(300_000, 8), attempt=0).close()
    assert any("9-9.ring" in note and "300000 ranks" in note for note in said(tmp_path)["notes"])


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


def waiting_in(writer: Writer, name: str, members: list[int]) -> None:
    """Let a rank wait in the first operation of a group."""
    writer.group = writer.recorder.add_group(name, "", members, 0)
    writer.issue(line=70, done=False)


def test_members_that_found_no_room_in_the_rings_are_unknown_and_nobody_is_named(tmp_path: Path):
    scattered = random.Random(3).sample(range(98_304), 98_000)
    made = [Writer(tmp_path, rank, 98_304) for rank in (0, 1)]
    for writer in made:
        waiting_in(writer, "scattered", scattered)
        writer.leave(600.0)
    assert [each[2:] for each in brief(tmp_path)] == [("undetermined", [], [0, 1])]
    assert "Who else belongs to that group" in told(tmp_path)


def test_members_that_one_ring_has_are_those_of_the_others_of_the_same_digest(tmp_path: Path):
    members = random.Random(3).sample(range(60_000), 40_000)
    made = [Writer(tmp_path, rank, 60_000) for rank in members[:3]]
    fill = random.Random(4).sample(range(60_000), 25_000)
    made[0].recorder.add_group("fill", "", fill, 0)
    for writer in made[:2]:
        waiting_in(writer, "scattered", members)
    for writer in made:
        writer.leave(600.0)
    left = [read(str(path)) for path in sorted(tmp_path.glob("*.ring"))]
    assert sorted(len(each.view.groups[-1].ranks) for each in left if each.view.groups[-1].name == "scattered") == [
        0,
        40_000,
    ]
    case = open_case(snapshot_of({}, Witness(rings=views_of(left))))
    assert {group.ranks for view in case.views.values() for group in view.groups if group.name == "scattered"} == {
        tuple(members)
    }
