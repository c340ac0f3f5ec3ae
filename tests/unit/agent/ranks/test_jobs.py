"""Which processes the agent takes for the ranks of a job, and how it waits."""

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ncclwatch.contract import digests, wire
from ncclwatch.contract.machine.boot import pid_namespace
from ncclwatch.contract.machine.private_dirs import open_private
from ncclwatch.contract.model.rank import Ending
from ncclwatch.contract.network.sockets import worker_socket
from ncclwatch.contract.ring import layout
from ncclwatch.contract.ring.layout import Word
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.rank.ring.ringfile import RingFile
from ncclwatch_agent.deadline import within
from ncclwatch_agent.process.rank_process import ProcessWatch
from ncclwatch_agent.ranks import jobs
from ncclwatch_agent.ranks.jobs import LEFTOVER_S, JobKey, LocalJob, Runs, leftovers
from ncclwatch_agent.ranks.rank_rows import LocalRank
from ncclwatch_agent.ranks.rings import BAD_S, IDENTITY_S, STEADY_NS, RingDirectory

S = 1_000_000_000
MakeRank = Callable[..., LocalRank]


@pytest.fixture
def make_rank(tmp_path: Path) -> Iterator[MakeRank]:
    """Make ranks out of rings that this process writes, each newer than the one before."""
    made: list[tuple[RingFile, LocalRank]] = []

    def make(
        number: int,
        *,
        gone: bool = False,
        world: tuple[int, int] = (4, 4),
        pid: int = 0,
        attempt: int = 0,
        **identity: str,
    ) -> LocalRank:
        path = tmp_path / "job1" / f"{number}-{len(made)}.ring"
        ring = RingFile(str(path), rank=number, local_rank=number, world=world, attempt=attempt)
        ring.set_word(Word.IDENTITY, ring.string(json.dumps({"job": "job1", **identity})))
        rank = LocalRank(Ring(str(path)))
        rank.gone, rank.gone_ns = gone, 5 if gone else 0
        rank.header = rank.header._replace(pid=pid or 10_000 + len(made))
        made.append((ring, rank))
        return rank

    yield make
    for ring, rank in made:
        rank.close()
        ring.close()


def make_detached(rank: LocalRank) -> None:
    """Say in its ring that it has detached."""
    with Path(rank.path).open("r+b") as file:
        file.seek(layout.HEADER_BYTES + 8 * Word.DETACHED)
        file.write(b"\1")


def job_of(*ranks: LocalRank) -> LocalJob:
    """Return a job with these ranks, added in this order."""
    job = LocalJob(JobKey.of(ranks[0]), 1, ranks[0])
    for rank in ranks:
        job.add(rank)
    return job


def test_of_two_rings_of_one_process_the_newer_counts(make_rank: MakeRank) -> None:
    detached, attached_again = make_rank(0, pid=77), make_rank(0, pid=77)
    assert job_of(detached, attached_again).ranks[0] is attached_again
    assert job_of(attached_again, detached).ranks[0] is attached_again


CLAIMS = [
    (False, False, 0),  # the newer is a child that inherited the environment
    (True, False, 1),
    (False, True, 0),
    (True, True, 1),
]


def test_a_parent_that_forked_the_process_that_trains_is_not_the_rank(make_rank: MakeRank) -> None:
    parent, child = make_rank(0), make_rank(0)
    make_detached(parent)
    assert job_of(parent, child).ranks[0] is child
    assert job_of(child, parent).ranks[0] is child


@pytest.mark.parametrize(("older_gone", "newer_gone", "counts"), CLAIMS)
def test_of_two_processes_with_one_number_one_is_the_rank(
    make_rank: MakeRank, older_gone: bool, newer_gone: bool, counts: int
) -> None:
    both = (make_rank(0, gone=older_gone), make_rank(0, gone=newer_gone))
    for order in (both, both[::-1]):
        job = job_of(*order)
        assert job.ranks[0] is both[counts]
        assert job.extras == [both[1 - counts]]


