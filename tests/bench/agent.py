"""Measures what the node agent costs: eight ranks that write rings, a real agent, a real server, 1 Hz.

CPU time of the agent's process per second, and its resident memory, while the job trains and while it hangs: then the
server asks for all views each second. Beside it, over the same seconds, the least that a Python process can do: it
wakes once a second, reads the live words of each ring once and what the kernel says of each rank. Polling: the live
words of eight rings read once, against reading all small tables of the same rings.
"""

import subprocess
import sys
import tempfile
import time
import timeit
from pathlib import Path

from ncclwatch.contract.ring.reader import Ring
from tests.bench.processes import cpu_s, resident_mb
from tests.bench.row import Row, at_most, show
from tests.integration.agent_node import Node
from tests.integration.server_process import ServerProcess

RANKS = 8
SECONDS = 60.0
PERCENT_MAX, MEMORY_MB_MAX = 0.1, 60.0
_LEAST = """
import os, sys, time
ranks = [path.rpartition("/")[2].split(".")[0].split("-")[1] for path in sys.argv[1:]]
files = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]
told = [os.open(f"/proc/{pid}/{name}", os.O_RDONLY) for pid in ranks for name in ("stat", "io", "schedstat")]
while True:
    for fd in files:
        os.pread(fd, 272, 512)
    for fd in told:
        os.pread(fd, 4096, 0)
    time.sleep(1.0)
"""


def poll_us(paths: list[Path]) -> tuple[float, float]:
    """Return the microseconds of reading the live words of all rings, and of reading all their small tables."""
    rings = [Ring(str(path)) for path in paths]

    def live_words() -> None:
        for ring in rings:
            ring.words()

    def tables() -> None:
        for ring in rings:
            ring.words(), ring.threads(), ring.groups(), ring.peers(), ring.loaders()

    found = [min(timeit.repeat(way, number=2000, repeat=7)) / 2000 * 1e6 for way in (live_words, tables)]
    for ring in rings:
        ring.close()
    return found[0], found[1]


def spent(pids: tuple[int, ...]) -> list[float]:
    """Return the share of a core that each of some processes takes, in percent."""
    before, began = [cpu_s(pid) for pid in pids], time.monotonic()
    time.sleep(SECONDS)
    passed_s = time.monotonic() - began
    return [(cpu_s(pid) - used) / passed_s * 100 for pid, used in zip(pids, before, strict=True)]


def rows() -> list[Row]:
    """Return the rows of the agent."""
    return [*_of_a_job(trains=True), *_of_a_job(trains=False)]


def _of_a_job(*, trains: bool) -> list[Row]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as runtime, ServerProcess(Path(runtime)) as server:
        node = Node(Path(runtime) / "rings")
        node.world_size = RANKS
        try:
            for rank in range(RANKS):
                node.rank(rank, server.url, trains="1" if trains else "")
            pid = node.spawn_agent()
            while server.get("/api/v1/jobs").json() == []:
                time.sleep(0.1)
            time.sleep(8.0)  # its start is not its steady state, and a hang is looked at after some seconds
            paths = sorted((Path(runtime) / "rings").glob("*/*.ring"))
            if not trains:
                (used,) = spent((pid,))
                return [Row(what="agent, 8 ranks that hang", unit="% of a core", ours=used)]
            with subprocess.Popen([sys.executable, "-c", _LEAST, *map(str, paths)]) as least:
                try:
                    used, floor = spent((pid, least.pid))
                finally:
                    least.kill()
            return _rows_of_training(used, floor, resident_mb(pid), paths)
        finally:
            node.close()


def _rows_of_training(used: float, floor: float, memory_mb: float, paths: list[Path]) -> list[Row]:
    heads, tables = poll_us(paths)
    percent, percent_met = at_most(PERCENT_MAX, used, "%")
    memory, memory_met = at_most(MEMORY_MB_MAX, memory_mb, "MB")
    return [
        Row(what="agent, 8 ranks at 1 Hz", unit="% of a core", ours=used, peer="the least", theirs=floor,
            budget=percent, met=percent_met),
        Row(what="agent, resident", unit="MB", ours=memory_mb, budget=memory, met=memory_met),
        Row(what="agent, a look at 8 rings", unit="µs", ours=heads, peer="reading their tables", theirs=tables),
    ]  # fmt: skip


if __name__ == "__main__":
    show(rows())
