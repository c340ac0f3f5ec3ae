"""Answers over HTTP: jobs, incidents, the stream of verdicts, figures and health. Requests never judge."""

import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated
from urllib.parse import urlencode

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from pydantic import BeforeValidator

from ncclwatch.contract import config, job_labels, job_names
from ncclwatch.contract.model.verdict import Cause, Severity
from ncclwatch.contract.version import VERSION
from ncclwatch_server.http import rank_views
from ncclwatch_server.http.capture_routes import capture_routes
from ncclwatch_server.http.job_views import JobView, view_of
from ncclwatch_server.http.problem import Problem
from ncclwatch_server.http.queries import Reader
from ncclwatch_server.http.rank_views import RankPage, groups_of, ranks_of
from ncclwatch_server.http.stack_routes import stack_routes
from ncclwatch_server.incidents import event_stream, pagination, terminal_text
from ncclwatch_server.incidents.book import IncidentState
from ncclwatch_server.incidents.event_stream import News
from ncclwatch_server.incidents.losses import LossReport
from ncclwatch_server.incidents.pagination import CURSOR_PATTERN, Cursor, Wanted, cursor_of, seconds_of
from ncclwatch_server.incidents.report import IncidentReport, JobReport, report_incident, report_job
from ncclwatch_server.jobs.group_progress import Frontier
from ncclwatch_server.jobs.read_model import JobStatus
from ncclwatch_server.metrics import Losses, PerRank, Scrapes
from ncclwatch_server.metrics import Wanted as WantedFigures
from ncclwatch_server.runtime import loop_views
from ncclwatch_server.runtime.loop_views import LoopView
from ncclwatch_server.security.access import AuditedGate, Gate
from ncclwatch_server.security.audit import Act, AuditTrail
from ncclwatch_server.security.scopes import Access, Scope
from ncclwatch_server.watch.tick import Watch

