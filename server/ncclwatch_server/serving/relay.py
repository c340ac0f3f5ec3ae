"""Passes requests on to the server that leads, so that a reader may ask any of several servers.

What this server knows itself, its own health and figures, it answers itself. Tokens are checked by the leader.
"""

import logging
from collections.abc import AsyncIterator
from dataclasses import asdict

import httpx
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Lifespan

from ncclwatch.contract.network import tls
from ncclwatch.contract.version import VERSION
from ncclwatch_server.leadership.elector import Elector
from ncclwatch_server.leadership.roles import leader_route
from ncclwatch_server.runtime import loop_views

ANSWER_S = 30.0  # between two parts of an answer; streams of events have signs of life in between
DIAL_S = 3.0
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
# RFC 9110, section 7.6.1, and what says where a request goes
_NOT_PASSED = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
        "upgrade", "host", "origin", "expect", "forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host",
    }
)  # fmt: skip
_NOT_RETURNED = frozenset({"connection", "keep-alive", "transfer-encoding", "date", "server"})


class Relay:
    """Asks the leader what this server was asked."""

    def __init__(self, elector: Elector, client: httpx.AsyncClient) -> None:
        self._elector = elector
        self._client = client

    async def pass_on(self, request: Request) -> Response:
        """Return the leader's answer, as it comes."""
        leader = self._elector.leader_url
        if not leader or leader == self._elector.me.url:
            return _no_leader("no server leads at this moment; one takes over within seconds")
        headers = [(name, value) for name, value in request.headers.items() if name not in _NOT_PASSED]
        if request.client is not None:
            headers.append(("x-forwarded-for", request.client.host))
        target = leader.rstrip("/") + request.url.path + (f"?{request.url.query}" if request.url.query else "")
        asked = self._client.build_request(request.method, target, headers=headers, content=_body(request))
        try:
            answer = await self._client.send(asked, stream=True)
        except ClientDisconnect:
            return Response(status_code=499)
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            return _no_leader(f"the server that leads, {leader}, does not answer ({why}); another takes over")
        passed = StreamingResponse(_parts(answer), status_code=answer.status_code)
        passed.raw_headers = [
            (name.lower(), value) for name, value in answer.headers.raw if name.decode().lower() not in _NOT_RETURNED
        ]
        return passed

    async def healthz(self, _: Request) -> Response:
        """Return what this is, and whether it takes part in the election. A database that is away restarts nothing."""
        return self._health(loop_views.trouble_of(self._elector.life))

    async def readyz(self, _: Request) -> Response:
        """Return whether requests to this server are answered: whether there is a leader."""
        return self._health("" if self._elector.leader_url else "no server leads yet")

    def _health(self, lack: str) -> Response:
        said = {
            "service": "ncclwatch", "version": VERSION, "detail": lack,
            "store_works": not self._elector.problem,
            "loops": [asdict(loop_views.view_of(self._elector.life))],
        }  # fmt: skip
        return JSONResponse(said, 503 if lack else 200, {"cache-control": "no-store"})

    async def metrics(self, _: Request) -> Response:
        """Return the figures of this server; those of the jobs are the leader's, which is scraped as well."""
        registry = CollectorRegistry()
        Gauge("ncclwatch_server_leads", "1 on the server that judges, 0 on one that follows.", registry=registry)
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def relay_app(elector: Elector, lifespan: Lifespan[Starlette], client: httpx.AsyncClient) -> Starlette:
    """Return the application of a server that follows."""
    relay = Relay(elector, client)
    return Starlette(
        lifespan=lifespan,
        routes=[
            Route("/healthz", relay.healthz),
            Route("/readyz", relay.readyz),
            leader_route(elector),
            Route("/metrics", relay.metrics),
            Route("/{path:path}", relay.pass_on, methods=_METHODS),
        ],
    )


def open_client() -> httpx.AsyncClient:
    """Return the client that asks the leader: no proxy, no redirects, no cookies of its own. Raises `ConfigError`."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log each request
    return httpx.AsyncClient(
        verify=tls.trust(),
        timeout=httpx.Timeout(ANSWER_S, connect=DIAL_S),
        follow_redirects=False,
        trust_env=False,
        limits=httpx.Limits(max_connections=256, max_keepalive_connections=16),
    )


def _no_leader(why: str) -> Response:
    return JSONResponse({"detail": f"{why}; ask again"}, 503, {"retry-after": "1"})


async def _body(request: Request) -> AsyncIterator[bytes]:
    async for part in request.stream():
        yield part


async def _parts(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for part in answer.aiter_raw():
            yield part
    except httpx.HTTPError:
        return  # the leader went: the reader sees an answer that is cut off, and asks again
    finally:
        await answer.aclose()
