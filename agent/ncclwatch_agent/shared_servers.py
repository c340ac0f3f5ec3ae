"""Gives a job on several nodes a server that nobody had to start: the agent beside rank 0 does.

Its address goes to the other nodes through the store that the job's ranks share, with its certificate and a token for
this job alone (`ncclwatch.rank.agents.store_exchange`). All agents of the job connect to it in the same way. It ends
when the last of them has gone.
"""

import asyncio
import secrets
import socket
from collections.abc import Collection

from ncclwatch.contract import config
from ncclwatch.contract.errors import WireError
from ncclwatch_agent.log import log
from ncclwatch_agent.process.procfs import read_text
from ncclwatch_agent.ranks.jobs import JobKey, LocalJob
from ncclwatch_agent.ranks.rank_rows import LocalRank
from ncclwatch_agent.uplink import invitation
from ncclwatch_agent.uplink.connection import Uplink
from ncclwatch_agent.uplink.invitation import Invitation
from ncclwatch_agent.uplink.local_server import LocalServer, is_this_host, missing_parts

LOST_S = 5.0  # without a connection, after which another server is looked for in the store


class _Hosting:
    """The server of one job whose rank 0 is here."""

    def __init__(self) -> None:
        self.server = LocalServer()
        self.token = secrets.token_urlsafe(32)
        self.invitation: Invitation | None = None
        self.starting: asyncio.Task[None] | None = None
        self.trouble = ""


class SharedServers:
    """What this node does for its jobs on several nodes. `tend` it each second, for each of them."""

    def __init__(self) -> None:
        self._hosting: dict[JobKey, _Hosting] = {}
        self._seen: dict[JobKey, bytes] = {}

    @property
    def serving(self) -> bool:
        """Whether a server of ours runs: other nodes may need it when this one has no rank any more."""
        return any(each.server.alive for each in self._hosting.values())

    def tend(self, job: LocalJob, uplink: Uplink) -> str:
        """Start the server of a job, or look for its address. Returns a sentence on what is missing here, or ""."""
        first = job.ranks.get(0)
        if first is not None:
            return self._host(job, first, uplink)
        if not uplink.connected:
            self._look(job, uplink)
        return ""

    def _host(self, job: LocalJob, first: LocalRank, uplink: Uplink) -> str:
        hosting = self._hosting.setdefault(job.key, _Hosting())
        if hosting.starting is not None and not hosting.starting.done():
            return hosting.trouble
        if not hosting.server.alive:  # it bounds how often
            hosting.starting = asyncio.create_task(self._start(job, hosting))
        elif hosting.invitation is not None:
            uplink.invite(hosting.invitation)
            offer = invitation.encode(hosting.invitation)
            name = first.ring.file_name + config.OFFER_SUFFIX
            if self._seen.get(job.key) != offer or first.place.stat(name) is None:
                first.place.write(name, offer)
                self._seen[job.key] = offer
        return hosting.trouble

    async def _start(self, job: LocalJob, hosting: _Hosting) -> None:
        trouble = missing_parts() or await hosting.server.start(
            0, remote=_any_address(), token=f"{hosting.token} name=this-job job={_pattern(job.key.job)}"
        )
        if trouble and trouble != hosting.trouble:
            log.warning("%s", trouble)
        hosting.trouble = trouble
        if trouble:
            return
        master = job.store_host
        hosting.invitation = Invitation(
            hosts=invitation.hosts_of_this_node(master if await is_this_host(f"http://{_bracketed(master)}") else ""),
            port=hosting.server.remote_port, certificate=hosting.server.certificate, token=hosting.token,
        )  # fmt: skip
        log.info("job %s: other nodes reach its server at port %d", job.key.job, hosting.server.remote_port)

    def _look(self, job: LocalJob, uplink: Uplink) -> None:
        """Take up the address that some rank of this node has found in the store; without a connection ask again."""
        for rank in job.ranks.values():
            name = rank.ring.file_name + config.FOUND_SUFFIX
            data = rank.place.read(name, config.OFFER_BYTES_MAX)
            if not data:
                continue
            if data != self._seen.get(job.key):
                self._seen[job.key] = data
                try:
                    uplink.invite(invitation.decode(data))
                except WireError as error:
                    log.warning("job %s: %s", job.key.job, error)
            elif uplink.failing_s() >= LOST_S:
                rank.place.unlink(name)
            return

    def forget(self, living: Collection[JobKey]) -> None:
        """Let go of jobs that are over here. A server of one goes on while other nodes use it: it ends by itself."""
        for key in [key for key in self._seen if key not in living]:
            del self._seen[key]
        for key in [key for key, each in self._hosting.items() if key not in living and not each.server.alive]:
            del self._hosting[key]

    async def close(self) -> None:
        """Stop all servers of ours."""
        for hosting in self._hosting.values():
            if hosting.starting is not None:
                hosting.starting.cancel()
                await asyncio.gather(hosting.starting, return_exceptions=True)
            await hosting.server.stop()
        self._hosting.clear()


def _any_address() -> str:
    """Return the address that stands for all of this node's, of IPv6 where that takes connections of IPv4 as well."""
    if socket.has_ipv6 and read_text("/proc/sys/net/ipv6/bindv6only").strip() == "0":
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::", 0))
        except OSError:
            return "0.0.0.0"
        return "::"
    return "0.0.0.0"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _pattern(name: str) -> str:
    """Return a pattern of a token that fits this name alone: special characters and spaces fit any one character."""
    return "".join("?" if character in "*?[], \t=" else character for character in name)
