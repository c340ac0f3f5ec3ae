"""Measures how soon another server judges a big job whose leader is killed.

`python -m tests.bench.takeover [KILLS [LAYOUT]]`

Two servers on one PostgreSQL, and the nodes of a simulated job that hangs. Each node has the uplink of the agent, so it
finds the leader as an agent does; all of them live in one process. Again and again the leader gets SIGKILL. Measured
from there until the other one leads, and until it has heard all ranks again; the hang has to stay the one incident that
it was. The killed server is then started again, and follows.
"""

import asyncio
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from ncclwatch.contract import config, wire
from ncclwatch.contract.version import VERSION
from ncclwatch_agent.uplink.connection import Callbacks, News, Uplink
from ncclwatch_server.simulation.job.faults import FaultKind
from ncclwatch_server.simulation.job.layout import Layout
from ncclwatch_server.simulation.job.timeline import Manner, Timeline, plan
from tests.bench.ingest.measure import LAYOUT
from tests.bench.row import Row, at_most, show
from tests.ports import free_port
from tests.postgres import Postgres

KILLS = 50
WORLD_S_MAX = 180.0
LOOK_S = 0.05
LEADS_S_MAX = 10.0  # within which another server is to lead
HEALTHY_S = 5.0
JUDGES_S = 3.0  # after which a server that has heard all ranks has judged them
JOB = "big"


