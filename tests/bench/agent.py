"""Measures what the node agent costs: eight ranks that write rings, a real agent, a real server, 1 Hz.

CPU seconds of the agent's process per second, from /proc, and its resident memory. Polling: the live words of
eight rings read once, against reading all small tables of the same rings.
"""

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
SECONDS = 20.0
PERCENT_MAX, MEMORY_MB_MAX = 0.1, 60.0


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


def rows() -> list[Row]:
    """Return the rows of the agent."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as runtime, ServerProcess(Path(runtime)) as server:
        node = Node(Path(runtime) / "rings")
        node.world_size = RANKS
        try:
            for rank in range(RANKS):
                node.rank(rank, server.url)
            pid = node.spawn_agent()
            while server.get("/api/v1/jobs").json() == []:
                time.sleep(0.1)
            time.sleep(3.0)  # its start is not its steady state
            before, began = cpu_s(pid), time.monotonic()
            time.sleep(SECONDS)
            used = (cpu_s(pid) - before) / (time.monotonic() - began)
            heads, tables = poll_us(list((Path(runtime) / "rings").glob("*/*.ring")))
            percent, percent_met = at_most(PERCENT_MAX, used * 100, "%")
            memory_mb = resident_mb(pid)
            memory, memory_met = at_most(MEMORY_MB_MAX, memory_mb, "MB")
            return [
                Row(
                    what="agent, 8 ranks at 1 Hz", unit="% of a core", ours=used * 100, budget=percent, met=percent_met
                ),
                Row(what="agent, resident", unit="MB", ours=memory_mb, budget=memory, met=memory_met),
                Row(what="agent, a look at 8 rings", unit="µs", ours=heads, peer="reading their tables", theirs=tables),
            ]
        finally:
            node.close()


if __name__ == "__main__":
    show(rows())
