"""Gives a job on several nodes a server that nobody had to start: the agent beside rank 0 does.

Its address goes to the other nodes through the store that the job's ranks share, with its certificate and a token for
this job alone (`ncclwatch.rank.agents.store_exchange`). All agents of the job connect to it in the same way. It ends
when the last of them has gone.
"""

import asyncio
import math
import secrets
import socket
import time
from collections.abc import Collection

from ncclwatch.contract import config, wire
from ncclwatch_agent.following import Following
from ncclwatch_agent.log import log
from ncclwatch_agent.process.procfs import read_text
from ncclwatch_agent.ranks.jobs import JobKey, LocalJob
from ncclwatch_agent.uplink import invitation
from ncclwatch_agent.uplink.connection import Uplink
from ncclwatch_agent.uplink.invitation import Invitation
from ncclwatch_agent.uplink.local_server import LocalServer, is_this_host, missing_parts

STANDBY_LEFT_S = 30.0  # after the job has ended here, for nodes that still use a server which has taken over

_Launch = tuple[str, str, bool]  # name and instance of a job; whether the server stands by for it


class _Hosting:
    """The server of one job: its rank 0 is here, or it stands by for the node where that is."""

    def __init__(self, *, standby: bool = False) -> None:
        self.standby = standby
        self.over_at = 0.0  # monotonic, since when nobody here needs it; 0: somebody does
        self.server = LocalServer()
        self.token = secrets.token_urlsafe(32)
        self.invitation: Invitation | None = None
        self.starting: asyncio.Task[None] | None = None
        self.trouble = ""


class SharedServers:
    """What this node does for its jobs on several nodes. `tend` it each second, for each of them."""

    def __init__(self) -> None:
        self._hosting: dict[_Launch, _Hosting] = {}  # it outlives a restart, which is another job here
        self._following: dict[JobKey, Following] = {}
        self._seen: dict[JobKey, bytes] = {}
        self._stopping: set[asyncio.Task[None]] = set()

    @property
    def serving(self) -> bool:
        """Whether a server of ours runs: other nodes may need it when this one has no rank any more."""
        return any(each.server.alive for each in self._hosting.values())

    def tend(self, job: LocalJob, uplink: Uplink) -> str:
        """Start the server of a job, or look for its address. Returns a sentence for the job's terminal, or ""."""
        if job.ranks.get(0) is not None:
            return self._host(job, uplink)
        return self._follow(job.key).tend(job, uplink)

    def note(self, job: LocalJob, said: wire.Successor) -> None:
        """Note where to go when the job's server is lost."""
        self._follow(job.key).note(said)

    def predecessor(self, job: LocalJob) -> wire.Predecessor | None:
        """Return what to tell the server that has taken over, if that is here."""
        following = self._following.get(job.key)
        return following.predecessor(job.index) if following is not None else None

    async def stand_by(self, job: LocalJob) -> str:
        """Start a server that waits until the job's own one is lost. Returns how it is reached, "" if there is none."""
        if job.ranks.get(0) is not None:
            return ""
        hosting = self._hosting.setdefault(_hosted(job.key, standby=True), _Hosting(standby=True))
        if hosting.starting is None or (hosting.starting.done() and not hosting.server.alive):
            hosting.starting = asyncio.create_task(self._start(job, hosting))
        await asyncio.shield(hosting.starting)
        ready = hosting.server.alive and hosting.invitation is not None
        return invitation.encode(hosting.invitation).decode() if ready and hosting.invitation else ""

    def _follow(self, key: JobKey) -> Following:
        return self._following.setdefault(key, Following())

    def _host(self, job: LocalJob, uplink: Uplink) -> str:
        hosting = self._hosting.setdefault(_hosted(job.key), _Hosting())
        if hosting.starting is not None and not hosting.starting.done():
            return hosting.trouble
        if not hosting.server.alive:  # it bounds how often
            hosting.starting = asyncio.create_task(self._start(job, hosting))
        elif hosting.invitation is not None:
            uplink.invite(hosting.invitation)
            offer = invitation.encode(hosting.invitation)
            known = self._seen.get(job.key) == offer
            for rank in sorted(job.ranks)[: config.OFFERED_RANKS]:
                place, name = job.ranks[rank].place, job.ranks[rank].ring.file_name + config.OFFER_SUFFIX
                if not known or place.stat(name) is None:
                    place.write(name, offer)
            self._seen[job.key] = offer
        return hosting.trouble

    async def _start(self, job: LocalJob, hosting: _Hosting) -> None:
        trouble = missing_parts() or await hosting.server.start(
            0, remote=_any_address(), token=f"{hosting.token} name=this-job job={_pattern(job.key.job)}",
            stand_by=hosting.standby,
        )  # fmt: skip
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
        what = "a server that stands by" if hosting.standby else "its server"
        log.info("job %s: other nodes reach %s at port %d", job.key.job, what, hosting.server.remote_port)

    def forget(self, living: Collection[JobKey]) -> None:
        """Let go of jobs that are over here. A server of one goes on while other nodes use it: it ends by itself."""
        for key in [key for key in self._seen if key not in living]:
            del self._seen[key]
        needed = {_hosted(key, standby=standby) for key in living for standby in (False, True)}
        for launch, hosting in list(self._hosting.items()):
            if launch in needed:
                hosting.over_at = 0.0
            elif hosting.standby and hosting.server.alive:
                self._end_standby(launch, hosting)
            elif not hosting.server.alive and (hosting.starting is None or hosting.starting.done()):
                del self._hosting[launch]
        for key in [key for key in self._following if key not in living]:
            self._following.pop(key).close()

    def _end_standby(self, launch: _Launch, hosting: _Hosting) -> None:
        """End a server that stood by: at once, or, where it has taken over, when the others have had time to end."""
        used = any(each.elsewhere for key, each in self._following.items() if _hosted(key, standby=True) == launch)
        now = time.monotonic()
        hosting.over_at = hosting.over_at or (now if used else -math.inf)
        if now - hosting.over_at >= STANDBY_LEFT_S:
            del self._hosting[launch]
            stopping = asyncio.create_task(hosting.server.stop())
            self._stopping.add(stopping)
            stopping.add_done_callback(self._stopping.discard)

    async def close(self) -> None:
        """Stop all servers of ours."""
        for following in self._following.values():
            following.close()
        await asyncio.gather(*self._stopping, return_exceptions=True)
        for hosting in self._hosting.values():
            if hosting.starting is not None:
                hosting.starting.cancel()
                await asyncio.gather(hosting.starting, return_exceptions=True)
            await hosting.server.stop()
        self._hosting.clear()


def _hosted(key: JobKey, *, standby: bool = False) -> _Launch:
    return key.job, key.instance, standby


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
