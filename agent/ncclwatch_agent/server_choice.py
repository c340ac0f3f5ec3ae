"""Gives each job the server it talks to, and this node one of its own where that is the answer.

A token goes only to a server that somebody named. Any other must prove that it is this user's, see `proof`.
"""

import asyncio
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from ncclwatch.contract import config, wire
from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.machine.liveness import LoopLife, keep
from ncclwatch.contract.network import tokens
from ncclwatch_agent.commands import CommandDesk, put_on_terminal
from ncclwatch_agent.log import log
from ncclwatch_agent.ranks.jobs import LocalJob
from ncclwatch_agent.shared_servers import SharedServers
from ncclwatch_agent.uplink.connection import Callbacks, Failure, News, Uplink
from ncclwatch_agent.uplink.local_server import Answer, LocalServer, missing_parts, wanted_port
from ncclwatch_agent.uplink.proof import HOW_TO_SHARE

COMPLAIN_S = 10.0  # a server that is merely not there yet is told of on the terminal after this long
FLUSH_S_MAX = 2.0
UNUSED_S = 60.0  # without a job, after which a connection is closed
_LOOPBACK = f"http://127.0.0.1:{config.DEFAULT_PORT}"
_LOOPBACK_HOSTS = ("http://127.0.0.1:", "http://localhost:")

_Name = tuple[str, str]  # of a server: its address as jobs say it, and how that came about


def read_token(environ: Mapping[str, str] = os.environ) -> str:
    """Return the token that a protected server wants, "" if none is set or it cannot be read."""
    try:
        return tokens.shown_by_agent(environ)
    except ConfigError as error:
        log.warning("%s", error)
        return ""


def origin(url: str) -> tuple[str, str, int]:
    """Return what one token is for: the scheme, host and port of a server."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
    except ValueError:  # it is no address, and is told of where it is dialled
        return "", url, 0
    scheme = "https" if parts.scheme in ("https", "wss") else "http"
    try:
        port = parts.port
    except ValueError:
        port = 0
    return scheme, parts.hostname or "", port or (443 if scheme == "https" else 80)


def token_for(url: str, naming: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the token to show to a server that a job names, "" if there is none for it.

    An agent that was started with a token and the name of a server has the token for that server. Another job of the
    same user may name another one, perhaps without TLS.
    """
    if naming != config.NAMED:
        return ""
    bound = config.server_url(environ) if config.server_naming(environ) == config.NAMED else ""
    token = read_token(environ)
    if token and bound and origin(url) != origin(bound):
        log.warning("the token of this agent came with the server %s, so none is shown to %s", bound, url)
        return ""
    return token


