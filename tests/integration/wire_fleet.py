"""Agents of a simulated job: they speak the real wire to a real server, from one thread."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from ncclwatch.contract import config, digests, wire
from ncclwatch.contract.model.rank import RankView, StackDump, StackFrame
from ncclwatch.contract.model.testimony import Testimony
from ncclwatch_server.simulation.fleet import Fleet
from ncclwatch_server.simulation.job.faults import Fault, FaultKind
from ncclwatch_server.simulation.job.layout import Layout
from ncclwatch_server.simulation.job.program import SCRIPT, Training
from ncclwatch_server.simulation.run import cruising, run

STEPS = 12  # training steps of a healthy job, one each second; then it stands


ROUND_S = 1.0
AT_ONCE = 64  # nodes that report at one moment: those of a real job do so at moments of their own


class WireFleet:
    """The nodes of one job: each a connection that sends a digest every second and answers what it is asked."""

    def __init__(
        self,
        url: str,
        fleets: Sequence[Fleet],
        *,
        job: str,
        loops: Sequence[wire.Loop] = (),
        host: Callable[[int], str] = "node{:05d}".format,
        disguise: Callable[[RankView], RankView] = lambda view: view,
        answers: bool = True,
    ) -> None:
        """`answers`: whether full views are told. Those of 16,384 ranks take one thread longer than a digest may."""
        self._address = url.replace("http", "ws", 1) + wire.AGENT_PATH
        self._fleets = list(fleets)
        self._job = job
        self._loops = tuple(loops)
        self._host, self._disguise, self._answers = host, disguise, answers
        self._number = 0
        self._hung_at: float | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failures: list[BaseException] = []
        self.rounds = 0

    def __enter__(self) -> "WireFleet":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        if not self._thread.is_alive():
            self._loop.close()
        if error is None and self.failures:
            raise self.failures[0]

    def hang(self, fleet: Fleet) -> None:
        """Let the job stand as this one does, from now on."""
        self._fleets, self._number = [fleet], 0
        self._hung_at = time.monotonic()

    @property
    def _fleet(self) -> Fleet:
        return self._fleets[min(self._number, len(self._fleets) - 1)]

    @property
    def _hang_s(self) -> float:
        return time.monotonic() - self._hung_at if self._hung_at is not None else 0.0

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._all())
        except Exception as error:  # noqa: BLE001 it is raised where the test sees it
            self.failures.append(error)

    async def _all(self) -> None:
        lines = [
            await connect(self._address, proxy=None, ping_interval=None, close_timeout=5)
            for _ in range(self._fleet.nodes)
        ]
        for node, line in enumerate(lines):
            said = wire.Hello(
                protocol=config.PROTOCOL, agent=f"{self._job}-{node}", host=self._host(node), version="0.1.0"
            )
            await line.send(wire.encode(said).decode())
            await line.recv()
            await line.send(wire.encode(self._fleet.announce(node, self._job)).decode())
        mine = [tuple(loop for loop in self._loops if loop.rank in self._fleet.ranks_of(n)) for n in range(len(lines))]
        for line, loops in zip(lines, mine, strict=True):
            if loops:
                await line.send(wire.encode(wire.Loops(index=0, ranks=loops)).decode())
        answering = [asyncio.ensure_future(self._answer(line)) for line in lines]
        while not self._stop.is_set():
            due = time.monotonic() + ROUND_S
            await self._report(lines)
            self._number += 1
            self.rounds += 1
            try:
                await asyncio.wait_for(self._stop.wait(), max(0.01, due - time.monotonic()))
            except asyncio.TimeoutError:
                continue
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
        await asyncio.gather(*(line.close() for line in lines))

    async def _report(self, lines: Sequence[ClientConnection]) -> None:
        fleet = self._fleet
        ranks, groups = fleet.rows(self._hang_s)
        each = len(fleet.still.layout.axes)
        for node, line in enumerate(lines):
            own = fleet.ranks_of(node)
            mine, theirs = ranks[own.start : own.stop], groups[own.start * each : own.stop * each]
            head = digests.DIGEST_HEAD.pack(digests.DIGEST_MAGIC, config.PROTOCOL, 0, 0, len(mine), len(theirs))
            await line.send(head + mine.tobytes() + theirs.tobytes())
            if node % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0.8 * ROUND_S * AT_ONCE / len(lines))

    async def _answer(self, line: ClientConnection) -> None:
        try:
            async for data in line:
                command = wire.decode_from_server(data)
                if isinstance(command, wire.Command) and self._answers:
                    await self._obey(line, command)
        except ConnectionClosed:
            return

    async def _obey(self, line: ClientConnection, command: wire.Command) -> None:
        said: wire.AgentMessage
        if command.kind is wire.CommandKind.INSPECT:
            said = wire.Views(index=0, ranks=self._views(command.ranks), reply_to=command.id)
        elif command.kind is wire.CommandKind.STACKS:
            dumps = tuple(map(_stack, self._views(command.ranks)))
            said = wire.Stacks(index=0, dumps=dumps, reply_to=command.id)
        elif command.kind is wire.CommandKind.WITNESS:
            ranks = tuple(Testimony(rank=rank, failure="it has no worker server") for rank in command.ranks)
            said = wire.Testimonies(index=0, ranks=ranks, reply_to=command.id)
        else:
            return
        await line.send(wire.encode(said).decode())

    def _views(self, ranks: Sequence[int]) -> tuple[RankView, ...]:
        seen = self._fleet.views(ranks, self._hang_s)
        hosts = (self._host(view.rank // self._fleet.still.layout.node) for view in seen)
        named = (replace(view, host=host, phase="train") for view, host in zip(seen, hosts, strict=True))
        return tuple(map(self._disguise, named))


def _stack(view: RankView) -> StackDump:
    thread = view.threads[0]
    waits = thread.wait.op.value if thread.wait is not None else "sleep"
    frames = [StackFrame(function=waits, file="/x/site-packages/torch/distributed/distributed_c10d.py", line=2810)]
    frames += [StackFrame(function=site.function, file=site.file, line=site.line) for site in thread.frames]
    frames += [StackFrame(function="<module>", file=SCRIPT, line=140)]
    return StackDump(rank=view.rank, threads=(("MainThread", tuple(frames)),))


def healthy(layout: Layout) -> list[Fleet]:
    """Return a job on its way, one training step each second."""
    return [Fleet(cruising(layout, Training(), steps=STEPS + 3, at_step=step)) for step in range(1, STEPS + 1)]


def stuck(layout: Layout, rank: int, kind: FaultKind = FaultKind.SKIP, place: int = 0) -> Fleet:
    """Return the same job, hanging because of one rank."""
    one = len(run(layout, Training(), (), steps=1).courses[layout.stage(rank)].steps)
    fault = Fault(kind=kind, rank=rank, at=one * STEPS + place)
    return Fleet(run(layout, Training(), (fault,), steps=STEPS + 3, from_step=STEPS))
