"""Measures how soon a big job's page is there, and whether it delays any digest. python -m tests.bench.pages

A simulated job of 16,384 ranks reports over the real wire to a real server, in a process of its own, and hangs.

- paint: from the click to the picture of all ranks in headless Chromium, its history included;
- update: what a new column costs in the browser;
- delay: how long the server's event loop takes to answer a WebSocket ping, as a digest would wait, while the job
  hangs: with nobody who looks, and while pages, the picture, and every question of the API are asked for without a
  pause by several readers, in turns. Measured by a process of its own.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from ncclwatch_server.simulation.job.faults import FaultKind
from ncclwatch_server.simulation.job.layout import Layout
from tests.bench.row import Row, at_most, show
from tests.integration.browser import chromium, window
from tests.integration.fake_agent import until
from tests.integration.server_process import ServerProcess
from tests.integration.wire_fleet import WireFleet, healthy, stuck

LAYOUT = "tp=8,pp=8,dp=256,ep=8,node=256"
CULPRIT = 1001
SMALL = Layout.parse("tp=2,pp=2,dp=4,ep=2")  # its incident is read, too
PING_S = 0.02
READERS = (1, 4)  # at a time
ROUNDS = 3
PAINT_S_MAX, UPDATE_MS_MAX, DELAY_MS_MAX = 1.0, 200.0, 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was found."""

    ranks: int
    history: int  # columns that were painted
    paint_s: tuple[float, ...]
    paint_cpu_s: tuple[
        float, ...
    ]  # of the browser's main thread until then: what other work of the machine leaves alone
    update_ms: tuple[float, ...]
    quiet_ms: tuple[float, float, float]  # answer to a ping: median, 99th percentile, worst
    asked_ms: dict[int, tuple[float, float, float]]  # the same while so many readers ask
    questions: int  # that were answered meanwhile


def measure(seconds: float, history_s: float) -> Measured:
    """Run it."""
    layout = Layout.parse(LAYOUT)
    with (
        tempfile.TemporaryDirectory() as directory,
        ServerProcess(Path(directory), program="tests.integration.pages_server") as server,
        WireFleet(server.url, healthy(layout), job="big", answers=False) as fleet,
        WireFleet(server.url, [stuck(SMALL, 5)], job="small") as small,
        chromium() as browser,
    ):
        until(lambda: fleet.rounds > history_s, timeout_s=history_s * 3 + 120)
        fleet.hang(stuck(layout, CULPRIT, FaultKind.STOPPED))
        small.hang(stuck(SMALL, 5))
        until(lambda: json.loads(_asked(server.url, "/api/v1/incidents")), timeout_s=120)
        paints, cpus, updates, columns = [], [], [], 0
        for _ in range(5):
            with window(browser, viewport={"width": 1280, "height": 900}) as seen:
                devtools = seen.page.context.new_cdp_session(seen.page)
                devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
                seen.go(f"{server.url}/jobs/big")
                seen.page.wait_for_function("() => document.getElementById('picture').dataset.columns", timeout=60_000)
                metrics = {each["name"]: each["value"] for each in devtools.send("Performance.getMetrics")["metrics"]}
                cpus.append(round(metrics["TaskDuration"], 3))
                paints.append(float(seen.page.evaluate("document.getElementById('picture').dataset.paintedMs")) / 1e3)
                columns = int(seen.page.evaluate("document.getElementById('picture').dataset.columns"))
                seen.page.wait_for_function("() => document.getElementById('picture').dataset.updateMs", timeout=60_000)
                updates.append(float(seen.page.evaluate("document.getElementById('picture').dataset.updateMs")))
        quiet, questions = [], 0
        asked: dict[int, list[tuple[float, float, float]]] = {readers: [] for readers in READERS}
        for _ in range(ROUNDS):  # interleaved: bursts of other work meet all
            quiet.append(_pinged(server.url, seconds / ROUNDS))
            for readers, found in asked.items():
                with _readers(server.url, readers) as answered:
                    found.append(_pinged(server.url, seconds / ROUNDS))
                questions += sum(answered.values())
        return Measured(
            ranks=layout.world_size, history=columns, paint_s=tuple(sorted(paints)),
            paint_cpu_s=tuple(sorted(cpus)), update_ms=tuple(sorted(updates)),
            quiet_ms=_medians(quiet), asked_ms={readers: _medians(each) for readers, each in asked.items()},
            questions=questions,
        )  # fmt: skip


