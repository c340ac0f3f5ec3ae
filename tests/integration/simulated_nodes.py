"""The nodes of simulated jobs, as a server meets them: one WebSocket each, a digest a second, and answers."""

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass, replace
from types import TracebackType

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from ncclwatch.contract import config, wire
from ncclwatch.contract.model import StackDump, StackFrame
from ncclwatch.contract.testimony import Testimony
from ncclwatch_server.simulation.fleet import Fleet
from ncclwatch_server.simulation.run import Standstill

DIGEST_S = 1.0
_FRAMES = (StackFrame(function="train_step", file="/job/train.py", line=131),)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    """A job that stands, or one on its way: then `still` is where it is seen first."""

    name: str
    still: Standstill
    steps: int = 0  # of training in its course, if it moves: it makes one each second


class SimulatedNodes:
    """All nodes of some jobs, in one thread."""

    def __init__(self, url: str, jobs: tuple[SimulatedJob, ...]) -> None:
        self._address = url.replace("http", "ws", 1) + wire.AGENT_PATH
        self._jobs = jobs
        self._began = time.monotonic()
        self._fleets: dict[tuple[str, int], Fleet] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "SimulatedNodes":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._all.cancel)
        self._thread.join(30)
        self._loop.close()

    def _run(self) -> None:
        nodes = [(job, node) for job in self._jobs for node in range(Fleet(job.still).nodes)]
        self._all = self._loop.create_task(self._together(nodes))
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._all)
        self._loop.run_until_complete(asyncio.sleep(0.1))  # transports close in the loop's next rounds

    async def _together(self, nodes: list[tuple[SimulatedJob, int]]) -> None:
        await asyncio.gather(*(self._node(job, node) for job, node in nodes))

    async def _node(self, job: SimulatedJob, node: int) -> None:
        async with connect(self._address, proxy=None, compression=None, ping_interval=None) as line:
            await line.send(
                wire.encode(
                    wire.Hello(
                        protocol=config.PROTOCOL, agent=f"{job.name}/{node}", host=f"node{node:05d}", version="0.1.0"
                    )
                ).decode()
            )
            await line.recv()
            await line.send(wire.encode(self._fleet(job).announce(node, job.name)).decode())
            answering = asyncio.create_task(self._answer(job, line))
            try:
                while True:
                    await line.send(self._fleet(job).digest(node, self._hang_s(job)))
                    await asyncio.sleep(DIGEST_S)
            finally:
                answering.cancel()
                await asyncio.gather(answering, return_exceptions=True)

    def _hang_s(self, job: SimulatedJob) -> float:
        return 0.0 if job.still.moving else time.monotonic() - self._began

    def _fleet(self, job: SimulatedJob) -> Fleet:
        """Return the job as it is now; of one that moves, another one each second."""
        second = int(time.monotonic() - self._began) if job.still.moving else 0
        key = job.name, second
        if key not in self._fleets:
            still = job.still
            if second:
                step = min(second, job.steps - 1)
                places = [len(course.steps) // job.steps * step for course in still.courses]
                still = replace(still, places=[places[number] for number in still.course_of])
            self._fleets = {each: fleet for each, fleet in self._fleets.items() if each[0] != job.name}
            self._fleets[key] = Fleet(still)
        return self._fleets[key]

    async def _answer(self, job: SimulatedJob, line: ClientConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for text in line:
                command = wire.decode_from_server(text)
                if isinstance(command, wire.Command) and (said := self._said(job, command)) is not None:
                    await line.send(wire.encode(said).decode())

    def _said(self, job: SimulatedJob, command: wire.Command) -> wire.AgentMessage | None:
        if command.kind is wire.CommandKind.INSPECT:
            views = self._fleet(job).views(command.ranks, self._hang_s(job))
            return wire.Views(index=0, ranks=views, reply_to=command.id)
        if command.kind is wire.CommandKind.STACKS:
            dumps = tuple(StackDump(rank=rank, threads=(("MainThread", _FRAMES),)) for rank in command.ranks)
            return wire.Stacks(index=0, dumps=dumps, reply_to=command.id)
        if command.kind is wire.CommandKind.WITNESS:
            said = tuple(Testimony(rank=rank, failure="simulated ranks have none") for rank in command.ranks)
            return wire.Testimonies(index=0, ranks=said, reply_to=command.id)
        return None
