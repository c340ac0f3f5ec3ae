"""Starts the ranks of a small job as plain processes, each in its own runtime directory, with no agent."""

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What is left of one rank."""

    code: int
    out: str
    err: str


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(runtime: Path, **more: str) -> dict[str, str]:
    """Return an environment in which ranks find no server and start no agent."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NCCLWATCH", "TORCHELASTIC", "RANK"))}
    return kept | {"NCCLWATCH_RUNTIME_DIR": str(runtime), "OMP_NUM_THREADS": "1", "NCCLWATCH_AGENT": "0"} | more


def run_ranks(program: str, count: int, runtime: Path, *arguments: str, **more: str) -> list[Finished]:
    """Run `programs/<program>` as `count` ranks and return what each said, in rank order."""
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAMS / program), *arguments],
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
        outputs = [rank.communicate(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [
        Finished(code=process.returncode, out=out, err=err) for process, (out, err) in zip(ranks, outputs, strict=True)
    ]
