"""Builds the FastAPI application, and the loops that run as long as it does."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable

from fastapi import Depends, FastAPI

from ncclwatch.contract.machine.liveness import Guard, LoopLife, keep
from ncclwatch.contract.version import VERSION
from ncclwatch_server import limits
from ncclwatch_server.http.heads import HeadAsGet
from ncclwatch_server.http.operator_routes import add_operating_routes
from ncclwatch_server.http.queries import Reader
from ncclwatch_server.http.routes import add_routes
from ncclwatch_server.http.trace_routes import trace_routes
from ncclwatch_server.incidents.book import IncidentBook
from ncclwatch_server.ingest.conversation import Host
from ncclwatch_server.ingest.session import Door, RemoteEntrance
from ncclwatch_server.ingest.websocket import HOST, REMOTE_HOST, AgentLine
from ncclwatch_server.judge import judge as default_judge
from ncclwatch_server.leadership.elector import Elector
from ncclwatch_server.leadership.roles import leader_route
from ncclwatch_server.metrics.loop_lag import measure
from ncclwatch_server.notify.notifier import Notifier
from ncclwatch_server.notify.records import Records
from ncclwatch_server.notify.routes import silence_routes
from ncclwatch_server.notify.silences import Silences
from ncclwatch_server.notify.targets import Targets
from ncclwatch_server.security.access import TOLD_EVERY_S, AuditedGate, Gate, tell_guesses, tell_of_guesses
from ncclwatch_server.security.audit import Act, AuditTrail
from ncclwatch_server.security.boundary import Boundary
from ncclwatch_server.security.neighbours import NEIGHBOURS, Neighbours
from ncclwatch_server.security.scopes import Access, Lack, Scope
from ncclwatch_server.settings import Settings
from ncclwatch_server.state.waits.history import Memory
from ncclwatch_server.store.incident_store import Store
from ncclwatch_server.store.no_store import NoStore
from ncclwatch_server.ui.board import Board
from ncclwatch_server.ui.login import PageGate
from ncclwatch_server.ui.pages import Site, add_pages, job_parts
from ncclwatch_server.watch.examiner import Judge
from ncclwatch_server.watch.succession import Successions
from ncclwatch_server.watch.tick import Watch

log = logging.getLogger("ncclwatch.server")


def create_app(
    settings: Settings, judge: Judge | None = None, targets: Targets | None = None, elector: Elector | None = None
) -> FastAPI:
    """Return the application. `elector`: that of one of several servers, which leads.

    Raises `ConfigError` if the store cannot be opened, or a target of alerts not be used.
    """
    term = elector.term if elector is not None else 0
    store = Store(settings.store, settings.keeping, term) if settings.store else None
    book = IncidentBook(store.load() if store is not None else ())
    memory = Memory(store.lessons() if store is not None else {})
    kept = store or NoStore()
    records = Records(settings.store, term)
    silences = Silences(records.silences, records, time.time)
    records.recalled = silences.recall
    notifier = Notifier(targets or Targets(), records, silences)
    watch = Watch(judge or default_judge, book, kept, memory=memory, keeping=settings.keeping, teller=notifier)
    if elector is not None:
        watch.leads = notifier.leads = watch.counters.leads = lambda: elector.leads
    watch.counters.notified = notifier.counts
    watch.counters.unrecorded = lambda: records.dropped
    access, trail = settings.access(), AuditTrail(kept)
    remote = Access(settings.remote)
    watch.counters.denied = lambda: {lack.value: access.denials[lack] + remote.denials[lack] for lack in Lack}
    watch.successions = Successions() if settings.remote else None
    door = Door(watch, access, settings.hosts, settings.trusted, remote)
    private, guarded = settings.private or not access.guarded, access.guarded
    neighbours = Neighbours(private=private, guarded=guarded, users=settings.users)
    reader = Reader(watch, kept)
    board = Board(watch, reader.desk, job_parts)
    lag = LoopLife("lag", age_s_max=limits.PART_STILL_S, ends_s=limits.PART_ENDS_S)
    guesses = LoopLife("guesses", age_s_max=3 * TOLD_EVERY_S, ends_s=3 * TOLD_EVERY_S + limits.PART_ENDS_S)
    parts = (watch, board, store, records, notifier, reader.desk, reader.archivist, door.desk)
    watch.counters.lives = (*(part.life for part in parts if part is not None), lag, guesses)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Host[AgentLine] | Neighbours]]:
        if store is not None:
            loop = asyncio.get_running_loop()
            store.recalled = lambda known: _call_in(loop, lambda: notifier.recall(watch.recall(*known)))
            store.lost = lambda: _call_in(loop, watch.keep_again)
        guard = Guard(watch.counters.lives, log, who="ncclwatch-server")
        watch.counters.lives += (guard.life,)
        with store or contextlib.nullcontext(), records, notifier, guard:
            notifier.recall(book.all())
            tasks = [
                asyncio.create_task(keep(watch.life, log, watch.run)),
                asyncio.create_task(keep(lag, log, lambda: measure(watch.counters.timings, lag))),
                asyncio.create_task(keep(board.life, log, board.run)),
                asyncio.create_task(keep(guesses, log, lambda: tell_guesses(access, trail, guesses))),
            ]
            yield {HOST: door, NEIGHBOURS: neighbours, REMOTE_HOST: RemoteEntrance(door, remote)}
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            tell_of_guesses(access, trail)
            reader.close()
            door.close()

    app = FastAPI(
        title="ncclwatch",
        summary="Which rank, on which host, at which line, hangs the training",
        version=VERSION,
        lifespan=lifespan,
        docs_url=None,  # they load scripts from other hosts, which a cluster may not reach
        redoc_url=None,
        openapi_url=None,  # FastAPI's own would be open to all: `add_routes` gives it a gate
    )
    app.state.watch = watch
    app.state.access = access
    app.state.audit = trail
    app.state.door = door
    app.add_middleware(Boundary, hosts=settings.hosts, access=access)
    if elector is not None:
        app.router.routes.append(leader_route(elector))
    add_routes(app, reader, kept, access, app.state.audit)
    add_operating_routes(app, reader, kept, access, app.state.audit)
    app.include_router(
        silence_routes(silences, app.state.audit, Gate(access, Scope.VIEWER), Gate(access, Scope.OPERATOR))
    )
    traced = AuditedGate(access, app.state.audit, Act.TRACE)
    app.include_router(trace_routes(reader, board.history), dependencies=[Depends(traced)])
    gate = PageGate(check=Gate(access, Scope.VIEWER), sessions=access.sessions)
    app.add_middleware(HeadAsGet)
    add_pages(app, Site(reader=reader, board=board, settings=settings, store=kept, gate=gate))

    return app


def _call_in(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    """Let the event loop do what the store's thread wants of it; it may have ended meanwhile."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(action)