def test_attempts_launches_and_worlds_are_never_mixed(make_rank: MakeRank) -> None:
    keys = {
        JobKey.of(make_rank(0)),
        JobKey.of(make_rank(1)),
        JobKey.of(make_rank(0, instance="other")),
        JobKey.of(make_rank(0, world=(8, 8))),
        JobKey.of(make_rank(0, job="other")),
    }
    assert len(keys) == 4


def test_a_rank_without_identity_belongs_to_the_job_of_its_directory(make_rank: MakeRank) -> None:
    assert JobKey.of(make_rank(0, job="")).job == "job1"


def test_a_job_is_over_when_every_process_of_it_is_gone(make_rank: MakeRank) -> None:
    job = job_of(make_rank(0, gone=True), make_rank(1))
    assert job.over_since_ns == 0
    job.ranks[1].gone_ns = 6
    assert job.over_since_ns == 6
    job.add(make_rank(2))
    assert job.over_since_ns == 0


def dead_ring(make_rank: MakeRank, pulse_s: float, **identity: str) -> LocalRank:
    """Return a rank whose process nobody sees, as an agent finds it that has just begun."""
    rank = make_rank(0, **identity)
    with Path(rank.path).open("r+b") as file:
        file.seek(layout.HEADER_BYTES + 8 * Word.PULSE_NS)
        file.write(int(pulse_s * S).to_bytes(8, "little"))
    rank.watch.close()
    rank.watch = ProcessWatch(2**22 + 1, 1)  # above the highest pid
    rank.observe(int((pulse_s + 2.0) * S))
    return rank


def test_a_process_that_nobody_sees_may_be_in_another_pid_namespace_and_is_gone_if_it_was_in_ours(
    make_rank: MakeRank,
) -> None:
    assert not dead_ring(make_rank, 50.0, pid_namespace="1").gone
    assert not dead_ring(make_rank, 50.0).gone
    rank = dead_ring(make_rank, 50.0, pid_namespace=pid_namespace())
    assert rank.gone
    assert rank.gone_ns == 50 * S, "its last sign of life"
    assert rank.ending is not None
    assert (rank.ending.kind, rank.ending.age_s) == ("vanished", 2.0)


class Node:
    """The jobs of one node, as the agent keeps them."""

    def __init__(self) -> None:
        self.runs = Runs()
        self.jobs: dict[JobKey, LocalJob] = {}

    def adopt(self, rank: LocalRank, *, started_s: float) -> LocalJob:
        """Take a rank whose process was started at that moment."""
        rank.started_ns = lambda: int(started_s * S)  # type: ignore[method-assign]
        key = self.runs.key_of(rank, self.jobs.values())
        job = self.jobs.get(key)
        if job is None:
            job = self.jobs[key] = LocalJob(key, len(self.jobs) + 1, rank)
        job.add(rank)
        return job

    def let_go(self, job: LocalJob, at_s: float) -> None:
        """Forget a job."""
        del self.jobs[job.key]
        self.runs.let_go(job, int(at_s * S))


def test_a_launch_started_again_by_hand_is_another_run(make_rank: MakeRank) -> None:
    node = Node()
    first = node.adopt(make_rank(0), started_s=1)
    assert node.adopt(make_rank(1), started_s=1) is first
    first.ranks[0].gone_ns = 10 * S
    again = make_rank(0)
    assert node.adopt(again, started_s=11) is first, "rank 1 of the first run lives"
    again.gone_ns = first.ranks[1].gone_ns = 20 * S
    second = node.adopt(make_rank(1), started_s=21)
    assert second is not first
    assert (first.announce().run, second.announce().run) == (1, 2)
    assert node.adopt(make_rank(0), started_s=21.5) is second


def test_a_rank_that_is_slow_to_attach_is_of_the_run_in_which_another_one_has_crashed(make_rank: MakeRank) -> None:
    node = Node()
    first = node.adopt(make_rank(0), started_s=1)
    first.ranks[0].gone_ns = 3 * S
    assert node.adopt(make_rank(1), started_s=1.1) is first


