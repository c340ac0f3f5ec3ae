"""What a target of alerts answers over HTTP: raw bytes, of which nothing is believed."""

import asyncio
import atexit
import contextlib
import functools
import math
from collections.abc import Hashable

import httpx

from ncclwatch_server.notify.delivery import Refused, Undelivered
from ncclwatch_server.notify.posting import RETRY_AFTER_S_MAX, open_client, post
from tests.fuzz import mutation
from tests.fuzz.engine import Broken, Surface

SECRET = "T0-SECRET-PATH"
ANSWER_S_MAX = 20.0


def check(data: bytes) -> Hashable:
    """Post to a target that answers with these bytes and hangs up: delivered, refused or to be tried again."""
    loop, client = _scene()
    return loop.run_until_complete(asyncio.wait_for(_posted(client, data), ANSWER_S_MAX))


@functools.cache
def _scene() -> tuple[asyncio.AbstractEventLoop, httpx.AsyncClient]:
    """Return a loop and the client of all targets: to make one takes longer than to post."""
    loop, client = asyncio.new_event_loop(), open_client()

    def end() -> None:
        loop.run_until_complete(client.aclose())
        loop.close()

    atexit.register(end)
    return loop, client


async def _posted(client: httpx.AsyncClient, data: bytes) -> Hashable:
    first = await _answered(client, data)
    if await _answered(client, _answer("204 No Content")) != "delivered":
        raise Broken("after this answer the next message does not arrive")
    return first


async def _answered(client: httpx.AsyncClient, data: bytes) -> Hashable:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(data)
            await writer.drain()
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        await post(client, f"http://127.0.0.1:{port}/{SECRET}", b"{}")
    except (Undelivered, Refused) as error:
        if SECRET in str(error) or len(str(error)) > 1000:
            raise Broken(f"a sentence tells too much: {error}") from error
        after_s = error.retry_after_s if isinstance(error, Undelivered) else 0.0
        if not (math.isfinite(after_s) and 0 <= after_s <= RETRY_AFTER_S_MAX):
            raise Broken(f"it is tried again after {after_s} s") from error
        return type(error).__name__, str(error)[:20], after_s
    finally:
        server.close()
    return "delivered"


def _answer(status: str, *headers: str, body: str = "") -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", *headers, "", body)).encode()


SURFACE = Surface(
    name="notify_answers",
    seeds=(
        _answer("200 OK", "Content-Length: 2", body="ok"),
        _answer("204 No Content"),
        _answer("429 Too Many Requests", "Retry-After: 7", "Content-Length: 4", body="slow"),
        _answer("503 Unavailable", "Retry-After: Wed, 21 Oct 2026 07:28:00 GMT", "Connection: close"),
        _answer("302 Found", "Location: http://169.254.169.254/latest", "Content-Length: 0"),
        _answer("400 Bad", "Transfer-Encoding: chunked", body="4\r\nnope\r\n0\r\n\r\n"),
        _answer("200 OK", "Content-Encoding: gzip", "Set-Cookie: a=b; Domain=x", "Content-Length: 3", body="abc"),
        _answer("100 Continue") + _answer("500 Error", "Content-Type: text/html; charset=utf-7", body="<html>"),
    ),
    mutate=mutation.of_bytes,
    check=check,
)