class Server:
    """One of two servers, which may be killed and started again."""

    def __init__(self, directory: Path, store: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = (
            *(sys.executable, "-m", "ncclwatch_server", "--port", str(self.port)),
            *("--advertise", self.url, "--store", store),
        )
        self._log = directory / f"{self.port}.log"
        self.start()

    def start(self) -> None:
        """Start it. It may be the one that leads."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        """End it as the kernel does when memory is short."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def ask(self, path: str) -> object:
        """Return an answer, None while there is none."""
        try:
            with urlopen(f"{self.url}{path}", timeout=5) as answer:
                return json.load(answer)
        except (URLError, HTTPError, OSError, ValueError):
            return None

    def leads(self) -> bool:
        """Whether it may judge."""
        role = self.ask("/leaderz")
        return isinstance(role, dict) and bool(role.get("confirmed"))

    def follows(self, other: "Server") -> bool:
        """Whether it knows that another one leads."""
        role = self.ask("/leaderz")
        return isinstance(role, dict) and not role["leads"] and role["leader"] == other.url

    def ranks_heard(self) -> int:
        """Return how many ranks of the job have reported to it."""
        jobs = self.ask("/api/v1/jobs")
        return max((job["ranks_seen"] for job in jobs), default=0) if isinstance(jobs, list) else 0

    def hangs(self) -> list[tuple[str, str]]:
        """Return id and state of each critical incident that it knows."""
        found = self.ask("/api/v1/incidents")
        listed = found if isinstance(found, list) else []
        return sorted((each["id"], each["state"]) for each in listed if each["severity"] == "critical")


class Nodes:
    """All nodes of the job, each with an uplink of its own, in one thread."""

    def __init__(self, timeline: Timeline, servers: str) -> None:
        self.timeline = timeline
        self.count = -(-timeline.layout.world_size // timeline.layout.node)
        self._servers = servers
        self._began = time.monotonic()
        self._enough = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> "Nodes":
        self.timeline.prepare()
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join(60)

    async def _run(self) -> None:
        tasks = [asyncio.create_task(self._live(node)) for node in range(self.count)]
        while not self._enough.is_set():
            await asyncio.sleep(0.2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _live(self, node: int) -> None:
        hello = wire.Hello(protocol=config.PROTOCOL, agent=f"{JOB}-{node}", host=f"node{node:05d}", version=VERSION)
        uplink = Uplink(self._servers, hello, "", config.NAMED)
        callbacks = Callbacks(
            picture=lambda: self._picture(node),
            command=lambda command: self._answer(uplink, command),
            failed=lambda failure: None,
        )
        talking = asyncio.create_task(uplink.run(callbacks))
        try:
            await asyncio.sleep(random.Random(node).random())
            while True:
                fleet, since_s = self.timeline.at(time.monotonic() - self._began)
                uplink.send_digest(0, fleet.digest(node, since_s))
                await asyncio.sleep(1.0)
        finally:
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)

    def _picture(self, node: int) -> Iterator[News]:
        fleet, since_s = self.timeline.at(time.monotonic() - self._began)
        yield fleet.announce(node, JOB)
        yield fleet.digest(node, since_s)

    def _answer(self, uplink: Uplink, command: wire.Command) -> None:
        fleet, since_s = self.timeline.at(time.monotonic() - self._began)
        if command.kind is wire.CommandKind.INSPECT:
            views = fleet.views(command.ranks, since_s)
            uplink.send(wire.Views(index=0, ranks=views, reply_to=command.id))
        elif command.kind is wire.CommandKind.STACKS:
            uplink.send(wire.Stacks(index=0, dumps=(), reply_to=command.id))
        elif command.kind is wire.CommandKind.WITNESS:
            uplink.send(wire.Testimonies(index=0, ranks=(), reply_to=command.id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """One of them, in seconds since the kill."""

    leads_s: float
    heard_s: float  # every rank has reported to the new leader


def within(what: str, found: Callable[[], bool], most_s: float = WORLD_S_MAX) -> float:
    """Wait for something. Returns how long it took."""
    began = time.monotonic()
    while not found():
        if time.monotonic() - began > most_s:
            raise SystemExit(f"{what}: not within {most_s:.0f} s")
        time.sleep(LOOK_S)
    return time.monotonic() - began


def taken_over(leader: Server, other: Server, world: int) -> Takeover:
    """Kill the leader, wait for the other one, and start the killed one again. Raises `SystemExit` for another hang."""
    hangs, began = leader.hangs(), time.monotonic()
    leader.kill()
    leads_s = within("another server leads", other.leads)
    within("all nodes report again", lambda: other.ranks_heard() == world)
    found = Takeover(leads_s=leads_s, heard_s=time.monotonic() - began)
    time.sleep(JUDGES_S)
    if other.hangs() != hangs:
        raise SystemExit(f"{hangs} has become {other.hangs()}")
    leader.start()
    within("the killed server follows", lambda: leader.follows(other))
    return found


def takeovers(kills: int, layout: str) -> list[Takeover]:
    """Kill the leader so often, and say what became of each time."""
    timeline = plan(Layout.parse(layout), Manner(), FaultKind.SKIP, healthy_s=HEALTHY_S, seed=1)
    world, found = timeline.layout.world_size, []
    with tempfile.TemporaryDirectory() as name, Postgres() as postgres:
        store = postgres.new_database()
        one, two = servers = [Server(Path(name), store) for _ in range(2)]
        try:
            within("one server leads and the other one follows", lambda: one.follows(two) or two.follows(one))
            with Nodes(timeline, f"{one.url},{two.url}"):
                first, second = (one, two) if two.follows(one) else (two, one)
                within("all nodes report", lambda: first.ranks_heard() == world)
                within("the hang is reported", lambda: len(first.hangs()) > 0)
                for number in range(kills):
                    found.append(taken_over(first, second, world))
                    first, second = second, first
                    print(f"{number + 1}: {found[-1]}", flush=True)
        finally:
            for each in servers:
                each.kill()
    return found


def rows(kills: int = KILLS, layout: str = LAYOUT) -> list[Row]:
    """Return what was measured."""
    found = takeovers(kills, layout)
    what = f"{len(found)} kills of the leader, {Layout.parse(layout).world_size:,} simulated ranks"
    leads = [each.leads_s for each in found]
    heard = [each.heard_s for each in found]
    budget, met = at_most(LEADS_S_MAX, max(leads), "s")
    return [
        Row(what=f"{what}: until another server leads, median", unit="s", ours=statistics.median(leads)),
        Row(what=f"{what}: until another server leads, longest", unit="s", ours=max(leads), budget=budget, met=met),
        Row(what=f"{what}: until it has heard all ranks, median", unit="s", ours=statistics.median(heard)),
        Row(what=f"{what}: until it has heard all ranks, longest", unit="s", ours=max(heard)),
    ]


if __name__ == "__main__":
    show(rows(int(sys.argv[1]) if len(sys.argv) > 1 else KILLS, *sys.argv[2:3]))
