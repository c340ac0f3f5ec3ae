"""Of what is the server made? One FastAPI application, and the watch that runs as long as it does."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator

from fastapi import FastAPI, WebSocket

from ncclwatch.contract import wire
from ncclwatch.contract.version import VERSION
from ncclwatch_server.access import TokenGate
from ncclwatch_server.api import add_routes
from ncclwatch_server.examiner import Judge
from ncclwatch_server.habits import Memory
from ncclwatch_server.incidents import IncidentBook
from ncclwatch_server.ingest import Door
from ncclwatch_server.judge import judge as default_judge
from ncclwatch_server.notify.notifier import Notifier
from ncclwatch_server.notify.records import Records
from ncclwatch_server.notify.routes import silence_routes
from ncclwatch_server.notify.silences import Silences
from ncclwatch_server.notify.targets import Targets
from ncclwatch_server.settings import Settings
from ncclwatch_server.store import NoStore, Store
from ncclwatch_server.watch import Watch

log = logging.getLogger("ncclwatch.server")


def create_app(settings: Settings, judge: Judge | None = None, targets: Targets | None = None) -> FastAPI:
    """Return the application. Raises `ConfigError` if the store cannot be opened, or a target of alerts not be used."""
    store = Store(settings.store) if settings.store else None
    book = IncidentBook(store.load() if store is not None else ())
    memory = Memory(store.lessons() if store is not None else {})
    records = Records(settings.store)
    silences = Silences(records.silences, records, time.time)
    notifier = Notifier(targets or Targets(), records, silences)
    watch = Watch(judge or default_judge, book, store or NoStore(), memory=memory, teller=notifier)
    watch.counters.notified = notifier.counts
    door = Door(watch, settings.token)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with store or contextlib.nullcontext(), records, notifier:
            notifier.recall(book.all())
            watching = asyncio.create_task(watch.run())
            watching.add_done_callback(_tell_failure)
            yield
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    app = FastAPI(
        title="ncclwatch",
        summary="Which rank, on which host, at which line, hangs the training",
        version=VERSION,
        lifespan=lifespan,
    )
    app.state.watch = watch
    add_routes(app, watch, store or NoStore(), settings.token)
    gate = TokenGate(settings.token)
    app.include_router(silence_routes(silences, gate, gate))

    @app.websocket(wire.AGENT_PATH)
    async def agent(socket: WebSocket) -> None:
        await door.serve(socket)

    return app


def _tell_failure(watching: "asyncio.Task[None]") -> None:
    if not watching.cancelled() and (error := watching.exception()) is not None:
        log.critical("the watch has ended: no job is judged any more; restart the server", exc_info=error)
