"""Refuses before any route sees it: wrong tokens, pages of strangers, foreign names, bodies too long or too slow.

A token is judged before anything else, on every path that is not open to all: no other answer may tell a right one from
a wrong one. What is open to all is answered as if no token had been shown.

A browser sends what a stranger's page tells it to, from inside the network and with our cookie. It cannot hide
where the page came from: Origin is checked on WebSockets and on whatever changes something. Where no token is asked
for, the Host must be an address or a name of this machine, or a stranger could let a name of his own lead to it.
"""

import asyncio
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ncclwatch_server import limits
from ncclwatch_server.security.access import headers_of, recognised
from ncclwatch_server.security.neighbours import OPEN_PATHS
from ncclwatch_server.security.scopes import Access, Denial

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_CLOSE = {"connection": "close"}  # whatever of a refused body is still to come would be taken for the next request
_LOGIN, _ASSETS = "/login", "/static/"  # open to all, as what the login page is made of must be
_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}


class Boundary:
    """Looks at every request before the application does."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None, access: Access) -> None:
        self._app = app
        self._access = access
        self._hosts = hosts  # names to which it answers besides addresses; None: to any

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        found = None if _is_open(scope["path"]) else await recognised(HTTPConnection(scope), self._access)
        if isinstance(found, Denial):
            headers = headers_of(found) | _CLOSE
            await JSONResponse({"detail": found.sentence}, found.status, headers)(scope, receive, send)
            return
        changes = scope["method"] not in _READING
        known = found is not None or not self._access.guarded
        bytes_max = limits.BODY_BYTES_MAX if known else limits.STRANGE_BODY_BYTES_MAX
        status, sentence = problem(Headers(scope=scope), self._hosts, changes=changes, bytes_max=bytes_max)
        if sentence:
            await JSONResponse({"detail": sentence}, status_code=status, headers=_CLOSE)(scope, receive, send)
        else:
            await self._app(scope, _Body(receive, bytes_max).receive, send)


def _is_open(path: str) -> bool:
    """Whether a path is answered without a token."""
    return path in OPEN_PATHS or path == _LOGIN or path.startswith(_ASSETS)


class _Body:
    """The body of one request, as much of it as anyone may send in the time that anyone may take."""

    def __init__(self, receive: Receive, bytes_max: int) -> None:
        self._receive = receive
        self._bytes_max = bytes_max
        self._bytes = 0
        self._complete = False
        self._deadline = 0.0

    async def receive(self) -> Message:
        """Return the next part. Raises 413 or 408."""
        if self._complete:
            return await self._receive()
        now = asyncio.get_running_loop().time()
        self._deadline = self._deadline or now + limits.BODY_S
        try:
            message = await asyncio.wait_for(self._receive(), self._deadline - now)
        except asyncio.TimeoutError:
            late = f"the body did not come within {limits.BODY_S:.0f} s"
            raise HTTPException(408, late, headers=_CLOSE) from None
        self._bytes += len(message.get("body", b""))
        self._complete = message["type"] != "http.request" or not message.get("more_body", False)
        if self._bytes > self._bytes_max:
            raise HTTPException(413, _too_long(self._bytes_max), headers=_CLOSE)
        return message


def problem(
    headers: Headers, hosts: frozenset[str] | None, *, changes: bool, bytes_max: int = limits.STRANGE_BODY_BYTES_MAX
) -> tuple[int, str]:
    """Return the status and the sentence of a refusal by the headers of a request, (0, "") if there is none.

    Names are those of `Boundary`; `changes`: it does more than to read.
    """
    host = headers.get("host", "")
    if hosts is not None and not _is_ours(host, hosts):
        return 421, (
            f"this server has no token and does not answer to the name {host[:100]!r}; use its address, "
            "or start it with --allow-host, or with a token"
        )
    origin = headers.get("origin")
    if origin is not None and changes and not _same_place(origin, host):
        return 403, f"a page of {origin[:100]!r} may not do this on this server"
    length = headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > bytes_max:
        return 413, _too_long(bytes_max)
    return 0, ""


def _too_long(bytes_max: int) -> str:
    return f"a body of more than {bytes_max} bytes is not taken"


def _same_place(origin: str, host: str) -> bool:
    """Whether a page comes from where the request goes: the same host and port. "null" is nowhere."""
    try:
        page = urlsplit(origin)
        scheme = page.scheme if page.scheme in _PORTS else ""
        target = urlsplit(f"//{host}")
        default = _PORTS.get(scheme, 0)
        return bool(page.hostname) and (page.hostname, page.port or default) == (
            target.hostname,
            target.port or default,
        )
    except ValueError:
        return False


def _is_ours(host: str, names: frozenset[str]) -> bool:
    """Whether a Host header is an address, or one of our names."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in names or name.endswith(".localhost")
    return True