def test_a_run_has_its_number_when_its_job_was_let_go_of_and_the_next_one_has_another(make_rank: MakeRank) -> None:
    node = Node()
    first = node.adopt(make_rank(0), started_s=1)
    node.let_go(first, 9)
    back = node.adopt(make_rank(0), started_s=1)
    assert back.key == first.key
    back.ranks[0].gone_ns = 10 * S
    node.let_go(back, 70)
    assert node.adopt(make_rank(0), started_s=12).key.run == 2


def test_ranks_that_say_another_number_of_ranks_or_attempt_have_the_run_of_theirs(make_rank: MakeRank) -> None:
    node = Node()
    first = node.adopt(make_rank(0), started_s=1)
    other = node.adopt(make_rank(1, world=(8, 8)), started_s=1)
    assert other is not first
    assert other.key.run == first.key.run
    assert node.adopt(make_rank(0, attempt=1), started_s=1).key.run == 2, "it is never the earlier one"


def test_a_node_remembers_the_runs_of_few_launches(make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "LAUNCHES_MAX", 2)
    node = Node()
    lives = node.adopt(make_rank(0), started_s=1)
    for name in "abcd":
        node.let_go(node.adopt(make_rank(0, job=name), started_s=1), 2)
    assert len(node.runs._newest) == 4, "two, the newest one, and the one that lives"
    assert len(node.runs._over_ns) == 3
    assert node.adopt(make_rank(1), started_s=9) is lives
    for number in range(9):
        node.let_go(node.adopt(make_rank(0, job="e"), started_s=10 * number + 9), 10 * number + 12)
    assert len(node.runs._over_ns) <= 4


SPANS = [((4, 4), False), ((4, 2), True), ((4, 0), False), ((1, 1), False)]


@pytest.mark.parametrize(("world", "spans"), SPANS)
def test_whether_a_job_runs_elsewhere_too_is_what_its_launcher_said(
    make_rank: MakeRank, world: tuple[int, int], spans: bool
) -> None:
    assert job_of(make_rank(0, world=world)).spans_nodes() is spans


def test_a_job_whose_ranks_are_all_here_spans_no_nodes_whatever_its_launchers_said(make_rank: MakeRank) -> None:
    assert not job_of(*(make_rank(number, world=(2, 1)) for number in range(2))).spans_nodes()


@pytest.mark.parametrize(
    ("world", "store", "says"),
    [
        ((4, 2), "node0:29500", True),
        ((4, 0), "node0:29500", True),  # each started by a script, as with srun: nobody says how many are here
        ((4, 0), "127.0.0.1:29500", False),
        ((4, 4), "node0:29500", False),
        ((1, 0), "node0:29500", False),
    ],
)
def test_an_announcement_of_a_job_that_may_span_nodes_says_where_this_node_is_reached(
    make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch, world: tuple[int, int], store: str, says: bool
) -> None:
    monkeypatch.setattr(jobs, "own_addresses", lambda: ("10.0.0.7",))
    job = job_of(make_rank(0, world=world, instance=store))
    assert job.announce().addresses == (("10.0.0.7",) if says else ())


def test_an_announcement_says_all_that_tells_jobs_apart(make_rank: MakeRank) -> None:
    said = {
        "instance": "i",
        "named": "0",
        "title": "train.py",
        "labels": "team=a",
        "user": "ada",
        "argv": "train.py --lr 1 --hf-token s3cret",
    }
    job = job_of(make_rank(3, instance="i", terminal="0"), make_rank(1, **said))
    assert job.announce() == wire.Announce(
        index=1, job="job1", instance="i", attempt=0, world_size=4, ranks=(1, 3), terminal=False, named=False,
        title="train.py", labels="team=a", command="train.py --lr 1 --hf-token …",
        user="ada",
    )  # fmt: skip
    index, ranks, groups = digests.split_digest(job.digest(time.monotonic_ns()))
    assert (index, len(ranks), len(groups)) == (1, 2 * digests.RANK_ROW.size, 0)


