"""Serves the application: uvicorn with the settings that were measured to be cheapest."""

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass

import uvicorn
import uvloop
from fastapi import FastAPI
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE

from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.machine.liveness import EXIT_STOOD_STILL
from ncclwatch.contract.words.console import put
from ncclwatch_server.ingest.websocket import AgentLine
from ncclwatch_server.runtime import lifetime
from ncclwatch_server.runtime.heap import give_back_large_blocks
from ncclwatch_server.security.crowd import Crowd, Dropped, Seat, raise_limit, room
from ncclwatch_server.serving.accepting import Acceptor
from ncclwatch_server.serving.slow_clients import PatientHttp
from ncclwatch_server.watch.tick import Watch

log = logging.getLogger("ncclwatch.server")

Until = Callable[[], Coroutine[None, None, None]]

# For so long a thread that computes may keep the event loop from going on, where Python allows 5 ms. The store's rows,
# scrapes and pages are made in threads: with 1000 big incidents being written, a callback was late by 11 ms in the
# median and is by 0.8 ms.
SWITCH_S = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """What the server shows to prove who it is."""

    certificate: str  # path of a PEM file, with the chain
    key: str  # path of a PEM file; "": in the same file


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Where to listen and for how long."""

    host: str
    port: int  # 0: a free one
    ephemeral: bool
    ready_fd: int | None
    parent: int | None
    tls: Tls | None = None
    trusted: tuple[str, ...] = ()  # addresses of proxies that are believed
    remote: "Remote | None" = None
    stand_by: bool = False  # with a parent: it ends with that, and not when no agent is there
    announced: bool = False  # where it listens has been said


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Where agents of other nodes come in: they must show a token, and nothing else is served there."""

    listener: socket.socket
    context: ssl.SSLContext
    certificate: str  # PEM

    @classmethod
    def open(cls, host: str) -> "Remote":
        """Return one at a free port of an address, with a certificate of its own. Raises `ConfigError`."""
        from ncclwatch_server.serving.certificate import make  # it takes a tenth of a second to import

        context, certificate = make()
        return cls(listener=listen(host, 0), context=context, certificate=certificate)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises `ConfigError` with what to do."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host} ({error}); name an address of this machine with --host") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host} port {port} ({error.strerror}); is another ncclwatch-server running? "
            "Name another port with --port, or --port 0 for a free one"
        ) from error
    return listener


def inherited(descriptor: int) -> socket.socket:
    """Return a listening socket that whoever started this process has opened. Raises `ConfigError`."""
    try:
        listener = socket.socket(fileno=descriptor)
        if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise ConfigError(f"descriptor {descriptor} (--listen-fd) does not listen")
    except OSError as error:
        raise ConfigError(f"descriptor {descriptor} (--listen-fd) is no socket ({error.strerror})") from error
    listener.set_inheritable(False)
    return listener


def check_tls(certificate: str, key: str) -> Tls | None:
    """Return what to serve https:// with, None for http://. Raises `ConfigError` if it cannot be used."""
    if not certificate:
        if key:
            raise ConfigError("--tls-key needs --tls-cert, the certificate that belongs to it")
        return None
    try:
        # A password would be asked for on a terminal that nobody looks at.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key or None, password="")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        what = f"{certificate} and {key}" if key else certificate
        raise ConfigError(
            f"cannot serve TLS with {what} ({error}); --tls-cert wants a certificate with its chain in PEM form, "
            "--tls-key its key without a password"
        ) from error
    return Tls(certificate=certificate, key=key)


def serve(app: FastAPI, serving: Serving, listener: socket.socket, until: Until | None = None) -> None:
    """Serve until a signal, or until nobody needs it any more.

    `until` returns what is waited for as well: when it returns, the serving ends.
    """
    settings = uvicorn_settings(app, serving, http=PatientHttp)
    sys.setswitchinterval(SWITCH_S)
    give_back_large_blocks()
    # What is there by now stays: a collection that looks at all of it keeps every thread waiting for 20 ms and more.
    gc.collect()
    gc.freeze()
    gc.enable()  # off while the command imported and built all of this
    crowd = _make_room(app, serving)
    server = SeatedServer(settings, crowd, serving.remote)
    try:
        uvloop.run(_serve(server, serving, listener, app.state.watch, until))
    except SystemExit as error:  # of any callback: it ends the event loop
        if error.code:
            raise
        log.critical("the server ends by an exit that nobody asked for", exc_info=error)
        sys.exit(EXIT_STOOD_STILL)
    if server.blind:
        sys.exit(EXIT_STOOD_STILL)


def uvicorn_settings(app: ASGIApp, serving: Serving, http: type[PatientHttp]) -> uvicorn.Config:
    """Return how uvicorn serves an application here."""
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=http,
        ws=AgentLine,
        access_log=False,
        log_config=None,
        log_level="warning",
        lifespan="on",
        timeout_graceful_shutdown=1,
        server_header=False,
        proxy_headers=bool(serving.trusted),  # else uvicorn believes whoever connects from 127.0.0.1
        forwarded_allow_ips=list(serving.trusted),
        ssl_certfile=serving.tls.certificate if serving.tls else None,
        ssl_keyfile=(serving.tls.key or None) if serving.tls else None,
    )


