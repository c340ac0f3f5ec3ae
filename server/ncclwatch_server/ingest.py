"""How does the news of one agent come in? The WebSocket, from `Hello` to the broken line.

Whatever an agent sends, only its own connection can suffer from it.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fastapi import WebSocket, WebSocketDisconnect

from ncclwatch.contract import config, wire
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.version import VERSION
from ncclwatch_server import settings
from ncclwatch_server.access import shown
from ncclwatch_server.counters import RefusedAt
from ncclwatch_server.jobs import Job
from ncclwatch_server.links import Link
from ncclwatch_server.scopes import Access, Caller, Denial, Scope
from ncclwatch_server.watch import Watch

log = logging.getLogger("ncclwatch.server")

_POLICY_VIOLATION = 1008  # RFC 6455: what was received breaks a rule


@dataclass(slots=True, kw_only=True)
class _Session:
    """One agent's connection and the jobs it has announced."""

    link: Link
    watch: Watch
    clock: Callable[[], float] = time.monotonic
    jobs: dict[int, Job] = field(default_factory=dict)
    announced: dict[int, wire.Announce] = field(default_factory=dict)

    def take_digest(self, data: bytes) -> None:
        index, ranks, groups = wire.split_digest(data)
        job = self.jobs.get(index)
        if job is None:
            raise WireError(f"a digest of job number {index}, which was not announced")
        if job.astray and self.watch.jobs.may_begin(job):
            self._announce(self.announced[index])
            job = self.jobs[index]
        job.state.take(self.link.number, ranks, groups, self.clock())
        self.watch.counters.digests += 1
        self.watch.look_within(settings.DIGEST_LOOK_S)

    def take_message(self, text: str) -> None:
        message = wire.decode_from_agent(text)
        self.watch.counters.messages += 1
        if isinstance(message, wire.Hello):
            raise WireError("a second hello on one connection")
        if isinstance(message, wire.Announce):
            self._announce(message)
            return
        job = self.jobs.get(message.index)
        if job is None:
            raise WireError(f"news of job number {message.index}, which was not announced")
        if isinstance(message, (wire.Views, wire.Stacks, wire.Testimonies)):
            self._time(message)
        self._hear(job, message)

    def _time(self, message: wire.Views | wire.Stacks | wire.Testimonies) -> None:
        """Note how long an answer took, and of how many ranks it has nothing to tell."""
        counters, found = self.watch.counters, self.link.answered(message.reply_to)
        if found is not None:
            counters.timings.captured(found[0].value, found[1])
        if isinstance(message, wire.Stacks):
            failed = sum(1 for dump in message.dumps if dump.failure and not dump.threads)
            counters.count_capture_failures(wire.CommandKind.STACKS.value, failed)
        elif isinstance(message, wire.Testimonies):
            failed = sum(1 for testimony in message.ranks if testimony.failure)
            counters.count_capture_failures(wire.CommandKind.WITNESS.value, failed)

    def _hear(self, job: Job, message: wire.JobNews) -> None:
        if isinstance(message, wire.Views):
            self._views(job, message)
        elif isinstance(message, wire.Stacks):
            self._stacks(job, message)
        elif isinstance(message, wire.Loops):
            _check_ranks(job, (loop.rank for loop in message.ranks))
            job.stragglers.batches.take(message.ranks, self.clock())
            if job.loops.take(message.ranks):
                self.watch.look_within(settings.SOON_S)
        elif isinstance(message, wire.Facts):
            _check_ranks(job, (rank for alike in message.alike for rank in alike.ranks))
            _check_ranks(job, (*message.joined, *message.twice))
            self.watch.jobs.set_up(self.link, job, message, self.clock())
            self.watch.look_within(settings.DIGEST_LOOK_S)
        elif isinstance(message, wire.Parameters):
            _check_ranks(job, (rank for rank, _ in message.ranks))
            job.likeness.learn(message)
            self.watch.look_within(settings.SOON_S)
        elif isinstance(message, wire.Testimonies):
            _check_ranks(job, (testimony.rank for testimony in message.ranks))
            if job.gathering is not None:
                job.gathering.hear(message.ranks, message.communicators, (self.link.number, message.reply_to))
            self.watch.look_within(settings.SOON_S)
        else:
            job.state.gone(self.link.number)
            self.watch.look_within(settings.SOON_S)

    def _stacks(self, job: Job, message: wire.Stacks) -> None:
        _check_ranks(job, (dump.rank for dump in message.dumps))
        question = (self.link.number, message.reply_to)
        if any(capture.take(message.dumps, question) for capture in job.captures):
            return
        if job.gathering is not None:
            job.gathering.take(message.dumps, question)
        self.watch.look_within(settings.SOON_S)

    def _announce(self, message: wire.Announce) -> None:
        if message.index not in self.jobs and len(self.jobs) >= settings.JOBS_PER_AGENT_MAX:
            raise WireError(f"more than {settings.JOBS_PER_AGENT_MAX} jobs on one node")
        job = self.watch.jobs.announce(self.link, message, self.clock())
        others = (each for index, each in self.jobs.items() if index != message.index)
        if job.astray and sum(each.astray for each in others) >= settings.ASTRAY_PER_AGENT_MAX:
            raise WireError(f"more than {settings.ASTRAY_PER_AGENT_MAX} numbers of ranks for jobs on one node")
        self.jobs[message.index] = job
        self.announced[message.index] = message

    def _views(self, job: Job, message: wire.Views) -> None:
        _check_ranks(job, (view.rank for view in message.ranks))
        job.showing.take(message.ranks)
        if job.showing.asked((self.link.number, message.reply_to)):
            return  # for people: the judge asks for itself
        now = self.clock()
        if job.closely.take(message.ranks, (self.link.number, message.reply_to)):
            return
        job.inspection.take(message.ranks, (self.link.number, message.reply_to), now)
        for view in message.ranks:
            if view.ending is not None:
                job.state.note_ended(view.rank)
        if not message.reply_to:
            job.inspection.hurry(now)
        self.watch.look_within(settings.SOON_S)


