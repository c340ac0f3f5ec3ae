"""Keeps the other users of a machine away from a server that is only for the user who started it.

On the loopback address no token need be set, and every user of the machine can connect. There the kernel is asked who
holds the other end of each connection: this user is served, anybody else reads one sentence. Root is anybody else: uid
0 is also root of a container that shares this network and has no rights here, and an unprivileged server cannot tell
the two apart. A browser that comes through `ssh -L` is its user's, whose sshd dials. What shows no state of a job, to
probes, stays open to all.
"""

import asyncio
import logging
import os

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ncclwatch.contract import config
from ncclwatch.contract.network import peer_uid

NEIGHBOURS = "neighbours_of_this_server"  # name of the `Neighbours` in the state of the application's lifespan
LEADER_PATH = "/leaderz"  # which of several servers leads
OPEN_PATHS = frozenset({"/healthz", "/readyz", LEADER_PATH})
LOGGED_MAX = 16  # users of whose refusal the log tells

_HEADERS = {"connection": "close", config.FOREIGN_HEADER: "1"}
_log = logging.getLogger("ncclwatch.server")


class Neighbours:
    """Who of this machine may connect. Where tokens are set as well, they decide on whom the kernel does not know."""

    def __init__(self, *, private: bool, guarded: bool, users: frozenset[int] = frozenset()) -> None:
        self._private = private  # only for the user who started it, and for `users`
        self._guarded = guarded
        self._users = users | {os.geteuid()}
        self._logged: set[int | None] = set()

    def refusal(self, transport: asyncio.Transport) -> str:
        """Return the sentence for whoever is at the other end of a new connection, "" if that may come in."""
        if not self._private:
            return ""
        local, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        end = peer_uid.other_end(local[:2], peer[:2]) if local and peer else None
        if end is not None and end.held and end.uid in self._users:
            return ""
        if self._guarded and (end is None or not end.held):
            return ""
        uid = end.uid if end is not None and end.held else None
        self._tell(uid)
        return _words(uid)

    def _tell(self, uid: int | None) -> None:
        if uid not in self._logged and len(self._logged) < LOGGED_MAX:
            self._logged.add(uid)
            _log.warning("refused a connection of %s", "an unknown user" if uid is None else f"uid {uid}")


class Refusal:
    """The application as a stranger sees it: one sentence, and signs of life."""

    def __init__(self, app: ASGIApp, sentence: str) -> None:
        self._app = app
        self._sentence = sentence

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, unless tokens do not guard it either."""
        if scope["type"] == "http" and scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
        else:
            await JSONResponse({"detail": self._sentence}, status_code=403, headers=_HEADERS)(scope, receive, send)


def as_upgrade_refused(sentence: str) -> bytes:
    """Return the answer to a stranger's request for a WebSocket."""
    body = sentence.encode("ascii", "backslashreplace")
    head = (
        "HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain; charset=utf-8\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n{config.FOREIGN_HEADER}: 1\r\n\r\n"
    )
    return head.encode() + body


def _words(uid: int | None) -> str:
    who = "the user of this connection is unknown" if uid is None else f"this connection is of uid {uid}"
    if uid == 0:
        who += ", which a container that shares this network may be as well"
    return (
        f"this server has no token for others: it serves only the user who started it (uid {os.geteuid()}), and {who}; "
        f"ask as that user, or start it with {config.ENV_TOKEN} for several users, or with --allow-user for one more"
    )