def _make_room(app: FastAPI, serving: Serving) -> Crowd:
    """Return who counts connections, once this process may have as many descriptors as it can."""
    descriptors = raise_limit()
    crowd = Crowd(room(descriptors), many_from=serving.trusted)
    door, counters = app.state.door, app.state.watch.counters
    if crowd.agents_max < door.agents_max:
        door.agents_max, door.limit_words = crowd.agents_max, f"RLIMIT_NOFILE is {descriptors}: raise it with ulimit -n"
    counters.connections = lambda: (crowd.connections, crowd.newcomers, crowd.connections_max)
    counters.dropped = lambda: {why.value: crowd.dropped[why] for why in Dropped}
    return crowd


class SeatedServer(uvicorn.Server):
    """uvicorn, which here ends with code 0 on the signals that are meant to end it, and seats who comes."""

    def __init__(self, config: uvicorn.Config, crowd: Crowd, remote: Remote | None) -> None:
        super().__init__(config)
        self.crowd = crowd
        self._remote = remote

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve: as uvicorn does, but for who takes connections."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)

        http: type[PatientHttp] = self.config.http_protocol_class  # type: ignore[assignment]

        def seated(seat: Seat) -> PatientHttp:
            return http.seated(self.config, self.server_state, self.lifespan.state, seat)

        def remote(seat: Seat) -> PatientHttp:
            return http.remote(self.config, self.server_state, self.lifespan.state, seat)

        acceptors = [Acceptor(listener, seated, self.crowd, self.config.ssl) for listener in sockets or ()]
        if self._remote is not None:
            acceptors.append(Acceptor(self._remote.listener, remote, self.crowd, self._remote.context))
        self.servers = acceptors  # type: ignore[assignment]  # uvicorn closes them and waits for it
        for acceptor in acceptors:
            acceptor.start()
        self.started = True

    blind = False  # it does not know any more whether it is still needed

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)
        yield

    def stop(self) -> None:
        """Begin to end."""
        self.should_exit = True


async def _serve(
    server: SeatedServer, serving: Serving, listener: socket.socket, watch: Watch, until: Until | None
) -> None:
    tasks = [asyncio.create_task(announce(server, serving, listener))]
    if until is not None:
        tasks.append(asyncio.create_task(_then_stop(server, until())))
    if serving.parent is not None:
        tasks.append(asyncio.create_task(_then_stop(server, lifetime.parent_gone(serving.parent))))
    # With a parent it ends only then, since a training may prepare for minutes before its first rank. A server for
    # several nodes ends in both cases: without its agent the others would go on with it, though another one follows.
    if serving.ephemeral and not serving.stand_by and (serving.parent is None or serving.remote is not None):
        last_agent_s = lifetime.LAST_AGENT_S if serving.remote is None else lifetime.RESTART_S
        waiting = lifetime.unneeded(lambda: watch.agents, time.monotonic, last_agent_s=last_agent_s)
        tasks.append(asyncio.create_task(_then_stop(server, waiting)))
    try:
        await server.serve(sockets=[listener])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _then_stop(server: SeatedServer, condition: Coroutine[None, None, None]) -> None:
    try:
        await condition
    except Exception:  # a server that nobody would ever end is worse than none
        log.exception("whether this server is still needed cannot be known any more: it ends with %d", EXIT_STOOD_STILL)
        server.blind = True
    except asyncio.CancelledError:
        if not server.should_exit:  # nobody ends it: the task was lost
            log.critical("what ends this server was cancelled: it ends with %d, to be started again", EXIT_STOOD_STILL)
            server.blind = True
            server.stop()
        raise
    server.stop()


async def announce(server: SeatedServer, serving: Serving, listener: socket.socket) -> None:
    """Say where it listens, as soon as it answers."""
    while not server.started:
        await asyncio.sleep(0.01)
    port = listener.getsockname()[1]
    host = f"[{serving.host}]" if ":" in serving.host else serving.host
    scheme = "https" if serving.tls else "http"
    if serving.announced:
        return
    put(f"ncclwatch-server listens on {scheme}://{host}:{port}", error=True)
    log.info("up to %d agents and %d connections in all", server.crowd.agents_max, server.crowd.connections_max)
    if serving.ready_fd is not None:
        # Whoever waited may have gone.
        with contextlib.suppress(OSError):
            os.write(serving.ready_fd, _ready_words(port, serving.remote).encode())
            if serving.ready_fd > 2:  # a connection must not take the number of a standard stream
                os.close(serving.ready_fd)


def _ready_words(port: int, remote: Remote | None) -> str:
    """Return what whoever started this reads: the port, and on a second line, as JSON, what other nodes need."""
    if remote is None:
        return f"{port}\n"
    return f"{port}\n{json.dumps({'port': remote.listener.getsockname()[1], 'certificate': remote.certificate})}\n"
