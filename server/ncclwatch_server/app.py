"""Of what is the server made? One FastAPI application, and the watch that runs as long as it does."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from fastapi import FastAPI, WebSocket

from ncclwatch.contract import wire
from ncclwatch.contract.version import VERSION
from ncclwatch_server.access import TokenGate
from ncclwatch_server.api import Reader, add_routes
from ncclwatch_server.examiner import Judge
from ncclwatch_server.habits import Memory
from ncclwatch_server.incidents import IncidentBook
from ncclwatch_server.ingest import Door
from ncclwatch_server.judge import judge as default_judge
from ncclwatch_server.offloop import Desk
from ncclwatch_server.settings import Settings
from ncclwatch_server.store import NoStore, Store
from ncclwatch_server.ui.board import Board
from ncclwatch_server.ui.login import PageGate
from ncclwatch_server.ui.pages import Site, add_pages, job_parts
from ncclwatch_server.watch import Watch

log = logging.getLogger("ncclwatch.server")


def create_app(settings: Settings, judge: Judge | None = None) -> FastAPI:
    """Return the application. Raises `ConfigError` if the store cannot be opened."""
    store = Store(settings.store) if settings.store else None
    book = IncidentBook(store.load() if store is not None else ())
    memory = Memory(store.lessons() if store is not None else {})
    watch = Watch(judge or default_judge, book, store or NoStore(), memory=memory)
    door = Door(watch, settings.token)
    desk = Desk()
    board = Board(watch, desk, job_parts)
    reader = Reader(watch, store or NoStore(), desk)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with store or contextlib.nullcontext():
            watching = asyncio.create_task(watch.run())
            watching.add_done_callback(_tell_failure)
            painting = asyncio.create_task(board.run())
            yield
            for task in (watching, painting):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            desk.close()

    app = FastAPI(
        title="ncclwatch",
        summary="Which rank, on which host, at which line, hangs the training",
        version=VERSION,
        lifespan=lifespan,
        docs_url=None,  # they load scripts from other hosts, which a cluster may not reach
        redoc_url=None,
    )
    app.state.watch = watch
    add_routes(app, reader, store or NoStore(), settings.token)
    add_pages(
        app,
        Site(
            reader=reader,
            board=board,
            settings=settings,
            losses=store or NoStore(),
            gate=PageGate(check=TokenGate(settings.token)),
        ),
    )

    @app.websocket(wire.AGENT_PATH)
    async def agent(socket: WebSocket) -> None:
        await door.serve(socket)

    return app


def _tell_failure(watching: "asyncio.Task[None]") -> None:
    if not watching.cancelled() and (error := watching.exception()) is not None:
        log.critical("the watch has ended: no job is judged any more; restart the server", exc_info=error)
