"""Starts the ranks of a small job as plain processes, each in its own runtime directory, with no agent."""

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_port
from tests.zoo.forking.torch_once import forked

PROGRAMS = Path(__file__).parent / "programs"
RANKS_S_MAX = 200.0  # below the timeout of most tests: a job that hangs says where before it is ended
BESIDE_PYTHON = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What is left of one rank."""

    code: int
    out: str
    err: str


def environment(runtime: Path, **more: str) -> dict[str, str]:
    """Return an environment in which ranks find no server and start no agent."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NCCLWATCH", "TORCHELASTIC", "RANK"))}
    return kept | {"NCCLWATCH_RUNTIME_DIR": str(runtime), "OMP_NUM_THREADS": "1", "NCCLWATCH_AGENT": "0"} | more


def _outputs(rank: subprocess.Popen[str], ranks: list[subprocess.Popen[str]], runtime: Path) -> tuple[str, str]:
    """Return what a rank said until its end. If it does not end, kill all ranks and say where each was."""
    try:
        return rank.communicate(timeout=RANKS_S_MAX)
    except subprocess.TimeoutExpired as error:
        where = "\n".join(_stacks(pid) for pid in _of_this_job(runtime))
        codes = ", ".join(f"rank {number}: {each.poll()}" for number, each in enumerate(ranks))
        for each in ranks:
            each.kill()
        said = b"".join(each or b"" for each in (error.stdout, error.stderr)).decode(errors="replace")
        late = f"rank {ranks.index(rank)} did not end within {RANKS_S_MAX:.0f} s; exit codes: {codes}"
        raise AssertionError(f"{late}; it said:\n{said}\n{where}") from None


def _endings(ranks: list[subprocess.Popen[str]], reading: "list[Future[tuple[str, str]]]") -> str:
    """Return how the ranks ended that did, and what they said: the others may wait for one of them."""
    ended = [(rank, each.result()) for rank, each in zip(ranks, reading, strict=True) if each.exception() is None]
    return "\n".join(f"process {rank.pid} ended with code {rank.returncode}:\n{out}{err}" for rank, (out, err) in ended)


def _of_this_job(runtime: Path) -> list[int]:
    """Return the processes of a job, by its runtime directory: a forked rank is no child of the one that asked for it.

    Processes that a rank left behind are among them: they may hold the pipe that this test reads to its end.
    """
    wanted = os.fsencode(f"NCCLWATCH_RUNTIME_DIR={runtime}")
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if wanted in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return sorted(found)


def _stacks(pid: int) -> str:
    """Return the command line and the stacks of a process."""
    words = ""
    with suppress(OSError):  # it may have ended by now
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    told = subprocess.run(["py-spy", "dump", "--pid", str(pid)], capture_output=True, text=True, env=BESIDE_PYTHON)
    return f"process {pid} ({words[:200]}):\n{told.stdout}{told.stderr}"


def started(program: Path, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a program as its user would: torch is not imported before it begins."""
    return (sys.executable, str(program), *arguments)


def run_ranks(
    program: str,
    count: int,
    runtime: Path,
    *arguments: str,
    begin: Callable[..., tuple[str, ...]] = forked,
    **more: str,
) -> list[Finished]:
    """Run `programs/<program>` as `count` ranks and return what each said, in rank order.

    They are forked after one import of torch. Where it is in question how a rank begins or ends, they are `started`.
    """
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            begin(PROGRAMS / program, *arguments),
            env=environment(
                runtime,
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(count),
                LOCAL_WORLD_SIZE=str(count),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                NCCLWATCH_JOB="test",
                **more,
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        # All are read at once: a rank whose pipe is full waits in print() for its reader, and the others for it.
        with ThreadPoolExecutor(max_workers=count) as readers:
            reading = [readers.submit(_outputs, rank, ranks, runtime) for rank in ranks]
        late = next((each.exception() for each in reading if each.exception() is not None), None)
        if late is not None:
            raise AssertionError(f"{late}\n{_endings(ranks, reading)}") from None
        outputs = [each.result() for each in reading]
    finally:
        for rank in ranks:
            rank.kill()
    return [
        Finished(code=process.returncode, out=out, err=err) for process, (out, err) in zip(ranks, outputs, strict=True)
    ]