def _check_ranks(job: Job, ranks: Iterable[int]) -> None:
    if any(not 0 <= rank < job.world_size for rank in ranks):
        raise WireError(f"news of a rank outside of 0..{job.world_size - 1}")


class Door:
    """Lets agents in, and hands their news to the watch."""

    def __init__(self, watch: Watch, access: Access) -> None:
        self._watch = watch
        self._access = access
        self._numbers = 0
        self._links: dict[int, Link] = {}

    async def serve(self, socket: WebSocket) -> None:
        """Talk with one agent until the line breaks."""
        await socket.accept()
        try:
            caller = self._let_in(socket)
            link = await self._welcome(socket)
        except WireError as error:
            await self._refuse(socket, str(error), RefusedAt.HELLO)
            return
        except (WebSocketDisconnect, RuntimeError):
            return  # it hung up before it said who it is
        self._links[link.number] = link
        self._watch.agents = len(self._links)
        sender = asyncio.create_task(_send(socket, link))
        ending = _refuse_at_the_end(caller, link)
        try:
            await self._listen(socket, link)
        finally:
            if ending is not None:
                ending.cancel()
            sender.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sender
            del self._links[link.number]
            self._watch.agents = len(self._links)
            self._watch.lost(link)

    def _let_in(self, socket: WebSocket) -> Caller:
        """Look at the token. Raises `WireError` if it is not one for agents."""
        found = self._access.judge(shown(socket), Scope.AGENT)
        if isinstance(found, Denial):
            raise WireError(found.sentence)
        return found

    async def _welcome(self, socket: WebSocket) -> Link:
        """Hear the hello and answer it. Raises `WireError` if this is no agent of ours."""
        if len(self._links) >= settings.AGENTS_MAX:
            raise WireError(f"this server already hears {len(self._links)} agents; start another one")
        try:
            data = await asyncio.wait_for(_receive(socket), settings.HELLO_S)
        except asyncio.TimeoutError:
            raise WireError(f"no hello within {settings.HELLO_S:.0f} s") from None
        if data is None:
            raise WebSocketDisconnect
        hello = wire.decode_from_agent(data)
        if not isinstance(hello, wire.Hello):
            raise WireError("the first message of an agent must be its hello")
        if hello.protocol != config.PROTOCOL:
            raise WireError(
                f"the agent on {hello.host} speaks protocol {hello.protocol}, this server {config.PROTOCOL}; "
                "install the same version of ncclwatch on the nodes and on the server"
            )
        self._numbers += 1
        ahead_s = hello.wall_s - time.time() if hello.wall_s else None
        link = Link(number=self._numbers, agent=hello.agent, host=hello.host, version=hello.version, ahead_s=ahead_s)
        link.send(wire.Welcome(server="ncclwatch", version=VERSION))
        return link

    async def _listen(self, socket: WebSocket, link: Link) -> None:
        session = _Session(link=link, watch=self._watch)
        closing = asyncio.create_task(link.closing.wait())
        listening = asyncio.create_task(_take_all(socket, session))
        try:
            await asyncio.wait({closing, listening}, return_when=asyncio.FIRST_COMPLETED)
            if listening.done():
                listening.result()
        except WireError as error:
            await self._refuse(socket, f"agent on {link.host}: {error}", RefusedAt.NEWS)
        except (WebSocketDisconnect, RuntimeError):
            pass  # the line broke; RuntimeError is starlette's word for sending into it
        finally:
            for task in (closing, listening):
                task.cancel()
            await asyncio.gather(closing, listening, return_exceptions=True)
            if link.closing.is_set():
                await self._let_go(socket, link)

    async def _let_go(self, socket: WebSocket, link: Link) -> None:
        """Close a connection that the server itself wants to end, with its last words."""
        at = RefusedAt.NEWS if link.refusal else RefusedAt.READING
        await self._refuse(socket, link.refusal or f"the agent on {link.host} does not read", at)

    async def _refuse(self, socket: WebSocket, reason: str, at: RefusedAt) -> None:
        self._watch.counters.count_refused(at)
        log.warning("refused an agent: %s", reason)
        # The line may be broken by now; then there is nobody to tell.
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, asyncio.TimeoutError):
            await asyncio.wait_for(_say_refused(socket, reason), 1.0)


