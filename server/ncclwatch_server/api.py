"""What can be asked over HTTP? Jobs, incidents, figures and health. Requests read, they never judge.

The event loop copies what an answer is made of; the answer is made and encoded in a thread.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Protocol, TypeVar
from urllib.parse import urlencode

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import BeforeValidator

from ncclwatch.contract.model import Cause, Severity
from ncclwatch.contract.version import VERSION
from ncclwatch_server import metrics, pagination, ranks, stream
from ncclwatch_server.access import TokenGate
from ncclwatch_server.incidents import Incident, IncidentState
from ncclwatch_server.metrics import Figures, Losses
from ncclwatch_server.offloop import Desk
from ncclwatch_server.pagination import CURSOR_PATTERN, Cursor, Page, Wanted, page_of, seconds_of
from ncclwatch_server.ranks import RankPage, groups_of, ranks_of
from ncclwatch_server.report import IncidentReport, JobReport, report_incident, report_job
from ncclwatch_server.sight import JobSight, JobStatus, sight_of, sights_of
from ncclwatch_server.stream import News
from ncclwatch_server.terminal import render
from ncclwatch_server.ui.groups import Frontier
from ncclwatch_server.views import JobView, view_of
from ncclwatch_server.watch import Watch

T = TypeVar("T")

# A refusal is JSON also where the answer is text: so the answer is described, and not its class.
TEXT: dict[int | str, dict[str, object]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


def _written(value: object) -> object:
    """Refuse a bare number, which pydantic would take for seconds since 1970. Raises `ValueError`."""
    if isinstance(value, str) and "T" not in value.upper():
        raise ValueError("write a moment as 2026-11-22T03:00:00Z")
    return value


Moment = Annotated[datetime, BeforeValidator(_written)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Says that this is an ncclwatch server."""

    service: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a request was not answered."""

    detail: str


class Archive(Losses, Protocol):
    """Keeps incidents, also those that are in memory no more. Its questions wait for a database."""

    def find(self, wanted: Wanted, held: frozenset[str], limit: int) -> tuple[Incident, ...]:
        """Return incidents that are wanted and not held, the newest first."""

    def get(self, incident: str) -> Incident | None:
        """Return one incident."""


class Figured:
    """Holds the figures of the last tick."""

    def __init__(self, watch: Watch, losses: Losses) -> None:
        self._watch = watch
        self._losses = losses
        self.figures: Figures = metrics.measure(watch, losses)

    def refresh(self) -> None:
        """Copy the figures of this moment."""
        self.figures = metrics.measure(self._watch, self._losses)


class Reader:
    """Answers questions about jobs and incidents: copies in the event loop, works in a thread."""

    def __init__(self, watch: Watch, archive: Archive, desk: Desk) -> None:
        self.watch = watch
        self._archive = archive
        self._desk = desk

    async def work(self, task: Callable[[], T]) -> T:
        """Return what a task returns. It runs in a thread, and so works on copies."""
        return await self._desk.make(task)

    async def make(self, task: Callable[[], object], headers: dict[str, str] | None = None) -> Response:
        """Return what a task in a thread returns, as JSON."""
        data = await self._desk.make(lambda: _json(task()))
        return Response(data, media_type="application/json", headers=headers)

    def sight(self, job: str) -> JobSight:
        """Copy what there is of a job. Raises 404."""
        found = self.watch.jobs.get(job)
        if found is None:
            raise HTTPException(status_code=404, detail=f"no job {job!r} reports to this server")
        return sight_of(found, self.watch.book.open_of(found.key), time.monotonic())

    def sights(self) -> tuple[JobSight, ...]:
        """Copy what there is of all jobs, by name."""
        return sights_of(self.watch.jobs.listed(), self.watch.book.all(), time.monotonic())

    async def incident(self, incident: str) -> Incident:
        """Return one incident, of the store if it is in memory no more. Raises 404."""
        found = self.watch.book.get(incident)
        if found is None:
            found = await self._desk.make(lambda: self._archive.get(incident))
        if found is None:
            raise HTTPException(status_code=404, detail=f"no incident {incident!r} is known to this server")
        return found

    async def page(self, wanted: Wanted) -> Page:
        """Return a page of incidents."""
        known = self.watch.book.all()
        return await self._desk.make(lambda: page_of(wanted, known, self._archive.find))


def add_routes(app: FastAPI, reader: Reader, losses: Losses, token: str) -> None:
    """Give the application its routes."""
    app.include_router(_health_routes(reader.watch))
    gate = Depends(TokenGate(token))
    refusal: dict[int | str, dict[str, object]] = {401: {"model": Problem}} if token else {}
    app.include_router(_metrics_routes(reader.watch, losses), dependencies=[gate], responses=refusal)
    app.include_router(_job_routes(reader), dependencies=[gate], responses=refusal)
    app.include_router(_incident_routes(reader), dependencies=[gate], responses=refusal)
    app.include_router(_stream_routes(reader), dependencies=[gate], responses=refusal)


def _health_routes(watch: Watch) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/healthz")
    async def healthz() -> Health:
        """Say that the process lives and what it is."""
        return Health(service="ncclwatch", version=VERSION)

    @router.get("/readyz", responses={503: {"model": Problem}})
    async def readyz() -> Health:
        """Say whether jobs are watched yet."""
        if not watch.ready:
            raise HTTPException(status_code=503, detail="the first tick is not over yet")
        return Health(service="ncclwatch", version=VERSION)

    return router


def _metrics_routes(watch: Watch, losses: Losses) -> APIRouter:
    router = APIRouter(tags=["metrics"])
    figured = Figured(watch, losses)
    watch.on_tick = figured.refresh

    @router.get("/metrics", response_class=Response, responses=TEXT)
    async def scrape() -> Response:
        """Return the figures of the last tick in Prometheus' text format."""
        text = await asyncio.to_thread(metrics.render, figured.figures)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