def rows(found: Measured | None = None) -> list[Row]:
    """Return the lines of the table: medians, and of the delay what readers add to the 99th percentile."""
    found = found or measure(seconds=30.0, history_s=60.0)
    figures = (
        (f"job page of {found.ranks:,} ranks, first paint", "s", statistics.median(found.paint_s), PAINT_S_MAX),
        ("the same, one more second", "ms", statistics.median(found.update_ms), UPDATE_MS_MAX),
        *(
            (f"delay of a digest, 99th percentile, readers: {n}", "ms", asked[1] - found.quiet_ms[1], DELAY_MS_MAX)
            for n, asked in found.asked_ms.items()
        ),
    )
    lines = []
    for what, unit, value, bound in figures:
        budget, met = at_most(bound, value, unit)
        lines.append(Row(what=what, unit=unit, ours=value, budget=budget, met=met))
    return lines


@contextmanager
def _readers(url: str, readers: int) -> Iterator[dict[str, int]]:
    """Let readers ask for everything, one thing after the other, for as long as the context lasts."""
    (incident, *_) = json.loads(_asked(url, "/api/v1/incidents"))
    paths = (
        "/jobs", "/jobs/big", "/matrix/big", "/incidents", f"/incidents/{incident['id']}", "/hosts/node00003",
        "/settings", "/api/v1/jobs", "/api/v1/jobs/big", "/api/v1/jobs/big/ranks?limit=2000",
        "/api/v1/jobs/big/groups?limit=1000", "/api/v1/jobs/big/report", "/api/v1/incidents", "/metrics",
    )  # fmt: skip
    stop, answered = threading.Event(), dict.fromkeys(paths, 0)

    def read(first: int) -> None:
        number = first
        while not stop.is_set():
            path = paths[number % len(paths)]
            _asked(url, path)
            answered[path] += 1
            number += 1

    threads = [threading.Thread(target=read, args=(number * 3,)) for number in range(readers)]
    for thread in threads:
        thread.start()
    try:
        yield answered
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _asked(url: str, path: str) -> bytes:
    request = urllib.request.Request(url + path, headers={"Accept": "text/html", "Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def _pinged(url: str, seconds: float) -> tuple[float, float, float]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.pages", "--ping", url, "--seconds", str(seconds)],
        capture_output=True, text=True, check=True, timeout=seconds + 60,
    )  # fmt: skip
    median, late, worst = json.loads(done.stdout)
    return median, late, worst


def _medians(rounds: list[tuple[float, float, float]]) -> tuple[float, float, float]:
    """Return the medians of what was measured several times, figure by figure."""
    median, late, worst = map(statistics.median, zip(*rounds, strict=True))
    return median, late, worst


async def _ping(url: str, seconds: float) -> list[float]:
    """Return the times in ms that answers to pings took, on the line of an agent that says nothing else."""
    from websockets.asyncio.client import connect

    from ncclwatch.contract import config, wire

    async with connect(url.replace("http", "ws", 1) + wire.AGENT_PATH, proxy=None) as line:
        said = wire.Hello(protocol=config.PROTOCOL, agent="ping", host="bench", version="0")
        await line.send(wire.encode(said).decode())
        await line.recv()
        took, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.monotonic()
            await (await line.ping())
            took.append((time.monotonic() - began) * 1e3)
            await asyncio.sleep(PING_S)
        return took


def main() -> int:
    """Measure, print, and say whether the figures of the pages hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement of the delay")
    parser.add_argument(
        "--history", type=float, default=60.0, help="seconds that the job reports before it is looked at"
    )
    parser.add_argument("--ping", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ping:
        took = sorted(asyncio.run(_ping(arguments.ping, arguments.seconds)))
        print(json.dumps([round(x, 2) for x in (statistics.median(took), took[int(len(took) * 0.99)], took[-1])]))
        return 0
    found = measure(arguments.seconds, arguments.history)
    print(json.dumps(asdict(found), indent=1))
    table = rows(found)
    show(table)
    return 0 if all(row.met for row in table) else 1


if __name__ == "__main__":
    sys.exit(main())
