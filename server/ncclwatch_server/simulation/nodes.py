"""The nodes of a simulated job, each with a connection of its own to a real server, as its agent would have.

They announce the job, send a digest a second each at a moment of its own, and answer what the server asks.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from ncclwatch.contract import config, wire
from ncclwatch.contract.errors import NcclwatchError, WireError
from ncclwatch.contract.model.rank import RankView, StackDump, StackFrame
from ncclwatch.contract.network import tls
from ncclwatch.contract.network.direct_websocket import DirectWebSocket
from ncclwatch.contract.version import VERSION
from ncclwatch_server.simulation.job.timeline import Timeline

DIAL_AT_ONCE = 64  # connections that are being made at the same time
OPEN_S_MAX = 30.0
REPORT_S = 1.0


class NoServer(NcclwatchError):
    """The server does not answer, or does not want these agents."""


@dataclass(slots=True, kw_only=True)
class Traffic:
    """What went over the wire."""

    digests: int = 0
    bytes: int = 0
    questions: int = 0
    late_s: float = 0.0  # the most that a digest was sent after its time: more than a moment means that we are too slow


@dataclass(slots=True, kw_only=True)
class Nodes:
    """All nodes of a job. `began` is when its first step did, on the monotonic clock; infinite: not yet."""

    timeline: Timeline
    job: str
    url: str
    token: str = ""
    seed: int = 0
    elsewhere: frozenset[int] = frozenset()  # nodes that somebody else reports
    began: float = float("inf")
    traffic: Traffic = field(default_factory=Traffic)
    _open: list[tuple[int, ClientConnection]] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many machines there are."""
        return -(-self.timeline.layout.world_size // self.timeline.layout.node)

    async def connect(self, told: Callable[[int], None] = lambda count: None) -> None:
        """Make all connections, and announce the job on each. Raises `NoServer`."""
        turn = asyncio.Semaphore(DIAL_AT_ONCE)

        async def one(node: int) -> None:
            async with turn:
                self._open.append((node, await self._dial(node)))
                told(len(self._open))

        dialling = [asyncio.create_task(one(node)) for node in range(self.count) if node not in self.elsewhere]
        try:
            await asyncio.gather(*dialling)
        except BaseException:
            for task in dialling:
                task.cancel()
            await asyncio.gather(*dialling, return_exceptions=True)
            await self.close()
            raise

    async def run(self, until: asyncio.Event) -> None:
        """Report and answer until it is enough, then say that the job is gone."""
        self.began = time.monotonic()
        talks = [asyncio.create_task(self._talk(node, socket)) for node, socket in self._open]
        try:
            await until.wait()
        finally:
            for talk in talks:
                talk.cancel()
            await asyncio.gather(*talks, return_exceptions=True)
            for _, socket in self._open:
                with contextlib.suppress(ConnectionClosed):
                    await socket.send(wire.encode(wire.Gone(index=0)).decode())
            await self.close()

    async def close(self) -> None:
        """Hang up."""
        await asyncio.gather(*(socket.close() for _, socket in self._open), return_exceptions=True)
        self._open.clear()

    async def _dial(self, node: int) -> ClientConnection:
        address = self.url.replace("http", "ws", 1).rstrip("/") + wire.AGENT_PATH
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            socket = await DirectWebSocket(
                address, ssl=tls.trust() if tls.is_secure(self.url) else None,
                compression=None, proxy=None, open_timeout=OPEN_S_MAX, additional_headers=headers,
                max_size=config.MESSAGE_BYTES_MAX, ping_interval=None, close_timeout=1.0,
            )  # fmt: skip
            hello = wire.Hello(
                protocol=config.PROTOCOL, agent=f"{self.job}-{node}", host=f"node{node:05d}", version=VERSION
            )
            await socket.send(wire.encode(hello).decode())
            answer = wire.decode_from_server(await socket.recv())
            if not isinstance(answer, wire.Welcome):
                reason = answer.reason if isinstance(answer, wire.Refused) else "its first message is no welcome"
                raise NoServer(f"{self.url} refused simulated node {node}: {reason}")
            fleet, _ = self.timeline.at(0.0)
            await socket.send(wire.encode(fleet.announce(node, self.job)).decode())
        except (OSError, asyncio.TimeoutError, InvalidHandshake, InvalidURI, ConnectionClosed, WireError) as error:
            raise NoServer(
                f"no connection of simulated node {node} to {self.url} ({error}); start ncclwatch-server there, "
                f"raise the limit on open files (ulimit -n) above the number of nodes, or name another server"
            ) from error
        return socket

    def _now_s(self) -> float:
        return time.monotonic() - self.began

    async def _talk(self, node: int, socket: ClientConnection) -> None:
        reporting = asyncio.create_task(self._report(node, socket))
        try:
            async for data in socket:
                message = wire.decode_from_server(data)
                if isinstance(message, wire.Command):
                    await self._answer(socket, message)
        except ConnectionClosed:
            return
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)

    async def _report(self, node: int, socket: ClientConnection) -> None:
        due = self.began + random.Random(self.seed * 1_000_003 + node).random() * REPORT_S
        told_of_the_dead = False
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self.traffic.late_s = max(self.traffic.late_s, time.monotonic() - due)
            fleet, since_s = self.timeline.at(self._now_s())
            digest = fleet.digest(node, since_s)
            self.traffic.digests += 1
            self.traffic.bytes += len(digest)
            await socket.send(digest)
            if since_s and not told_of_the_dead:
                # Only a rank that makes a fault ends. To look at all of a big job each second takes longer than that.
                faulty = {fault.rank for fault in fleet.still.faults}.intersection(fleet.ranks_of(node))
                dead = [view for view in self._views(tuple(sorted(faulty))) if view.ending is not None]
                if dead:  # an agent tells the end of a rank without being asked
                    await socket.send(wire.encode(wire.Views(index=0, ranks=tuple(dead))).decode())
                told_of_the_dead = bool(dead)
            due += REPORT_S

    async def _answer(self, socket: ClientConnection, command: wire.Command) -> None:
        self.traffic.questions += 1
        if command.kind is wire.CommandKind.INSPECT:
            views = self._views(command.ranks)
            await socket.send(wire.encode(wire.Views(index=0, ranks=views, reply_to=command.id)).decode())
        elif command.kind is wire.CommandKind.STACKS:
            dumps = tuple(map(_stack, self._views(command.ranks)))
            await socket.send(wire.encode(wire.Stacks(index=0, dumps=dumps, reply_to=command.id)).decode())
        elif command.kind is wire.CommandKind.WITNESS:
            await socket.send(wire.encode(wire.Testimonies(index=0, ranks=(), reply_to=command.id)).decode())

    def _views(self, ranks: "tuple[int, ...] | range") -> tuple[RankView, ...]:
        fleet, since_s = self.timeline.at(self._now_s())
        return fleet.views(ranks, since_s)


def _stack(view: RankView) -> StackDump:
    """Return what py-spy would say of a rank: nothing of one that has no process any more."""
    if view.ending is not None:
        return StackDump(rank=view.rank, failure=f"process {view.pid} is gone")
    frames = [StackFrame(function=site.function, file=site.file, line=site.line) for site in view.threads[0].frames]
    outer = StackFrame(function="<module>", file=view.threads[0].frames[0].file, line=150)
    return StackDump(rank=view.rank, threads=(("MainThread", (*frames, outer)),))
