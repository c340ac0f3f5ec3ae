"""Measures what attach() costs a rank: CPU time, and memory that it shares with nobody."""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.row import Row, at_most
from tests.integration.launch import environment
from tests.ports import free_port

TRIES = 7
TIME_S, MEMORY_MB = 0.1, 4.0
_PROGRAM = """
import json, time, torch.distributed as dist
import ncclwatch

def own_kb():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))

dist.init_process_group("gloo")
memory, began = own_kb(), time.process_time()
ncclwatch.attach()
print(json.dumps([time.process_time() - began, (own_kb() - memory) / 1000]))
"""


def rows() -> list[Row]:
    """Return the median of some processes."""
    found = [_attached() for _ in range(TRIES)]
    seconds, megabytes = (statistics.median(column) for column in zip(*found, strict=True))
    time_budget, in_time = at_most(TIME_S, seconds, "s")
    memory_budget, in_memory = at_most(MEMORY_MB, megabytes, "MB")
    return [
        Row(what="attach(): CPU time", unit="s", ours=seconds, budget=time_budget, met=in_time),
        Row(what="attach(): memory", unit="MB", ours=megabytes, budget=memory_budget, met=in_memory),
    ]


def _attached() -> tuple[float, float]:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NCCLWATCH_JOB": "bench"}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as runtime:  # a ring lies in memory
        settings = environment(Path(runtime), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), **alone)
        ran = subprocess.run([sys.executable, "-c", _PROGRAM], env=settings, check=True, capture_output=True, text=True)
    seconds, megabytes = json.loads(ran.stdout)
    return seconds, megabytes
