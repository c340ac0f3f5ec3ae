"""What can be asked over HTTP? Jobs, incidents, figures and health. Requests read, they never judge."""

import time
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import PlainTextResponse

from ncclwatch.contract.version import VERSION
from ncclwatch_server.access import AuditedGate, Gate
from ncclwatch_server.audit import Act, AuditTrail
from ncclwatch_server.incidents import Incident
from ncclwatch_server.jobs import Job
from ncclwatch_server.listing import NoSuchPage, Wanted, page
from ncclwatch_server.metrics import Losses, PerRank, Scrapes
from ncclwatch_server.metrics import Wanted as WantedFigures
from ncclwatch_server.problem import Problem
from ncclwatch_server.report import IncidentReport, JobReport, report_incident, report_job
from ncclwatch_server.scopes import Access, Scope
from ncclwatch_server.stacks_api import stack_routes
from ncclwatch_server.terminal import render
from ncclwatch_server.views import JobView, view_job
from ncclwatch_server.watch import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Says that this is an ncclwatch server."""

    service: str
    version: str


def add_routes(app: FastAPI, watch: Watch, losses: Losses, access: Access, trail: AuditTrail) -> None:
    """Give the application its routes."""
    app.include_router(_health_routes(watch))
    gate = Depends(Gate(access, Scope.VIEWER))
    refusal: dict[int | str, dict[str, object]] = (
        {401: {"model": Problem}, 403: {"model": Problem}} if access.guarded else {}
    )
    app.include_router(_metrics_routes(watch, losses), dependencies=[gate], responses=refusal)
    app.include_router(_job_routes(watch), dependencies=[gate], responses=refusal)
    app.include_router(_incident_routes(watch), dependencies=[gate], responses=refusal)
    operator = Depends(AuditedGate(access, trail, Act.STACKS))
    app.include_router(stack_routes(watch), dependencies=[operator], responses=refusal)


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
    scrapes = Scrapes(watch, losses)

    @router.get("/metrics", response_class=PlainTextResponse, responses={404: {"model": Problem}})
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


def _job_routes(watch: Watch) -> APIRouter:
    router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

    def find(job: str) -> Job:
        found = watch.jobs.get(job)
        if found is None:
            raise HTTPException(status_code=404, detail=f"no job {job!r} reports to this server")
        return found

    @router.get("")
    async def jobs() -> tuple[JobView, ...]:
        """Return all jobs, by name."""
        return tuple(view_job(job, watch.book, time.monotonic()) for job in watch.jobs.listed())

    @router.get("/{job}", responses={404: {"model": Problem}})
    async def job_by_id(job: str) -> JobView:
        """Return one job."""
        return view_job(find(job), watch.book, time.monotonic())

    @router.get("/{job}/report", responses={404: {"model": Problem}})
    async def report(job: str) -> JobReport:
        """Return a job's incidents, of all its attempts, in the schema of `ncclwatch run --report`."""
        found = find(job)
        return report_job(job, found.world_size, (i for i in watch.book.all() if i.job == job))

    return router


def _incident_routes(watch: Watch) -> APIRouter:
    router = APIRouter(prefix="/api/v1/incidents", tags=["incidents"])

    def find(incident: str) -> Incident:
        found = watch.book.get(incident)
        if found is None:
            raise HTTPException(status_code=404, detail=f"no incident {incident!r} is known to this server")
        return found

    @router.get("", responses={404: {"model": Problem}})
    async def incidents(wanted: Annotated[Wanted, Depends()]) -> tuple[IncidentReport, ...]:
        """Return the open and the latest closed incidents, the newest first: `limit` of them, after `before`."""
        try:
            return tuple(report_incident(i) for i in page(watch.book.all(), wanted, time.time()))
        except NoSuchPage:
            raise HTTPException(
                404, f"no incident {wanted.before!r} is known any more to begin a page after; begin without `before`"
            ) from None

    @router.get("/{incident}", responses={404: {"model": Problem}})
    async def incident_by_id(incident: str) -> IncidentReport:
        """Return one incident."""
        return report_incident(find(incident))

    @router.get("/{incident}/text", response_class=PlainTextResponse, responses={404: {"model": Problem}})
    async def text(incident: str) -> str:
        """Return one incident as `ncclwatch run` prints it."""
        return render(find(incident))

    return router
