"""Asks torch's worker server in a rank: one HTTP request over its unix socket, bounded in time and size.

It answers from threads of its own in C++, also while the rank holds the GIL forever.
"""

import asyncio
import os
import socket
import struct

from ncclwatch.contract.network import sockets
from ncclwatch_agent.deadline import within

HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 16 * 1024 * 1024  # 2,000 operations, torch's default, take 1 MB
_CREDENTIALS = struct.Struct("iII")  # of a unix socket: pid, user, group


class Unheard(Exception):
    """Why a worker server was not heard, as the end of a sentence."""


async def ask(path: str, handler: str, deadline_s: float) -> bytes | None:
    """Return what a handler answers, None if this torch has no such handler. Raises `Unheard`."""
    try:
        return await within(deadline_s, _ask(path, handler))
    except asyncio.TimeoutError:
        raise Unheard(f"its worker server did not answer within {deadline_s:g} s") from None
    except FileNotFoundError:
        raise Unheard("it has no worker server") from None
    except (OSError, asyncio.IncompleteReadError) as error:
        raise Unheard(f"its worker server hung up ({error})") from None


async def _ask(path: str, handler: str) -> bytes | None:
    with sockets.short_path(path) as short:
        reader, writer = await asyncio.open_unix_connection(short, limit=HEAD_BYTES_MAX)
    try:
        if _peer(writer) != os.geteuid():
            raise Unheard("its worker server belongs to another user")
        request = (
            f"POST /handler/{handler} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        writer.write(request.encode())
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise Unheard("its worker server answers no HTTP") from None
        status, size = read_head(head)
        if status == 404:
            return None
        if status != 200:
            raise Unheard(f"its worker server answers HTTP {status}")
        if size > BODY_BYTES_MAX:
            raise Unheard(f"its answer of {size} bytes is longer than {BODY_BYTES_MAX}")
        return await reader.readexactly(size)
    finally:
        writer.close()


def _peer(writer: asyncio.StreamWriter) -> int:
    """Return the user at the other end: a socket's name says nothing of who listens."""
    other = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(other)[1])


def read_head(head: bytes) -> tuple[int, int]:
    """Return (status, bytes of the body) of an HTTP answer. Raises `Unheard`."""
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
        raise Unheard("its worker server answers no HTTP")
    for line in lines:
        name, _, value = line.partition(":")
        if name.lower() == "content-length" and value.strip().isdecimal():
            return int(words[1]), int(value)
    raise Unheard("its answer does not say how long it is")
