"""Simulated jobs that report to a server while a test does something else: their nodes live in one thread."""

import asyncio
import threading
from dataclasses import dataclass
from types import TracebackType

from ncclwatch_server.simulation.job.timeline import Timeline
from ncclwatch_server.simulation.nodes import Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    """A job and its name."""

    name: str
    timeline: Timeline
    elsewhere: frozenset[int] = frozenset()  # nodes that somebody else reports


class SimulatedNodes:
    """All nodes of some jobs, connected for as long as the context lasts."""

    def __init__(self, url: str, jobs: tuple[SimulatedJob, ...]) -> None:
        self._nodes = [Nodes(timeline=job.timeline, job=job.name, url=url, elsewhere=job.elsewhere) for job in jobs]
        self._loop = asyncio.new_event_loop()
        self._enough = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "SimulatedNodes":
        for nodes in self._nodes:
            nodes.timeline.prepare()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._enough.set)
        self._thread.join(90)
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._report())

    async def _report(self) -> None:
        for nodes in self._nodes:
            await nodes.connect()
        await asyncio.gather(*(nodes.run(self._enough) for nodes in self._nodes))
        await asyncio.sleep(0.1)  # transports close in the next rounds of the loop
