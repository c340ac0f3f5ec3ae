"""Finds the server of a job on several nodes for a node that does not run it, and another one when that is lost.

The address of the first comes through the job's store. That server tells beforehand which node stands by. Whoever has
lost it goes there, and comes back as soon as the first one can be reached again, or another one is in the store: two
servers that each know half of a job are no good for long.
"""

import asyncio
import ipaddress
import time

from ncclwatch.contract import config, wire
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.model.job import Contact
from ncclwatch.contract.network.pinned_tls import trusting
from ncclwatch_agent.deadline import within
from ncclwatch_agent.log import log
from ncclwatch_agent.ranks.jobs import LocalJob
from ncclwatch_agent.uplink import invitation
from ncclwatch_agent.uplink.connection import Uplink
from ncclwatch_agent.uplink.invitation import Invitation
from ncclwatch_agent.uplink.knocking import knock

LOST_S = 4.0  # without a connection, after which another server is looked for
OPEN_S_MAX = 3.0
PROBE_S = 10.0  # between two looks for the first one, at another one


class Following:
    """Which server the agent of one node goes to for one job. `tend` it each second."""

    def __init__(self) -> None:
        self._seen = b""
        self._first: Invitation | None = None
        self._successor: wire.Successor | None = None
        self._next: Invitation | None = None
        self._nodes: tuple[wire.KnownNode, ...] = ()
        self._lost_at = 0.0  # monotonic, when the first was heard last; 0: it is not lost
        self._contact = Contact.UNKNOWN  # what was seen of its host then
        self._asking: asyncio.Task[Contact] | None = None
        self._probe: asyncio.Task[bool] | None = None
        self._probed_at = 0.0

    @property
    def elsewhere(self) -> bool:
        """Whether it goes to the server that stood by."""
        return bool(self._lost_at)

    def note(self, said: wire.Successor) -> None:
        """Note where to go when the server is lost."""
        try:
            self._next = invitation.decode(said.offer.encode())
        except WireError as error:
            log.warning("a server named a standby that cannot be reached: %s", error)
            return
        if self._successor is None or self._successor.offer != said.offer:
            log.info("%s stands by for the server on %s", said.host, said.instead_of)
        self._successor = said
        self._nodes = said.nodes or self._nodes

    def tend(self, job: LocalJob, uplink: Uplink) -> str:
        """Go to the right server. Returns a sentence for the job's terminal, or ""."""
        self._look(job, uplink)
        if self.elsewhere and uplink.connected:
            self._look_back(uplink)
        elif uplink.connected:
            self._asking = None
        elif not self.elsewhere and self._first is not None and self._asking is None:
            self._asking = asyncio.create_task(_contact_to(self._first))
        elif uplink.failing_s() >= LOST_S:
            return self._turn(job, uplink)
        return ""

    def predecessor(self, index: int) -> wire.Predecessor | None:
        """Return what to tell a server that has taken over here, None if none has."""
        if not self._lost_at or self._successor is None or not self._nodes:
            return None
        return wire.Predecessor(
            index=index, nodes=self._nodes, host=self._successor.instead_of,
            silent_s=time.monotonic() - self._lost_at, contact=self._contact,
        )  # fmt: skip

    def close(self) -> None:
        """Look for nothing any more."""
        for task in (self._probe, self._asking):
            if task is not None:
                task.cancel()

    def _look(self, job: LocalJob, uplink: Uplink) -> None:
        """Take up the address that a rank of this node has found in the store, the newest of several."""
        files = [(rank.place, rank.ring.file_name + config.FOUND_SUFFIX) for rank in job.ranks.values()]
        found = [(stat.st_mtime_ns, place, name) for place, name in files if (stat := place.stat(name)) is not None]
        if not found:
            return
        _, place, name = max(found, key=lambda each: each[0])
        data = place.read(name, config.OFFER_BYTES_MAX)
        if not data or data == self._seen:
            return
        self._seen = data
        try:
            self._first = invitation.decode(data)
        except WireError as error:
            log.warning("job %s: %s", job.key.job, error)
        else:
            self._return(uplink, self._first)

    def _turn(self, job: LocalJob, uplink: Uplink) -> str:
        """Go to the other server: this one does not answer. And ask the store, which may know a third."""
        for rank in job.ranks.values():
            rank.place.unlink(rank.ring.file_name + config.FOUND_SUFFIX)
        if self.elsewhere and self._first is not None:
            self._return(uplink, self._first)
            return ""
        if self._next is None or self._successor is None:
            return ""
        if self._asking is not None and not self._asking.done():
            return ""
        asked, self._asking = self._asking, None
        self._contact = asked.result() if asked is not None and not asked.cancelled() else Contact.UNKNOWN
        self._lost_at = uplink.heard_at or time.monotonic() - uplink.failing_s()
        self._probed_at = time.monotonic()
        lost, successor = self._successor.instead_of, self._successor
        log.warning("job %s: its server on %s is lost; going to the one on %s", job.key.job, lost, successor.host)
        uplink.invite(self._next)
        if not self._nodes:
            return ""
        silent_s = time.monotonic() - self._lost_at
        return (
            f"the server of this job, on {lost}, has not answered for {silent_s:.0f} s: the one that stood by on "
            f"{successor.host} takes over"
        )

    def _return(self, uplink: Uplink, first: Invitation) -> None:
        if self.elsewhere:
            log.info("going back to the server at %s", first.url(0))
        self._lost_at = 0.0
        uplink.invite(first)

    def _look_back(self, uplink: Uplink) -> None:
        """Go back to the first server once it can be reached again."""
        if self._probe is not None and self._probe.done():
            reached, self._probe = not self._probe.cancelled() and self._probe.result(), None
            if reached and self._first is not None:
                self._return(uplink, self._first)
        elif self._probe is None and self._first is not None and time.monotonic() - self._probed_at >= PROBE_S:
            self._probed_at = time.monotonic()
            self._probe = asyncio.create_task(_is_there(self._first))


async def _contact_to(server: Invitation) -> Contact:
    """Return whether the kernel of a server's host answers, at any of its addresses."""
    found = await asyncio.gather(*(knock(host, server.port, OPEN_S_MAX) for host in server.hosts if _is_address(host)))
    order = (Contact.ACKNOWLEDGES, Contact.CLOSED, Contact.MUTE)
    return next((each for each in order if each in found), Contact.UNKNOWN)


def _is_address(host: str) -> bool:
    """Whether it is no name: to look one up takes long, or fails, for reasons of its own."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


async def _is_there(server: Invitation) -> bool:
    """Whether the server of an invitation takes a connection, and proves who it is."""
    for host in server.hosts:
        try:
            _, writer = await within(
                OPEN_S_MAX,
                asyncio.open_connection(host, server.port, ssl=trusting(server.certificate), server_hostname=host),
            )
        except (OSError, asyncio.TimeoutError, ValueError):
            continue
        writer.close()
        return True
    return False