def test_an_end_is_news_once_and_again_when_more_is_known_of_it(make_rank: MakeRank) -> None:
    rank = make_rank(0)
    job = job_of(rank)
    assert job.newly_ended() == []
    rank.ending = Ending(kind="exited")
    assert job.newly_ended() == [rank]
    rank.reported = Ending(kind="exited", age_s=9.0)
    assert job.newly_ended() == []
    rank.ending = Ending(kind="signalled", signal=9)
    assert job.newly_ended() == [rank]
    rank.detached = True
    assert job.newly_ended() == []


def test_only_jobs_that_were_over_long_ago_as_a_whole_are_leftovers(make_rank: MakeRank) -> None:
    dead, dead_in_living_job = make_rank(0, gone=True), make_rank(1, gone=True, instance="living")
    living = make_rank(2, instance="living")
    pulse_ns = dead.header.created_ns
    ranks = [dead, dead_in_living_job, living]
    assert leftovers(ranks, {}, pulse_ns + int(LEFTOVER_S * S)) == []
    assert leftovers(ranks, {}, pulse_ns + int((LEFTOVER_S + 1) * S)) == [dead]
    assert leftovers([dead], {JobKey.of(dead): job_of(dead)}, pulse_ns + int((LEFTOVER_S + 1) * S)) == []


def test_a_ring_is_found_once_and_again_after_it_was_forgotten(make_rank: MakeRank, tmp_path: Path) -> None:
    rank = make_rank(0)
    path, header = rank.path, rank.header
    left = Path(worker_socket(str(tmp_path), header.pid, header.start_ticks))
    left.touch()
    rings = RingDirectory(open_private(str(tmp_path)))
    assert [ring.path for ring in rings.new_rings(0.0)] == [path]
    assert rings.new_rings(1.0) == []
    rings.forget(path)
    assert [ring.path for ring in rings.new_rings(2.0)] == [path]
    rings.remove(path, header)
    assert not Path(path).parent.exists()
    assert not left.exists(), "the socket of a rank that was killed stays behind"
    assert rings.new_rings(3.0) == []


def test_a_process_that_begins_anew_by_exec_is_found_anew_though_its_ring_has_the_same_name(tmp_path: Path) -> None:
    path = tmp_path / "job1" / "0-1.ring"
    first = RingFile(str(path), rank=0, local_rank=0, world=(1, 1), attempt=0)
    first.set_word(Word.IDENTITY, first.string('{"job": "job1"}'))
    rings = RingDirectory(open_private(str(tmp_path)))
    (before,) = rings.new_rings(0.0)
    path.unlink()
    second = RingFile(str(path), rank=0, local_rank=0, world=(1, 1), attempt=0)
    second.set_word(Word.IDENTITY, second.string('{"job": "job1"}'))
    (after,) = rings.new_rings(1.0)
    assert after.inode != before.inode
    assert rings.new_rings(2.0) == []
    for each in (before, after, first, second):
        each.close()


@pytest.fixture
def settled(tmp_path: Path) -> Iterator[RingDirectory]:
    """A directory in which all rings are known, and which was changed long ago by the clock of who looks."""
    top = open_private(str(tmp_path))
    yield RingDirectory(top, wall_ns=lambda: time.time_ns() + 3600 * S)
    top.close()