# A refusal is JSON also where the answer is text: so the answer is described, and not its class.
TEXT: dict[int | str, dict[str, object]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
FIGURES: dict[int | str, dict[str, object]] = {
    200: {"content": {kind: {"schema": {"type": "string"}} for kind in ("text/plain", "application/openmetrics-text")}}
}

WEEK_S = 604_800.0
PERIOD_S_MAX = 3660 * 86_400.0  # of a report


def _written(value: object) -> object:
    """Refuse a bare number, which pydantic would take for seconds since 1970. Raises `ValueError`."""
    if isinstance(value, str) and "T" not in value.upper():
        raise ValueError("write a moment as 2026-11-22T03:00:00Z")
    return value


Moment = Annotated[datetime, BeforeValidator(_written)]
Namespace = Annotated[str | None, Query(max_length=200, description='what stands before the first "/" of a name')]
User = Annotated[str | None, Query(max_length=200, description="whose job it is, as its environment says")]
JobLabels = Annotated[
    tuple[str, ...], Query(max_length=16, description="NAME, or NAME=PATTERN as in a shell; a job has all of them")
]
LineWidth = Annotated[int, Query(ge=terminal_text.WIDTH_MIN, le=terminal_text.WIDTH_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalView:
    """Why an agent, or a job of it, was refused."""

    where: str  # its host, or the address of who has not said a host
    reason: str
    job: str  # "" where it was the agent itself
    times: int  # for this reason
    ago_s: float  # the last time


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Says that this is an ncclwatch server, and how it is."""

    service: str
    version: str
    detail: str  # what is wrong with it, "" if nothing is
    store_works: bool
    loops: tuple[LoopView, ...]


def add_routes(app: FastAPI, reader: Reader, losses: Losses, access: Access, trail: AuditTrail) -> None:
    """Give the application its routes."""
    app.include_router(_health_routes(reader))
    gate = Depends(Gate(access, Scope.VIEWER))
    refusal: dict[int | str, dict[str, object]] = (
        {401: {"model": Problem}, 403: {"model": Problem}} if access.guarded else {}
    )
    app.include_router(_metrics_routes(reader.watch, losses), dependencies=[gate], responses=refusal)
    app.include_router(_job_routes(reader), dependencies=[gate], responses=refusal)
    app.include_router(_incident_routes(reader), dependencies=[gate], responses=refusal)
    app.include_router(_loss_routes(reader), dependencies=[gate], responses=refusal)
    app.include_router(_refusal_routes(reader), dependencies=[gate], responses=refusal)
    app.include_router(_stream_routes(reader), dependencies=[gate], responses=refusal)
    app.include_router(_description_routes(app), dependencies=[gate])
    operator = Depends(AuditedGate(access, trail, Act.STACKS))
    app.include_router(stack_routes(reader.watch), dependencies=[operator], responses=refusal)
    capturer = Depends(AuditedGate(access, trail, Act.CAPTURE))
    app.include_router(capture_routes(reader.watch), dependencies=[capturer], responses=refusal)


def _description_routes(app: FastAPI) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/openapi.json")
    async def description() -> Response:
        return JSONResponse(app.openapi())

    return router


def _health_routes(reader: Reader) -> APIRouter:
    router = APIRouter(tags=["health"], responses={503: {"model": Health}})
    watch = reader.watch

    def health(lack: str = "") -> Response:
        lives = watch.counters.lives
        still = [said for each in lives if (said := loop_views.trouble_of(each))]
        found = Health(
            service="ncclwatch",
            version=VERSION,
            detail=", ".join([*still, lack] if lack else still),
            store_works=reader.store_works(),
            loops=tuple(loop_views.view_of(each) for each in lives),
        )
        return Response(
            msgspec.json.encode(found), 503 if found.detail else 200, {"Cache-Control": "no-store"}, "application/json"
        )

    @router.get("/healthz", response_model=Health)
    async def healthz() -> Response:
        """Say what this is, and whether its vital loops go round. 503: it should be started again.

        Of other loops and of the store only how they are is told: a new process would not better them.
        """
        return health()

    @router.get("/readyz", response_model=Health)
    async def readyz() -> Response:
        """Say whether jobs are watched: the first tick is over, the newest is young. A store that fails stops none."""
        return health("" if watch.ready else "the first tick is not over yet")

    return router


def _metrics_routes(watch: Watch, losses: Losses) -> APIRouter:
    router = APIRouter(tags=["metrics"])
    scrapes = Scrapes(watch, losses)
    unknown: dict[int | str, dict[str, object]] = {404: {"model": Problem}}

    @router.get("/metrics", response_class=Response, responses=FIGURES | unknown)
    async def scrape(request: Request, per_rank: PerRank = PerRank.SUSPECTS, job_id: str | None = None) -> Response:
        """Return figures for Prometheus, in OpenMetrics with exemplars where the Accept header asks for that.

        Of single ranks only the culprits of open incidents are told. `per_rank=all` adds the series of every rank, of
        one job with `job_id`; `per_rank=off` tells of none.
        """
        if job_id is not None and watch.jobs.get(job_id) is None:
            raise HTTPException(status_code=404, detail=f"no job {job_id!r} reports to this server")
        wanted = WantedFigures(accept=request.headers.get("accept", ""), per_rank=per_rank, job=job_id)
        page = await scrapes.page(wanted)
        return Response(page.body, media_type=page.content_type)

    return router


def _refusal_routes(reader: Reader) -> APIRouter:
    router = APIRouter(prefix="/api/v1/refusals", tags=["health"])

    @router.get("", response_model=tuple[RefusalView, ...])
    async def refusals() -> Response:
        """Return which agents and jobs were refused lately and why, the newest first."""
        wall = time.time()
        return await reader.make(
            lambda: [
                RefusalView(where=each.where, reason=each.reason, job=each.job, times=each.times, ago_s=wall - each.at)
                for each in reader.watch.refusals.lately()
            ]
        )

    return router


def _job_routes(reader: Reader) -> APIRouter:
    router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])
    unknown: dict[int | str, dict[str, object]] = {404: {"model": Problem}}

    @router.get("", response_model=tuple[JobView, ...])
    async def jobs(
        state: JobStatus | None = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
        after: Annotated[str | None, Query(description="the id of the last job of the page before")] = None,
        namespace: Namespace = None,
        user: User = None,
        label: JobLabels = (),
    ) -> Response:
        """Return jobs, by name."""
        sights = reader.sights()

        def chosen() -> list[JobView]:
            wanted = (
                sight
                for sight in sights
                if state in (None, sight.status)
                and (after is None or sight.id > after)
                and namespace in (None, job_names.namespace(sight.id))
                and user in (None, sight.launch_facts.user)
                and job_labels.match(sight.launch_facts.labels, label)
            )
            return [view_of(sight) for sight in itertools.islice(wanted, limit)]

        return await reader.make(chosen)

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
        limit: Annotated[int, Query(ge=1, le=rank_views.LIMIT_MAX)] = rank_views.LIMIT,
    ) -> Response:
        """Return ranks of a job as their nodes last told of them."""
        sight = reader.sight(job)
        return await reader.make(lambda: ranks_of(sight, first, limit))

    @router.get("/{job:path}/groups", response_model=Frontier, responses=unknown)
    async def groups_by_job(job: str, limit: Annotated[int, Query(ge=1, le=rank_views.GROUPS_MAX)] = 100) -> Response:
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
    unknown: dict[int | str, dict[str, object]] = {404: {"model": Problem}, 503: {"model": Problem}}
    described: dict[int | str, dict[str, object]] = {
        200: {
            "headers": {
                "Link": {"description": 'the next page, rel="next"; absent on the last', "schema": {"type": "string"}},
                config.INCOMPLETE_HEADER: {
                    "description": "why incidents are missing of which only the store knows; absent if none are",
                    "schema": {"type": "string"},
                },
            }
        }
    }

    @router.get("", response_model=tuple[IncidentReport, ...], responses=described | unknown)
    async def incidents(  # noqa: PLR0913 the parameters are those of the query
        request: Request,
        job: str | None = None,
        state: IncidentState | None = None,
        severity: Severity | None = None,
        cause: Cause | None = None,
        text: Annotated[
            str, Query(max_length=200, description="part of the job, the sentences, or a culprit's host or file")
        ] = "",
        namespace: Namespace = None,
        user: User = None,
        label: JobLabels = (),
        since: Annotated[Moment | None, Query(description="opened at or after; without a zone it is UTC")] = None,
        until: Annotated[Moment | None, Query(description="opened before")] = None,
        after: Annotated[
            str | None, Query(pattern=CURSOR_PATTERN, description="where the page before ended; see the Link header")
        ] = None,
        before: Annotated[
            str | None, Query(max_length=64, description="id of an incident: those that are listed after it")
        ] = None,
        within_s: Annotated[
            float | None, Query(ge=0, allow_inf_nan=False, description="opened so lately, by the server's clock")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=pagination.LIMIT_MAX)] = pagination.LIMIT,
    ) -> Response:
        """Return incidents, the newest first, also those of which only the store knows."""
        ends = [Cursor.parse(after)] if after is not None else []
        if before is not None:
            ends.append(await _end_of(reader, before))
        began = [seconds_of(since)] if since is not None else []
        if within_s is not None:
            began.append(time.time() - within_s)
        wanted = Wanted(
            job=job,
            state=state,
            severity=severity,
            cause=cause,
            text=text.strip(),
            namespace=namespace,
            user=user,
            labels=tuple(label),
            since=max(began, default=None),
            until=seconds_of(until) if until is not None else None,
            after=max(ends, key=lambda end: end.place, default=None),
            limit=limit,
        )
        page = await reader.page(wanted)
        headers = _link(request, page.next) | _incomplete(page.without)
        return await reader.make(lambda: [report_incident(i) for i in page.incidents], headers)

    @router.get("/{incident}", response_model=IncidentReport, responses=unknown)
    async def incident_by_id(incident: str) -> Response:
        """Return one incident."""
        found = await reader.incident(incident)
        return await reader.make(lambda: report_incident(found))

    @router.get("/{incident}/text", response_class=Response, responses=unknown | TEXT)
    async def text(incident: str, brief: bool = False, width: LineWidth = terminal_text.WIDTH) -> Response:
        """Return one incident as text: all of it, or `brief`, as `ncclwatch run` prints it, in lines of this width."""
        found = await reader.incident(incident)
        if brief:
            lines = await reader.desk.make(lambda: terminal_text.brief(found, width))
            return PlainTextResponse("\n".join(lines) + "\n")
        return PlainTextResponse(await reader.desk.make(lambda: terminal_text.render(found)))

    return router


def _loss_routes(reader: Reader) -> APIRouter:
    router = APIRouter(prefix="/api/v1/losses", tags=["incidents"])

    @router.get("", response_model=LossReport)
    async def losses(
        within_s: Annotated[
            float, Query(ge=1, le=PERIOD_S_MAX, description="of hangs that were reported so lately")
        ] = WEEK_S,
    ) -> Response:
        """Return what hangs have cost, by cause: how many, what became of them, time lost, and time saved."""
        found = await reader.losses(within_s)
        return await reader.make(lambda: found)

    return router


def _stream_routes(reader: Reader) -> APIRouter:
    announcements = reader.watch.announcements
    router = APIRouter(prefix="/api/v1/stream", tags=["stream"])
    what: dict[int | str, dict[str, object]] = {
        200: {
            "description": "events `opened`, `changed`, `escalated`, `closed` and `recovered`, each with an incident",
            "content": {event_stream.MEDIA_TYPE: {"schema": {"type": "string"}}},
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
        if announcements.listeners >= event_stream.LISTENERS_MAX:
            raise HTTPException(
                status_code=503, detail=f"{event_stream.LISTENERS_MAX} readers listen already; try again"
            )
        wanted = Wanted(job=job, severity=severity, cause=cause)
        news = announcements.listen(_number(last_event_id), lambda each: wanted.fits(each.incident))
        return StreamingResponse(
            _events(reader, news), media_type=event_stream.MEDIA_TYPE, headers=event_stream.HEADERS
        )

    return router


async def _end_of(reader: Reader, incident: str) -> Cursor:
    """Return where a page ended that ended with this incident. Raises 404."""
    found = await reader.find(incident)
    if found is None:
        raise HTTPException(
            404, f"no incident {incident!r} is known any more to begin a page after; begin without `before`"
        )
    return cursor_of(found)


async def _events(reader: Reader, heard: AsyncIterator[News | None]) -> AsyncIterator[bytes]:
    yield b": ncclwatch\n\n"
    async for news in heard:
        yield await reader.desk.make(news.encoded) if news is not None else event_stream.ALIVE


def _number(text: str | None) -> int | None:
    """Return the number of an event; what no event of ours has is as good as none."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 16 else None


def _incomplete(why: str) -> dict[str, str]:
    return (
        {config.INCOMPLETE_HEADER: terminal_text.plain(why).encode("ascii", "backslashreplace").decode()} if why else {}
    )


def _link(request: Request, cursor: Cursor | None) -> dict[str, str]:
    if cursor is None:
        return {}
    query = [(name, value) for name, value in request.query_params.multi_items() if name not in ("after", "before")]
    return {"Link": f'<{request.url.path}?{urlencode([*query, ("after", str(cursor))])}>; rel="next"'}
