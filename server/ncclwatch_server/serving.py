"""How is the application served? uvicorn with the settings that were measured to be cheapest."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass

import uvicorn
import uvloop
from fastapi import FastAPI

from ncclwatch.contract import config
from ncclwatch.contract.errors import ConfigError
from ncclwatch_server import lifetime
from ncclwatch_server.watch import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Where to listen and for how long."""

    host: str
    port: int  # 0: a free one
    ephemeral: bool
    ready_fd: int | None
    parent: int | None


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


def serve(app: FastAPI, serving: Serving, listener: socket.socket) -> None:
    """Serve until a signal, or until nobody needs it any more."""
    settings = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=config.MESSAGE_BYTES_MAX,
        ws_per_message_deflate=False,
        access_log=False,
        log_config=None,
        log_level="warning",
        lifespan="on",
        timeout_graceful_shutdown=1,
        server_header=False,
    )
    uvloop.run(_serve(_Server(settings), serving, listener, app.state.watch))


class _Server(uvicorn.Server):
    """uvicorn, which here ends with code 0 on the signals that are meant to end it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)
        yield

    def stop(self) -> None:
        """Begin to end."""
        self.should_exit = True


async def _serve(server: _Server, serving: Serving, listener: socket.socket, watch: Watch) -> None:
    tasks = [asyncio.create_task(_tell_ready(server, serving, listener))]
    if serving.parent is not None:
        tasks.append(asyncio.create_task(_then_stop(server, lifetime.parent_gone(serving.parent))))
    if serving.ephemeral:
        waiting = lifetime.unneeded(lambda: watch.agents, time.monotonic)
        tasks.append(asyncio.create_task(_then_stop(server, waiting)))
    try:
        await server.serve(sockets=[listener])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _then_stop(server: _Server, condition: Coroutine[None, None, None]) -> None:
    await condition
    server.stop()


async def _tell_ready(server: _Server, serving: Serving, listener: socket.socket) -> None:
    """Say where it listens, as soon as it answers."""
    while not server.started:
        await asyncio.sleep(0.01)
    port = listener.getsockname()[1]
    host = f"[{serving.host}]" if ":" in serving.host else serving.host
    print(f"ncclwatch-server listens on http://{host}:{port}", file=sys.stderr, flush=True)  # noqa: T201
    if serving.ready_fd is not None:
        # Whoever waited may have gone.
        with contextlib.suppress(OSError):
            os.write(serving.ready_fd, f"{port}\n".encode())
            if serving.ready_fd > 2:  # a connection must not take the number of a standard stream
                os.close(serving.ready_fd)
