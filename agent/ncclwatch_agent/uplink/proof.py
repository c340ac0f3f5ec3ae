"""Opens the connection to a server that nobody named, and proves whose it is before a byte is sent.

Any user of this machine may listen on the default port, and any machine call itself the master. A token or a word about
a job goes to neither: the kernel says which user has accepted the connection, and only this one or root is believed.
On another machine nobody can say it, so that a server there must be named.
"""

import asyncio
import contextlib
import socket
from urllib.parse import urlsplit

from ncclwatch.contract import config
from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.network import peer_uid
from ncclwatch_agent.deadline import within
from ncclwatch_agent.uplink.local_server import is_this_host

HOW_TO_SHARE = (
    f"start ncclwatch-server on a host that all nodes reach, with a token in {config.ENV_TOKEN}, and set that token "
    f"and {config.ENV_SERVER} in the job's environment on every node"
)


class Elsewhere(NcclwatchError):
    """A server that nobody named is on another machine. The message says what to do."""


async def connect_to_ours(url: str, wait_s: float) -> socket.socket:
    """Return a connection to a server of this user or of root.

    Raises `Elsewhere`, `NotOurs`, and OSError or TimeoutError where nobody answers.
    """
    if not await is_this_host(url):
        raise Elsewhere(
            f"nobody named a server for this job, and one at {url}, on another host, cannot prove whose it is; "
            f"{HOW_TO_SHARE}"
        )
    parts = urlsplit(url)
    sock = await within(wait_s, connect(parts.hostname or "", parts.port or 80))
    try:
        peer_uid.check(url, await end_of(sock))
    except BaseException:
        sock.close()
        raise
    return sock


async def connect(host: str, port: int) -> socket.socket:
    """Return a connection to the first address of a host that takes one. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        with contextlib.ExitStack() as failed:
            failed.callback(sock.close)
            try:
                await loop.sock_connect(sock, address)
            except OSError as error:
                failure = error
                continue
            failed.pop_all()
        return sock
    raise failure


async def end_of(sock: socket.socket) -> peer_uid.End | None:
    """Return who has accepted a connection; if that takes too long, an end that nobody holds."""
    ends = peer_uid.addresses(sock)
    end = peer_uid.other_end(*ends)
    for pause_s in peer_uid.pauses():
        if end is None or end.held:
            break
        await asyncio.sleep(pause_s)
        end = peer_uid.other_end(*ends)
    return end