def test_a_directory_that_is_as_before_is_not_read_again(
    make_rank: MakeRank, settled: RingDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_rank(0).path
    assert [ring.path for ring in settled.new_rings(0.0)] == [path]
    monkeypatch.setattr(os, "scandir", pytest.fail)
    assert settled.new_rings(1.0) == []


def test_a_ring_that_joins_known_ones_is_found(make_rank: MakeRank, settled: RingDirectory) -> None:
    place = Path(make_rank(0).path).parent
    assert len(settled.new_rings(0.0)) == 1
    later = make_rank(1).path
    os.utime(place, ns=(0, 1))  # whatever the kernel's tick was
    assert [ring.path for ring in settled.new_rings(1.0)] == [later]


def test_a_directory_that_was_changed_just_now_is_read_again(
    make_rank: MakeRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rank(0)
    read: list[int] = []
    scandir = os.scandir
    with open_private(str(tmp_path)) as top:
        rings = RingDirectory(top, wall_ns=lambda: tmp_path.stat().st_ctime_ns + STEADY_NS - 1)
        assert len(rings.new_rings(0.0)) == 1
        monkeypatch.setattr(os, "scandir", lambda fd: read.append(fd) or scandir(fd))
        assert rings.new_rings(1.0) == []
    assert len(read) == 2, "one more ring may have come within the same tick of the kernel"


def test_a_ring_that_is_to_be_opened_anew_is_found_in_a_directory_that_is_as_before(
    make_rank: MakeRank, settled: RingDirectory
) -> None:
    path = make_rank(0).path
    assert len(settled.new_rings(0.0)) == 1
    settled.forget(path)
    assert [ring.path for ring in settled.new_rings(1.0)] == [path]


def test_a_file_that_becomes_a_ring_where_it_lies_is_found_though_its_directory_is_as_before(
    make_rank: MakeRank, settled: RingDirectory
) -> None:
    path = Path(make_rank(0).path)
    whole = path.read_bytes()
    path.write_bytes(b"")
    assert settled.new_rings(0.0) == []
    path.write_bytes(whole)
    assert [ring.path for ring in settled.new_rings(BAD_S)] == [str(path)]


def test_a_ring_whose_writer_is_not_ready_is_waited_for_a_while(tmp_path: Path) -> None:
    path = tmp_path / "job1" / "0-1.ring"
    writer = RingFile(str(path), rank=0, local_rank=0, world=(1, 1), attempt=0)
    created_s = Ring(str(path)).header.created_ns / 1e9
    rings = RingDirectory(open_private(str(tmp_path)))
    assert rings.new_rings(created_s + IDENTITY_S - 0.1) == []
    assert len(rings.new_rings(created_s + IDENTITY_S)) == 1
    writer.close()


def test_a_file_that_is_no_ring_yet_becomes_one_without_a_word(
    make_rank: MakeRank, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(make_rank(0).path)
    whole = path.read_bytes()
    path.write_bytes(b"")
    rings = RingDirectory(open_private(str(tmp_path)))
    assert rings.new_rings(0.0) == rings.new_rings(BAD_S - 0.1) == []
    path.write_bytes(whole)
    assert len(rings.new_rings(BAD_S)) == 1
    assert caplog.records == []


def test_a_directory_that_was_removed_has_no_rings(tmp_path: Path) -> None:
    top = open_private(str(tmp_path / "gone"), make=True)
    (tmp_path / "gone").rmdir()
    assert RingDirectory(top).new_rings(0.0) == []
    top.close()


def test_a_deadline_cancels_what_takes_too_long() -> None:
    async def scenario() -> bool:
        event = asyncio.Event()
        task = asyncio.ensure_future(event.wait())
        with pytest.raises(asyncio.TimeoutError):
            await within(0.01, task)
        return task.cancelled()

    assert asyncio.run(scenario())


def test_a_cancellation_that_comes_together_with_the_result_is_heard() -> None:
    async def scenario() -> bool:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(within(10.0, future))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        future.set_result(1)
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled()

    assert asyncio.run(scenario())


@pytest.mark.parametrize(
    ("wish", "acts"),
    [({}, False), ({"on_hang": "report", "notes": "0"}, False), ({"notes": "1"}, True), ({"on_hang": "raise"}, True)],
)
def test_a_server_tells_of_hangs_where_any_rank_wants_to_be_told(
    make_rank: MakeRank, wish: dict[str, str], acts: bool
) -> None:
    job = LocalJob(JobKey(job="j", instance="", attempt=0, world_size=4), 1, make_rank(0))
    job.add(make_rank(0))
    assert not job.announce().acts
    job.add(make_rank(1, **wish))
    assert job.announce().acts is acts