def _refuse_at_the_end(caller: Caller, link: Link) -> asyncio.TimerHandle | None:
    """Let an agent go when its token ends: a connection may last for months."""
    if caller.until is None:
        return None
    left_s = max(0.0, caller.until - time.time())
    return asyncio.get_running_loop().call_later(left_s, link.refuse, f"the token of {caller.name} has ended")


async def _say_refused(socket: WebSocket, reason: str) -> None:
    await socket.send_text(wire.encode(wire.Refused(reason=reason)).decode())
    await socket.close(_POLICY_VIOLATION)


async def _take_all(socket: WebSocket, session: _Session) -> None:
    while (data := await _receive(socket)) is not None:
        if isinstance(data, bytes):
            session.take_digest(data)
        else:
            session.take_message(data)


async def _receive(socket: WebSocket) -> bytes | str | None:
    """Return the next message, None when the agent has hung up."""
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        return None
    data: bytes | None = message.get("bytes")
    text: str | None = message.get("text")
    return data if data is not None else text or ""


async def _send(socket: WebSocket, link: Link) -> None:
    """Send what is in the box, until the connection ends."""
    try:
        while True:
            message = await link.outbox.get()
            await socket.send_text(wire.encode(message).decode())
    except (WebSocketDisconnect, RuntimeError):
        link.closing.set()
