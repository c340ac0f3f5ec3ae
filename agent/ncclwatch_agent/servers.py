"""Which server does each job talk to, and does this node need one of its own?"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping

from ncclwatch.contract import config, tokens, wire
from ncclwatch.contract.errors import ConfigError
from ncclwatch_agent.commands import CommandDesk, put_on_terminal
from ncclwatch_agent.jobs import LocalJob
from ncclwatch_agent.local_server import Answer, LocalServer, is_this_host, missing_parts, wanted_port
from ncclwatch_agent.log import log
from ncclwatch_agent.uplink import Callbacks, Failure, News, Uplink

COMPLAIN_S = 10.0  # a server that is merely not there yet is told of on the terminal after this long
FLUSH_S_MAX = 2.0
_LOOPBACK = f"http://127.0.0.1:{config.DEFAULT_PORT}"


def read_token(environ: Mapping[str, str] = os.environ) -> str:
    """Return the token that a protected server wants, "" if none is set or it cannot be read."""
    try:
        return tokens.shown_by_agent(environ)
    except ConfigError as error:
        log.warning("%s", error)
        return ""


class Servers:
    """The connections of this agent, one for each server that a job names."""

    def __init__(
        self, hello: wire.Hello, desk: CommandDesk, jobs: Callable[[], Iterable[LocalJob]], local: LocalServer
    ) -> None:
        self._hello = hello
        self._desk = desk
        self._jobs = jobs
        self._local = local
        self._token = read_token()
        self._uplinks: dict[str, tuple[Uplink, asyncio.Task[None]]] = {}
        self._starting: asyncio.Task[None] | None = None
        self._telling: set[asyncio.Task[None]] = set()

    def of(self, job: LocalJob) -> Uplink:
        """Return the way to a job's server, dialling it if it is a new one."""
        known = self._uplinks.get(job.server)
        if known is None:
            uplink = Uplink(job.server, self._hello, self._token)
            callbacks = Callbacks(
                picture=lambda: self._picture(uplink),
                command=lambda command: self._desk.take(uplink, command),
                failed=lambda failure: self._failed(uplink, failure),
            )
            known = (uplink, asyncio.create_task(uplink.run(callbacks)))
            self._uplinks[job.server] = known
        return known[0]

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
        await asyncio.gather(*self._telling, return_exceptions=True)
        self._uplinks.clear()
        await self._local.stop()

    def _jobs_of(self, uplink: Uplink) -> list[LocalJob]:
        return [job for job in self._jobs() if job.server == uplink.name]

    def _picture(self, uplink: Uplink) -> Iterable[News]:
        now_ns = time.monotonic_ns()
        for job in self._jobs_of(uplink):
            yield job.announce()
            yield job.digest(now_ns)
            facts = job.all_facts()
            if facts.alike or facts.joined:
                yield facts

    def _failed(self, uplink: Uplink, failure: Failure) -> None:
        """Start a server of our own where that is the answer, or tell the user once."""
        named = any(job.server_named for job in self._jobs_of(uplink))
        if named or failure.answer is Answer.REFUSAL:
            self._complain(uplink, failure)
        elif self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._serve_ourselves(uplink, failure))

    async def _serve_ourselves(self, uplink: Uplink, failure: Failure) -> None:
        here = await is_this_host(uplink.name)
        port = wanted_port(failure.answer, named=False, here=here)
        if port is None or any(job.spans_nodes() for job in self._jobs_of(uplink)):
            self._complain(uplink, failure)
        elif self._local.alive and not uplink.url.endswith(f":{self._local.port}"):
            uplink.redirect(f"http://127.0.0.1:{self._local.port}")
        elif uplink.url == uplink.name and not uplink.url.startswith(("http://127.0.0.1:", "http://localhost:")):
            uplink.redirect(_LOOPBACK)  # another agent of this node may have started one there
        elif sentence := missing_parts() or await self._local.start(port):
            log.warning("%s", sentence)
            self._tell(uplink, sentence)
        else:
            uplink.redirect(f"http://127.0.0.1:{self._local.port}")

    def _complain(self, uplink: Uplink, failure: Failure) -> None:
        """Tell the user: at once of a server that will not do, later of one that may still come."""
        patient = failure.answer is Answer.NOBODY
        if not patient or (not uplink.reached and uplink.failing_s() >= COMPLAIN_S):
            self._tell(uplink, failure.sentence)

    def _tell(self, uplink: Uplink, sentence: str) -> None:
        for job in self._jobs_of(uplink):
            task = asyncio.create_task(put_on_terminal(job, f"ncclwatch: {sentence}\n"))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)
