"""A rank answers for torch's Flight Recorder while it holds the GIL, and nothing of that is in the way of its end."""

import asyncio
import contextlib
import os
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclwatch.contract.errors import RingError
from ncclwatch.contract.model.testimony import Testimony
from ncclwatch.contract.network import sockets
from ncclwatch.contract.ring.reader import Ring
from ncclwatch_agent.ranks.rank_rows import LocalRank
from ncclwatch_agent.witnesses.asking import WitnessDesk
from tests.integration.launch import PROGRAMS, environment, run_ranks, started
from tests.integration.real_jobs import until
from tests.ports import free_port
from tests.zoo.forking.torch_once import forked

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]


@contextlib.contextmanager
def job(runtime: Path, how: str, count: int, **more: str) -> Iterator[Path]:
    """Start the ranks of a job that hangs, with no agent. Gives the directory of its rings."""
    port = str(free_port())
    ranks = []
    for rank in range(count):
        place = {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)}
        environ = environment(runtime, **place, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, NCCLWATCH_JOB="test", **more)
        ranks.append(subprocess.Popen(forked(PROGRAMS / "witness.py", how), env=environ))
    try:
        yield runtime / f"ncclwatch-{os.getuid()}" / "test"
    finally:
        for rank in ranks:
            rank.kill()
        for rank in ranks:
            rank.wait()


def hear(rings: Path, count: int) -> dict[int, Testimony]:
    """Ask all ranks once; {} while some has no ring yet."""
    paths = sorted(rings.glob("*.ring"))
    if len(paths) < count:
        return {}
    ranks: list[LocalRank] = []
    try:
        ranks.extend(LocalRank(Ring(str(path))) for path in paths)
        said, communicators = asyncio.run(WitnessDesk().ask(ranks))
    except RingError:  # it is being made
        return {}
    finally:
        for rank in ranks:
            rank.close()
    assert communicators == ()  # no rank uses NCCL, so nobody asked RAS
    return {each.rank: each for each in said}


def enqueued(said: dict[int, Testimony]) -> dict[int, list[tuple[int, int]]]:
    """Return (what ncclwatch has seen, what the recorder has) of each rank's groups."""
    return {rank: [(each.seen[group.name], group.enqueued) for group in each.groups] for rank, each in said.items()}


def modes_of_sockets(directory: Path) -> list[int]:
    return [stat.S_IMODE(path.stat().st_mode) for path in directory.glob(f"*{sockets.SUFFIX}")]


def test_a_rank_that_holds_the_gil_forever_is_heard(tmp_path: Path):
    with job(tmp_path, "agree", 2) as rings:
        expected = {0: [(3, 3)], 1: [(2, 2)]}
        until(lambda: enqueued(hear(rings, 2)) == expected)
        (at_work,) = hear(rings, 2)[0].groups
        assert (at_work.pending.seq, at_work.pending.name, at_work.completed) == (3, "all_reduce", 2)
        (holder,) = hear(rings, 2)[1].groups
        assert (holder.pending, holder.completed, holder.newest[-1].numel) == (None, 2, 4)
        # The pulse needs the GIL: without one rank 1 has really been asked behind its back.
        ring = Ring(str(next(rings.glob("1-*.ring"))))
        until(lambda: (time.monotonic_ns() - ring.words()[0]) / 1e9 > 2)
        assert enqueued(hear(rings, 2)) == expected


def test_a_call_on_the_backend_object_is_seen_by_the_recorder_alone(tmp_path: Path):
    with job(tmp_path, "past", 3) as rings:
        until(lambda: enqueued(hear(rings, 3)) == {0: [(3, 3)], 1: [(2, 2)], 2: [(2, 3)]})


def test_the_socket_is_ours_alone_and_nobody_is_told_of_it(tmp_path: Path):
    with job(tmp_path, "agree", 2) as rings:
        until(lambda: enqueued(hear(rings, 2)).get(0) == [(3, 3)])
        # A rank may answer before its pulse has come as far as the mode: torch itself makes the socket.
        until(lambda: modes_of_sockets(rings.parent) == [0o600] * 2)


def test_a_rank_that_must_not_answer_is_no_witness(tmp_path: Path):
    with job(tmp_path, "agree", 2, NCCLWATCH_WITNESS="0") as rings:
        said = until(lambda: hear(rings, 2))
        assert [each.failure for each in said.values()] == ["it has no worker server"] * 2
        assert list(rings.parent.glob(f"*{sockets.SUFFIX}")) == []


@pytest.mark.parametrize(
    ("end", "native"), [("at_once", "0"), ("well", "0"), ("well", "1"), ("open", "0"), ("child", "0"), ("hard", "0")]
)
def test_the_server_is_not_in_the_way_of_any_end(end: str, native: str, tmp_path: Path):
    """Its threads live on while the interpreter ends; loaders and a child are forked while it runs."""
    for rank in run_ranks("witness.py", 2, tmp_path, "brief", end, begin=started, NCCLWATCH_NATIVE=native):
        assert rank.code == 0, rank.err
        assert "WorkerServer" not in rank.err
    left = list(tmp_path.rglob(f"*{sockets.SUFFIX}"))
    assert len(left) == (2 if end == "hard" else 0)