class Servers:
    """The connections of this agent, one for each server that a job names."""

    def __init__(
        self, hello: wire.Hello, desk: CommandDesk, jobs: Callable[[], Iterable[LocalJob]], local: LocalServer
    ) -> None:
        self._hello = hello
        self._desk = desk
        self._jobs = jobs
        self._local = local
        self._uplinks: dict[_Name, tuple[Uplink, asyncio.Task[None]]] = {}
        self._unused_since: dict[_Name, float] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._starting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._shared = SharedServers()

    def of(self, job: LocalJob) -> Uplink:
        """Return the way to a job's server, dialling it if it is a new one."""
        name = _name(job)
        known = self._uplinks.get(name)
        uplink = known[0] if known else Uplink(job.server, self._hello, token_for(job.server, job.naming), job.naming)
        if known is None or known[1].done():
            if known is not None:  # it was cancelled or lost; what waits to be sent is the uplink's, and stays
                log.error("the uplink to %s has ended though nobody told it to; it is begun anew", uplink.name)
            # It has no age: a line that is silent is closed by its pings, and all it waits for has a deadline.
            life = LoopLife(f"uplink to {uplink.name}", age_s_max=math.inf)
            callbacks = self._callbacks(uplink)
            self._uplinks[name] = uplink, asyncio.create_task(keep(life, log, lambda: uplink.run(callbacks)))
        return uplink

    def _callbacks(self, uplink: Uplink) -> Callbacks:
        return Callbacks(
            picture=lambda: self._picture(uplink),
            command=lambda command: self._command(uplink, command),
            failed=lambda failure: self._failed(uplink, failure),
            job_refused=lambda message: self._job_refused(uplink, message),
            successor=lambda message: self._successor(uplink, message),
        )

    @property
    def needed_elsewhere(self) -> bool:
        """Whether a server of ours runs that other nodes may use."""
        return self._shared.serving

    def tend(self, job: LocalJob) -> None:
        """Do what a job on several nodes needs so that its agents find each other."""
        if job.naming == config.SHARED and (said := self._shared.tend(job, self.of(job))):
            self._tell_job(job, said)

    def ask_again(self, job: LocalJob, now_s: float) -> None:
        """Announce a job anew that its server had no room for a while ago."""
        uplink = self.of(job)
        if uplink.refusals.due(job.index, now_s):
            uplink.send(job.announce())
            uplink.send(job.all_facts())

    def drop_unused(self, now_s: float) -> None:
        """Hang up where no job has been for a while."""
        used = {_name(job) for job in self._jobs()}
        self._shared.forget({job.key for job in self._jobs()})
        for name in list(self._uplinks):
            if name in used:
                self._unused_since.pop(name, None)
            elif now_s - self._unused_since.setdefault(name, now_s) >= (0.0 if name[1] == config.SHARED else UNUSED_S):
                del self._unused_since[name]
                uplink, task = self._uplinks.pop(name)
                closing = asyncio.create_task(_hang_up(uplink, task))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
                log.info("no job talks to %s any more", uplink.url)

    def may_be_reached(self, uplink: Uplink) -> bool:
        """Whether it is worth waiting for this server: it was there before, or one is being started."""
        return uplink.reached or (self._starting is not None and not self._starting.done())

    async def close(self) -> None:
        """Send what is left, hang up everywhere, and stop the server of our own."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        for uplink, task in self._uplinks.values():
            await uplink.flush(FLUSH_S_MAX)
            task.cancel()
        await asyncio.gather(*(task for _, task in self._uplinks.values()), return_exceptions=True)
        await asyncio.gather(*self._closing, return_exceptions=True)
        self._uplinks.clear()
        await self._local.stop()
        await self._shared.close()  # what waits for a server of it is over then
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _jobs_of(self, uplink: Uplink) -> list[LocalJob]:
        return [job for job in self._jobs() if _name(job) == (uplink.name, uplink.naming)]

    def _picture(self, uplink: Uplink) -> Iterable[News]:
        now_ns = time.monotonic_ns()
        # Attempts in their order, but the newest run first: a server that knows none takes it for the current one.
        for job in sorted(self._jobs_of(uplink), key=lambda job: (job.key.attempt, -job.key.run)):
            yield job.announce()
            yield job.digest(now_ns)
            facts = job.all_facts()
            if facts.alike or facts.joined:
                yield facts
            if before := self._shared.predecessor(job):
                yield before

    def _command(self, uplink: Uplink, command: wire.Command) -> None:
        if command.kind is not wire.CommandKind.STAND_BY:
            self._desk.take(uplink, command)
            return
        job = next((job for job in self._jobs_of(uplink) if job.index == command.index), None)
        if job is not None and job.naming == config.SHARED:  # no server that somebody named may start another one here
            self._keep(asyncio.create_task(self._stand_by(uplink, job, command)))

    async def _stand_by(self, uplink: Uplink, job: LocalJob, command: wire.Command) -> None:
        connection = uplink.connections
        offer = await self._shared.stand_by(job)
        if offer and uplink.connections == connection:
            uplink.send(wire.Standby(index=job.index, offer=offer, reply_to=command.id))

    def _successor(self, uplink: Uplink, said: wire.Successor) -> None:
        for job in self._jobs_of(uplink):
            if job.index == said.index and job.naming == config.SHARED:
                self._shared.note(job, said)

    def _job_refused(self, uplink: Uplink, message: wire.JobRefused) -> None:
        """Tell the user of one job that it is not watched. The others of this node are."""
        for job in self._jobs_of(uplink):
            if job.index == message.index:
                sentence = f"{uplink.url} does not watch this job: {message.reason}. Training goes on unwatched"
                log.warning("job %s: %s", job.key.job, sentence)
                self._tell_job(job, sentence)

    def _failed(self, uplink: Uplink, failure: Failure) -> None:
        """Start a server of our own where that is the answer, or tell the user once."""
        if uplink.naming != config.UNNAMED or failure.answer is Answer.REFUSAL:
            self._complain(uplink, failure)
        elif self._jobs_of(uplink) and (self._starting is None or self._starting.done()):
            self._starting = asyncio.create_task(self._serve_ourselves(uplink, failure))

    async def _serve_ourselves(self, uplink: Uplink, failure: Failure) -> None:
        port = wanted_port(failure.answer)
        if port is None:
            self._complain(uplink, failure)
        elif any(job.spans_nodes() for job in self._jobs_of(uplink)):
            none = f"no server at {uplink.url} for this job on several nodes, and nobody named another"
            self._complain(uplink, replace(failure, sentence=f"{none}; {HOW_TO_SHARE}"))
        elif self._local.alive:
            if uplink.url == self._local.url:
                self._complain(uplink, failure)
            else:
                self._use_own(uplink, failure)
        elif failure.answer is Answer.NOBODY and not uplink.url.startswith(_LOOPBACK_HOSTS):
            uplink.redirect(_LOOPBACK)  # another agent of this node may have started one there
        elif sentence := missing_parts() or await self._local.start(port):
            log.warning("%s", sentence)
            self._tell(uplink, sentence)
        else:
            self._use_own(uplink, failure)

    def _use_own(self, uplink: Uplink, failure: Failure) -> None:
        """Dial our own server, and say so where another user's was found at the default address."""
        if failure.answer is Answer.FOREIGN:
            self._tell(uplink, f"{failure.sentence}. This job is watched by a server of its own at {self._local.url}")
        uplink.redirect(self._local.url)

    def _complain(self, uplink: Uplink, failure: Failure) -> None:
        """Tell the user: at once of a server that will not do, later of one that may still come."""
        patient = failure.answer is Answer.NOBODY
        if not patient or (not uplink.reached and uplink.failing_s() >= COMPLAIN_S):
            self._tell(uplink, failure.sentence)

    def _tell(self, uplink: Uplink, sentence: str) -> None:
        for job in self._jobs_of(uplink):
            self._tell_job(job, sentence)

    def _tell_job(self, job: LocalJob, sentence: str) -> None:
        self._keep(asyncio.create_task(put_on_terminal(job, f"ncclwatch: {sentence}\n")))

    def _keep(self, task: "asyncio.Task[None]") -> None:
        """Hold on to a task until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _name(job: LocalJob) -> _Name:
    return job.server, job.naming


async def _hang_up(uplink: Uplink, task: asyncio.Task[None]) -> None:
    """Send what is left, and end a connection."""
    await uplink.flush(FLUSH_S_MAX)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
