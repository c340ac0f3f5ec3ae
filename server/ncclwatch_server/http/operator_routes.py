"""Answers operators: the audit log, the deletion of a job, and how the server does."""

from dataclasses import dataclass
from typing import Annotated, Protocol

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query

from ncclwatch.contract.version import VERSION
from ncclwatch_server.http.problem import Problem
from ncclwatch_server.http.queries import Reader
from ncclwatch_server.security.access import Gate
from ncclwatch_server.security.audit import Act, AuditEntry, AuditTrail
from ncclwatch_server.security.scopes import Access, Caller, Scope
from ncclwatch_server.store.health import StoreHealth
from ncclwatch_server.store.incident_store import StoreFailed
from ncclwatch_server.store.retention import Removed
from ncclwatch_server.watch.tick import Watch

PAGE_MAX = 1000
_REFUSALS: dict[int | str, dict[str, object]] = {401: {"model": Problem}, 403: {"model": Problem}}


class KeptStore(Protocol):
    """The part of a store that operators see."""

    def health(self) -> StoreHealth:
        """Return how the store is doing. Never waits for it."""

    def audit_log(self, limit: int, before: str = "", job: str = "") -> list[AuditEntry]:
        """Return lines of the audit log, the newest first. Raises `StoreFailed`."""

    def delete_job(self, job: str) -> Removed:
        """Delete what is kept of a job. Raises `StoreFailed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHealth:
    """How the server is doing."""

    service: str
    version: str
    working: bool  # jobs are judged, and what is found can be stored
    agents: int
    jobs: int
    ranks: int
    store: StoreHealth


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """Lines of the audit log, the newest first."""

    entries: tuple[AuditEntry, ...]
    next: str | None  # what to give as `before` for older ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """What was deleted of a job."""

    job: str
    incidents: int  # stored ones; in memory there may have been more
    lessons: int


def add_operating_routes(app: FastAPI, reader: Reader, store: KeptStore, access: Access, trail: AuditTrail) -> None:
    """Give the application the routes of operators, and /health."""
    app.include_router(_health_routes(reader.watch, store, access), responses=_REFUSALS if access.guarded else {})
    app.include_router(_operator_routes(reader, store, access, trail), responses=_REFUSALS if access.guarded else {})


def _health_routes(watch: Watch, store: KeptStore, access: Access) -> APIRouter:
    router = APIRouter(tags=["health"], dependencies=[Depends(Gate(access, Scope.VIEWER))])

    @router.get("/health")
    async def health() -> ServerHealth:
        """Say how this server and its store are doing. A store that fails stops no judging."""
        jobs, kept = watch.jobs.listed(), store.health()
        return ServerHealth(
            service="ncclwatch",
            version=VERSION,
            working=watch.ready and kept.working,
            agents=watch.agents,
            jobs=len(jobs),
            ranks=sum(job.world_size for job in jobs),
            store=kept,
        )

    return router


def _operator_routes(reader: Reader, store: KeptStore, access: Access, trail: AuditTrail) -> APIRouter:
    watch = reader.watch
    router = APIRouter(prefix="/api/v1", tags=["operators"])
    gate = Gate(access, Scope.OPERATOR)

    @router.get("/audit", dependencies=[Depends(gate)], responses={503: {"model": Problem}})
    async def audit(
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
        before: Annotated[str, Query(max_length=40)] = "",
        job: Annotated[str, Query(max_length=255)] = "",
    ) -> AuditPage:
        """Return who asked for stacks of which job, silenced or deleted one, and when."""
        try:
            found = await reader.archivist.make(lambda: store.audit_log(limit, before, job))
        except StoreFailed as error:
            raise HTTPException(status_code=503, detail=str(error)) from error
        return AuditPage(entries=tuple(found), next=found[-1].id if len(found) == limit else None)

    @router.delete("/jobs/{job:path}", responses={code: {"model": Problem} for code in (404, 409, 503)})
    async def delete(job: str, caller: Annotated[Caller, Depends(gate)]) -> Deleted:
        """Delete a job that is over: its incidents with their stacks, and what it has taught.

        Its lines in the audit log stay, and this deletion is one more.
        """
        known = watch.jobs.get(job)
        if known is not None and not known.ended:
            raise HTTPException(409, f"job {job!r} goes on: what is deleted would come back; end it first")
        try:
            removed = await reader.archivist.make(lambda: store.delete_job(job))
        except StoreFailed as error:
            raise HTTPException(503, f"{error}. Nothing that is stored was deleted") from error
        if watch.jobs.delete(job):
            raise HTTPException(409, f"job {job!r} has begun again; delete it when it has ended")
        forgotten = watch.book.forget(job)
        if known is None and not forgotten and not removed:
            raise HTTPException(404, f"nothing is known of a job {job!r}")
        trail.note(
            caller.name, Act.DELETE, job, f"{max(removed.incidents, forgotten)} incidents, {removed.lessons} lessons"
        )
        return Deleted(job=job, incidents=removed.incidents, lessons=removed.lessons)

    return router