def _job_routes(reader: Reader) -> APIRouter:
    router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])
    unknown: dict[int | str, dict[str, object]] = {404: {"model": Problem}}

    @router.get("", response_model=tuple[JobView, ...])
    async def jobs(
        state: JobStatus | None = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
        after: Annotated[str | None, Query(description="the id of the last job of the page before")] = None,
    ) -> Response:
        """Return jobs, by name."""
        sights = reader.sights()
        wanted = [s for s in sights if state in (None, s.status) and (after is None or s.id > after)]
        return await reader.make(lambda: [view_of(sight) for sight in wanted[:limit]])

    @router.get("/{job:path}/report", response_model=JobReport, responses=unknown)
    async def report(job: str) -> Response:
        """Return a job's incidents, of all its attempts, in the schema of `ncclwatch run --report`."""
        sight = reader.sight(job)
        incidents = tuple(incident for incident in reader.watch.book.all() if incident.job == job)
        return await reader.make(lambda: report_job(job, sight.world_size, incidents))

    @router.get("/{job:path}/ranks", response_model=RankPage, responses=unknown)
    async def ranks_by_job(
        job: str,
        first: Annotated[int, Query(ge=0, le=2**31)] = 0,
        limit: Annotated[int, Query(ge=1, le=ranks.LIMIT_MAX)] = ranks.LIMIT,
    ) -> Response:
        """Return ranks of a job as their nodes last told of them."""
        sight = reader.sight(job)
        return await reader.make(lambda: ranks_of(sight, first, limit))

    @router.get("/{job:path}/groups", response_model=Frontier, responses=unknown)
    async def groups_by_job(job: str, limit: Annotated[int, Query(ge=1, le=ranks.GROUPS_MAX)] = 100) -> Response:
        """Return how far the process groups of a job have come; those with somebody behind or waiting first."""
        sight = reader.sight(job)
        return await reader.make(lambda: groups_of(sight, limit))

    @router.get("/{job:path}", response_model=JobView, responses=unknown)
    async def job_by_id(job: str) -> Response:
        """Return one job."""
        sight = reader.sight(job)
        return await reader.make(lambda: view_of(sight))

    return router


