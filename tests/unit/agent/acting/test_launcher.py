"""Which process is taken for the torchrun that started a rank."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from ncclwatch_agent.acting.launcher import Launcher, launcher_of

# Starts the programs that its arguments name one in another, and prints the number of the innermost.
NESTED = """
import os, subprocess, sys, time
rest = sys.argv[2:]
if not rest:
    print(os.getpid(), flush=True)
    time.sleep(600)
environ = dict(os.environ)
if rest[0].startswith("rank"):
    environ |= {"TORCHELASTIC_RESTART_COUNT": "0", "MASTER_PORT": "".join(filter(str.isdigit, rest[0])) or "29500"}
subprocess.run([sys.executable, "-c", sys.argv[0] if sys.argv[0] != "-c" else os.environ["NESTED"], *rest], env=environ)
"""


@contextmanager
def tree(*names: str) -> Iterator[tuple[int, int]]:
    """Start processes with these names among their arguments, each the child of the one before.

    Yields the numbers of the first and of the last. Those whose names begin with "rank" have a rank's environment,
    with a port that is in the name.
    """
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TORCHELASTIC")} | {"NESTED": NESTED}
    first = subprocess.Popen(
        [sys.executable, "-c", NESTED, *names], stdout=subprocess.PIPE, text=True, env=environ, start_new_session=True
    )
    try:
        assert first.stdout is not None
        yield first.pid, int(first.stdout.readline())
    finally:
        os.killpg(first.pid, 9)
        first.communicate()


@pytest.mark.parametrize(
    "names", [("/opt/bin/torchrun", "rank"), ("torch.distributed.run", "rank"), ("accelerate", "rank")]
)
def test_torchrun_is_found_above_its_rank(names: tuple[str, ...]) -> None:
    with tree(*names) as (torchrun, rank):
        found = launcher_of([rank])
        assert found is not None
        assert (found.pid, found.lives) == (torchrun, True)
    assert not found.lives
    found.close()


def test_torchrun_is_found_above_a_wrapper_of_the_rank() -> None:
    with tree("torchrun", "rank wrapper", "rank") as (torchrun, rank):
        found = launcher_of([rank])
        assert found is not None
        assert found.pid == torchrun
        found.close()


def test_of_a_job_that_a_rank_of_another_job_has_started_it_is_the_nearest_torchrun() -> None:
    """Such as an evaluation, which rank 0 runs by a torchrun of its own: the job around it goes on."""
    with tree("torchrun", "rank 29500", "torchrun", "rank 29511 wrapper", "rank 29511") as (outer, rank):
        found = launcher_of([rank])
        assert found is not None
        assert found.pid != outer
        assert psutil.Process(found.pid).ppid() == psutil.Process(outer).children()[0].pid
        found.close()


def test_what_a_rank_of_a_job_starts_without_torchrun_has_not_the_torchrun_of_that_job() -> None:
    with tree("torchrun", "rank 29500", "bash", "rank 29511") as (_, rank):
        assert launcher_of([rank]) is None


@pytest.mark.parametrize("names", [("jupyter", "rank"), ("bash", "rank"), ("jupyter", "rank wrapper", "rank")])
def test_what_is_no_torchrun_is_none(names: tuple[str, ...]) -> None:
    with tree(*names) as (_, rank):
        assert launcher_of([rank]) is None


def test_ranks_of_two_torchruns_have_none_in_common() -> None:
    with tree("torchrun", "rank") as (_, one), tree("torchrun", "rank") as (_, other):
        assert launcher_of([one, other]) is None


def test_nobody_has_no_launcher() -> None:
    assert launcher_of([]) is None
    assert launcher_of([1]) is None
    assert launcher_of([2**22 + 1]) is None


def test_a_launcher_that_has_ended_lives_no_more_whatever_the_number_of_its_descriptor() -> None:
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        launcher = Launcher(process.pid)
        assert launcher.lives
        process.kill()
        process.communicate()
        assert not launcher.lives
        launcher.close()
        assert not launcher.lives
    finally:
        for fd in held:
            os.close(fd)
