"""Measures how soon a verdict stands while 16,384 ranks report: `ncclwatch simulate` against a real server.

2,048 nodes report once a second and answer what they are asked; half a minute in, one rank skips a collective. The
nodes are simulated in one process, which costs more than the server itself: `late_s` says whether it kept up.
"""

import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

from tests.bench.ingest.measure import LAYOUT, serving
from tests.bench.ingest.sender import Way
from tests.bench.processes import cpu_s, resident_mb
from tests.bench.row import Row, at_most

HEALTHY_S, LASTS_S = 40.0, 80.0
SAMPLED_S = 15.0
STARTS_S_MAX = 180.0
ONSET_S_MAX = 12.0  # within which the 99th of 100 verdicts is wanted
SIMULATE = "from ncclwatch_server.simulation.command import simulate; simulate()"


def rows() -> list[Row]:
    """Run the job once."""
    with tempfile.TemporaryDirectory() as name, serving(Way.SOCKET, Path(name)) as (server, port):
        command = [
            *(sys.executable, "-c", SIMULATE, "--layout", LAYOUT, "--fault", "skip", "--json"),
            *("--after", str(HEALTHY_S), "--for", str(LASTS_S), "--server", f"http://127.0.0.1:{port}"),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as nodes:
            _all_reporting(port, nodes)
            before, began = cpu_s(server.pid), time.monotonic()
            time.sleep(SAMPLED_S)
            percent = (cpu_s(server.pid) - before) / (time.monotonic() - began) * 100
            memory = resident_mb(server.pid)
            said = json.loads(nodes.communicate()[0])
    after_s = said["onset_to_verdict_s"] if said["right"] else math.nan
    if not said["right"]:
        print(f"the verdict is wrong: {said['said'] or 'nothing was said'}", file=sys.stderr)
    budget, met = at_most(ONSET_S_MAX, after_s, "s")
    what = f"{said['ranks']:,} simulated ranks"
    return [
        Row(what=f"{what}, onset to verdict (digests up to {said['late_s']:.1f} s late)", unit="s",
            ours=after_s, budget=budget, met=met),
        Row(what=f"{what}, the server", unit="% of a core", ours=percent),
        Row(what=f"{what}, the server", unit="MB resident", ours=memory),
    ]  # fmt: skip


def _all_reporting(port: int, nodes: subprocess.Popen[str]) -> None:
    """Wait until every rank was heard."""
    until = time.monotonic() + STARTS_S_MAX
    while time.monotonic() < until and nodes.poll() is None:
        with urlopen(f"http://127.0.0.1:{port}/api/v1/jobs", timeout=30) as answer:
            jobs = json.load(answer)
        if jobs and jobs[0]["ranks_seen"] == jobs[0]["world_size"]:
            return
        time.sleep(0.5)
    raise SystemExit("the simulated nodes do not report")
