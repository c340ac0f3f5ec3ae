"""Serves as long as another server leads: passes requests on, and sends agents to the leader."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvloop
from starlette.applications import Starlette
from starlette.types import ASGIApp

from ncclwatch.contract import config
from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.machine.liveness import Guard
from ncclwatch_server.leadership.elector import RENEW_S, Elector
from ncclwatch_server.security.crowd import Crowd, raise_limit, room
from ncclwatch_server.security.neighbours import NEIGHBOURS, Neighbours, as_upgrade_refused
from ncclwatch_server.serving.relay import open_client, relay_app
from ncclwatch_server.serving.slow_clients import PatientHttp
from ncclwatch_server.serving.uvicorn_server import SeatedServer, Serving, announce, uvicorn_settings

log = logging.getLogger("ncclwatch.server")

_ELECTOR = "elector"  # its name in the state of the application's lifespan


class FollowerHttp(PatientHttp):
    """HTTP of a server that follows. An agent is told who leads."""

    def handle_websocket_upgrade(self) -> None:
        """Refuse an agent, and name the leader."""
        self._upgraded = True
        self._have_head()
        elector: Elector = self.app_state[_ELECTOR]
        said = as_upgrade_refused(self._refusal) if self._refusal else _elsewhere(elector.leader_url)
        self.transport.write(said)
        self.transport.close()


def _elsewhere(leader: str) -> bytes:
    body = b"another server leads" if leader else b"no server leads yet"
    named = f"{config.LEADER_HEADER}: {leader}\r\n" if leader else ""
    head = (
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\n"
        f"content-length: {len(body)}\r\nretry-after: 1\r\nconnection: close\r\n{named}\r\n"
    )
    return head.encode("ascii", "ignore") + body


def follow(
    elector: Elector, serving: Serving, listener: socket.socket, neighbours: Neighbours,
    guard: Callable[[ASGIApp], ASGIApp],
) -> bool:  # fmt: skip
    """Serve until this server leads. Returns False if a signal ended it before. Raises `ConfigError`.

    `guard` puts in front of the application what refuses requests by their headers.
    """
    return uvloop.run(_follow(elector, serving, listener, neighbours, guard))


async def _follow(
    elector: Elector, serving: Serving, listener: socket.socket, neighbours: Neighbours,
    guard: Callable[[ASGIApp], ASGIApp],
) -> bool:  # fmt: skip
    client = open_client()

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[dict[str, Any]]:
        async with client:
            yield {NEIGHBOURS: neighbours, _ELECTOR: elector}

    settings = uvicorn_settings(guard(relay_app(elector, lifespan, client)), serving, http=FollowerHttp)
    server = SeatedServer(settings, Crowd(room(raise_limit()), many_from=serving.trusted), None)
    electing = elector.life.task = asyncio.create_task(_elect(elector, server))
    announcing = asyncio.create_task(announce(server, serving, listener))
    try:
        with Guard([elector.life], log, who="ncclwatch-server"):
            await server.serve(sockets=[listener.dup()])  # uvicorn closes it
    finally:
        elector.life.task = None
        electing.cancel()
        announcing.cancel()
        ended, _ = await asyncio.gather(electing, announcing, return_exceptions=True)
    if isinstance(ended, ConfigError):
        raise ended
    return elector.lease is not None


async def _elect(elector: Elector, server: SeatedServer) -> None:
    """Go round until this server leads. Raises `ConfigError` for a database that it cannot use."""
    known = ""
    elector.life.began()
    while not server.should_exit:
        elector.life.went_round()
        try:
            if await asyncio.to_thread(elector.follow):
                break
        except ConfigError:
            server.stop()
            raise
        except Exception:
            log.exception("a round of the election failed in an unforeseen way; it is tried again")
        if elector.leader_url != known:
            known = elector.leader_url
            log.info("following the server at %s", known or "(none leads)")
        await asyncio.sleep(RENEW_S)
    server.stop()