def _incident_routes(reader: Reader) -> APIRouter:
    router = APIRouter(prefix="/api/v1/incidents", tags=["incidents"])
    unknown: dict[int | str, dict[str, object]] = {404: {"model": Problem}}
    described: dict[int | str, dict[str, object]] = {
        200: {
            "headers": {
                "Link": {"description": 'the next page, rel="next"; absent on the last', "schema": {"type": "string"}}
            }
        }
    }

    @router.get("", response_model=tuple[IncidentReport, ...], responses=described)
    async def incidents(  # noqa: PLR0913 the parameters are those of the query
        request: Request,
        job: str | None = None,
        state: IncidentState | None = None,
        severity: Severity | None = None,
        cause: Cause | None = None,
        since: Annotated[Moment | None, Query(description="opened at or after; without a zone it is UTC")] = None,
        until: Annotated[Moment | None, Query(description="opened before")] = None,
        after: Annotated[
            str | None, Query(pattern=CURSOR_PATTERN, description="where the page before ended; see the Link header")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=pagination.LIMIT_MAX)] = pagination.LIMIT,
    ) -> Response:
        """Return incidents, the newest first, also those of which only the store knows."""
        wanted = Wanted(
            job=job,
            state=state,
            severity=severity,
            cause=cause,
            since=seconds_of(since),
            until=seconds_of(until),
            after=Cursor.parse(after) if after is not None else None,
            limit=limit,
        )
        page = await reader.page(wanted)
        return await reader.make(lambda: [report_incident(i) for i in page.incidents], _link(request, page.next))

    @router.get("/{incident}", response_model=IncidentReport, responses=unknown)
    async def incident_by_id(incident: str) -> Response:
        """Return one incident."""
        found = await reader.incident(incident)
        return await reader.make(lambda: report_incident(found))

    @router.get("/{incident}/text", response_class=Response, responses=unknown | TEXT)
    async def text(incident: str) -> Response:
        """Return one incident as `ncclwatch run` prints it."""
        found = await reader.incident(incident)
        return PlainTextResponse(await reader.work(lambda: render(found)))

    return router


def _stream_routes(reader: Reader) -> APIRouter:
    announcements = reader.watch.announcements
    router = APIRouter(prefix="/api/v1/stream", tags=["stream"])
    what: dict[int | str, dict[str, object]] = {
        200: {
            "description": "server-sent events `opened`, `changed`, `escalated` and `closed`, each with an incident",
            "content": {stream.MEDIA_TYPE: {"schema": {"type": "string"}}},
        },
        503: {"model": Problem},
    }

    @router.get("", response_class=StreamingResponse, responses=what)
    async def follow(
        job: str | None = None,
        severity: Severity | None = None,
        cause: Cause | None = None,
        last_event_id: Annotated[str | None, Header(description="of the last event before the line broke")] = None,
    ) -> StreamingResponse:
        """Send verdicts as they are told, until the reader hangs up. A comment every 15 s keeps the line."""
        if announcements.listeners >= stream.LISTENERS_MAX:
            raise HTTPException(status_code=503, detail=f"{stream.LISTENERS_MAX} readers listen already; try again")
        wanted = Wanted(job=job, severity=severity, cause=cause)
        news = announcements.listen(_number(last_event_id), lambda each: wanted.fits(each.incident))
        return StreamingResponse(_events(reader, news), media_type=stream.MEDIA_TYPE, headers=stream.HEADERS)

    return router


async def _events(reader: Reader, heard: AsyncIterator[News | None]) -> AsyncIterator[bytes]:
    yield b": ncclwatch\n\n"
    async for news in heard:
        yield await reader.work(news.encoded) if news is not None else stream.ALIVE


def _number(text: str | None) -> int | None:
    """Return the number of an event; what no event of ours has is as good as none."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 16 else None


def _link(request: Request, cursor: Cursor | None) -> dict[str, str]:
    if cursor is None:
        return {}
    query = [(name, value) for name, value in request.query_params.multi_items() if name != "after"]
    return {"Link": f'<{request.url.path}?{urlencode([*query, ("after", str(cursor))])}>; rel="next"'}


def _json(found: object) -> bytes:
    """Encode an answer. A list part by part, so that other threads get their turn between them."""
    if isinstance(found, list):
        return b"[" + b",".join(map(msgspec.json.encode, found)) + b"]"
    return msgspec.json.encode(found)
