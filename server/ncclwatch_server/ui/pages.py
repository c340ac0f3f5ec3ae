"""Adds the pages to the application: jobs, a job live, incidents, an incident, a host, settings and health.

A page is made in a thread, whole, and is right without any script. With one it stays right: an event stream sends
the parts that have changed.
"""

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exception_handlers import request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse
from markupsafe import Markup
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.staticfiles import StaticFiles

from ncclwatch.contract.model.verdict import Cause, Severity
from ncclwatch.contract.words.aftermath import loss_notes
from ncclwatch.contract.words.cause_pages import cause_of
from ncclwatch_server.http import allowed_methods
from ncclwatch_server.http.queries import Archive, Reader
from ncclwatch_server.incidents import event_stream
from ncclwatch_server.incidents.book import Incident, IncidentState
from ncclwatch_server.incidents.pagination import CURSOR_PATTERN, Cursor, Wanted
from ncclwatch_server.jobs.rank_states import RankState, states_of
from ncclwatch_server.jobs.read_model import JobSight
from ncclwatch_server.settings import Settings
from ncclwatch_server.ui import effective, matrix
from ncclwatch_server.ui.axes import axes_of
from ncclwatch_server.ui.board import Board, Sections
from ncclwatch_server.ui.causes import cause_html
from ncclwatch_server.ui.headers import SafeHeaders
from ncclwatch_server.ui.hosts import host_of
from ncclwatch_server.ui.incident_page import view_incident
from ncclwatch_server.ui.job_list import WORDS, Chosen, Sort, job_list
from ncclwatch_server.ui.log_links import log_url
from ncclwatch_server.ui.login import LoginNeeded, PageGate, add_login, to_login
from ncclwatch_server.ui.panel import Panel, panel_of, summary_of
from ncclwatch_server.ui.render import PAGES
from ncclwatch_server.ui.shared import Lines, Shared
from ncclwatch_server.ui.step_rate import StepRate

PAGE_INCIDENTS = 50
LATEST_INCIDENTS = 12
REFRESH_S = 2.0
ALIVE_S = 15.0
MACHINES = (
    "/api/",
    "/metrics",
    "/health",
    "/readyz",
    "/openapi.json",
    "/live/",
    "/matrix/",
    "/axes/",
)  # what is no page
STATIC = Path(__file__).parent / "static"
# Parts of the job page that a stream sends anew, by the id of their element.
JOB_PARTS = ("headline", "states", "alarms", "groups", "batches", "doing", "hosts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the pages are made of."""

    reader: Reader
    board: Board
    settings: Settings
    store: Archive
    gate: PageGate = field(default_factory=PageGate)
    shared: Shared = field(default_factory=Shared)
    lines: Lines = field(default_factory=Lines)

    def streamed(self, events: AsyncIterator[bytes]) -> StreamingResponse:
        """Return an open line. Raises 503 if there are too many."""
        if self.lines.full:
            raise HTTPException(status_code=503, detail=f"{self.lines.open} pages are open already; close some")
        return StreamingResponse(
            self.lines.counted(events), media_type=event_stream.MEDIA_TYPE, headers=event_stream.HEADERS
        )

    async def changes(self, topic: str, make: Callable[[], Awaitable[Sections]]) -> AsyncIterator[bytes]:
        """Send parts whenever they have changed; a comment when they have not for a while."""
        sent, told_at = b"", time.monotonic()
        yield b": ncclwatch\n\n"
        while True:
            data = await self.shared.get(topic, make)
            if data != sent:
                sent, told_at = data, time.monotonic()
                yield event_stream.event("parts", data)
            elif time.monotonic() - told_at > ALIVE_S:
                told_at = time.monotonic()
                yield event_stream.ALIVE
            await asyncio.sleep(REFRESH_S)

    async def render(self, task: Callable[[], str]) -> HTMLResponse:
        """Return a page that is made in a thread."""
        return HTMLResponse(await self.reader.desk.make(task), headers={"Cache-Control": "no-store"})


def add_pages(app: FastAPI, site: Site) -> None:
    """Give the application its pages."""
    gated = [Depends(site.gate)]
    for make in (_list_routes, _job_routes, _incident_routes, _report_routes, _host_routes, _settings_routes):
        app.include_router(make(site), dependencies=gated, include_in_schema=False)
    add_login(app, site.gate)
    app.add_exception_handler(LoginNeeded, to_login)
    app.add_exception_handler(StarletteHTTPException, _tell)
    tell_of_addresses(app)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.add_middleware(SafeHeaders)


async def _tell(request: Request, error: Exception) -> Response:
    """Say to a person why there is no page, and to a machine as ever."""
    if not isinstance(error, StarletteHTTPException):
        raise error
    if request.url.path.startswith(MACHINES) or "text/html" not in request.headers.get("accept", ""):
        return await allowed_methods.tell(request, error)
    html = PAGES.render("missing.html", title=f"{error.status_code}", sentence=str(error.detail))
    return HTMLResponse(html, status_code=error.status_code, headers=error.headers)


def tell_of_addresses(app: FastAPI) -> None:
    """Have an address that no page can have answered with a page."""
    app.add_exception_handler(RequestValidationError, _tell_of_address)


async def _tell_of_address(request: Request, error: Exception) -> Response:
    """Say to a person what the address of a page has that it cannot have, and to a machine as ever."""
    if not isinstance(error, RequestValidationError):
        raise error
    if request.url.path.startswith(MACHINES) or "text/html" not in request.headers.get("accept", ""):
        return await request_validation_exception_handler(request, error)
    wrong = [f"{each['loc'][-1]}: {each['msg']}" for each in error.errors()]
    return HTMLResponse(PAGES.render("missing.html", title="422", sentence=". ".join(wrong)), status_code=422)


def _list_routes(site: Site) -> APIRouter:
    router = APIRouter()

    @router.get("/")
    async def home() -> Response:
        return RedirectResponse("/jobs")

    @router.get("/jobs")
    async def jobs(request: Request, chosen: Annotated[Chosen, Depends(_chosen)]) -> Response:
        parts = await _jobs_parts(site, chosen)
        return await site.render(
            lambda: PAGES.render(
                "jobs.html",
                parts=parts,
                chosen=chosen,
                words=WORDS,
                sorts=tuple(Sort),
                query=str(request.url.query),
                title="Jobs",
            )
        )

    @router.get("/live/jobs")
    async def live(request: Request, chosen: Annotated[Chosen, Depends(_chosen)]) -> Response:
        return site.streamed(site.changes(f"jobs?{request.url.query}", lambda: _jobs_parts(site, chosen)))

    return router


def _chosen(
    text: Annotated[str, Query(max_length=200)] = "",
    state: Annotated[str, Query(max_length=40)] = "",
    sort: Annotated[str, Query(max_length=40)] = "",
) -> Chosen:
    """Return which jobs the address of the page asks for. Words that mean nothing are ignored."""
    return Chosen(
        text=text.strip(),
        word=state if state in WORDS else "",
        sort=Sort(sort) if sort in set(Sort) else Sort.URGENCY,
    )


async def _jobs_parts(site: Site, chosen: Chosen) -> Sections:
    sights = site.reader.sights()
    rates = {sight.id: strip.step_rate.per_s for sight in sights if (strip := site.board.strip(sight.key)) is not None}
    page = await site.reader.page(Wanted(limit=LATEST_INCIDENTS))

    def parts() -> Sections:
        listed = job_list(sights, rates, chosen)
        return {
            "jobs": PAGES.render("parts/jobs.html", jobs=listed, now=time.time()),
            "latest": PAGES.render(
                "parts/incident_rows.html", incidents=page.incidents, with_job=True, now=time.time()
            ),
        }

    return await site.reader.desk.make(parts)


def _job_routes(site: Site) -> APIRouter:
    router = APIRouter()

    @router.get("/jobs/{job:path}")
    async def job_page(job: str) -> Response:
        sight = site.reader.sight(job)
        strip = site.board.strip(sight.key)
        step_rate = strip.step_rate if strip is not None else StepRate()
        latest = await site.reader.page(Wanted(job=job, limit=LATEST_INCIDENTS))

        def page() -> str:
            states = states_of(sight.picture, silent=sight.silent, blamed=sight.blamed)
            panel = panel_of(sight, states, step_rate)
            parts = job_parts(sight.id, panel, latest.incidents)
            return PAGES.render(
                "job.html",
                parts=parts,
                job=sight,
                panel=panel,
                legend=tuple(RankState),
                latest=latest.incidents,
                summary=summary_of(panel.states),
                title=sight.title,
                logs=log_url(site.settings.log_url, at=time.time(), job=sight.id),
            )

        return await site.render(page)

    @router.get("/matrix/{job:path}")
    async def picture(request: Request, job: str) -> Response:
        """Return the last minutes of all ranks: see `matrix.encoded`."""
        sight = site.reader.sight(job)
        strip = site.board.strip(sight.key)
        first, columns = strip.matrix.columns() if strip is not None else (0, ())
        return await _packed(
            site, request, lambda: matrix.encoded(sight.world_size, first, columns), "application/octet-stream"
        )

    @router.get("/axes/{job:path}")
    async def orders(request: Request, job: str) -> Response:
        """Return the orders in which the ranks of the picture can be shown: see `axes.Axis`."""
        sight = site.reader.sight(job)
        return await _packed(site, request, lambda: msgspec.json.encode(axes_of(sight)), "application/json")

    @router.get("/live/jobs/{job:path}")
    async def live(job: str) -> Response:
        sight = site.reader.sight(job)
        return site.streamed(_frames(site, sight))

    return router


async def _packed(site: Site, request: Request, make: Callable[[], bytes], kind: str) -> Response:
    """Return what is made in a thread, compressed where that is understood."""
    packs = "gzip" in request.headers.get("accept-encoding", "")

    def data() -> bytes:
        found = make()
        return gzip.compress(found, matrix.LEVEL) if packs else found

    headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    headers |= {"Content-Encoding": "gzip"} if packs else {}
    return Response(await site.reader.desk.make(data), media_type=kind, headers=headers)


def job_parts(job: str, panel: Panel, incidents: tuple[Incident, ...]) -> Sections:
    """Return the parts of a job's page that change."""
    parts = {name: PAGES.render(f"parts/job_{name}.html", panel=panel, job_id=job) for name in JOB_PARTS}
    latest = incidents[:LATEST_INCIDENTS]
    return parts | {
        "latest": PAGES.render("parts/incident_rows.html", incidents=latest, with_job=False, now=time.time())
    }


async def _frames(site: Site, sight: JobSight) -> AsyncIterator[bytes]:
    """Send what is new of a job: the newest column, and the parts that have changed."""
    sent: Sections = {}
    yield b": ncclwatch\n\n"
    async for frame in site.board.follow(sight.key, sight.world_size):
        if frame is None:
            yield event_stream.ALIVE
            continue
        yield event_stream.event("column", frame.column)
        changed = {name: html for name, html in frame.parts.items() if sent.get(name) != html}
        sent = frame.parts
        if changed:
            yield event_stream.event("parts", msgspec.json.encode(changed))


_WITHIN_S = {"last hour": 3600.0, "last day": 86_400.0, "last 7 days": 604_800.0, "last 30 days": 2_592_000.0}


def _wanted(
    job: str = "",
    state: Annotated[str, Query(max_length=40)] = "",
    severity: Annotated[str, Query(max_length=40)] = "",
    cause: Annotated[str, Query(max_length=40)] = "",
    text: Annotated[str, Query(max_length=200)] = "",
    within: Annotated[str, Query(max_length=40)] = "",
    after: Annotated[str | None, Query(pattern=CURSOR_PATTERN)] = None,
) -> Wanted:
    """Return which incidents the address of the page asks for. Words that mean nothing are ignored."""
    return Wanted(
        job=job or None,
        state=IncidentState(state) if state in set(IncidentState) else None,
        severity=Severity(severity) if severity in set(Severity) else None,
        cause=Cause(cause) if cause in set(Cause) else None,
        text=text.strip(),
        since=time.time() - _WITHIN_S[within] if within in _WITHIN_S else None,
        after=Cursor.parse(after) if after is not None else None,
        limit=PAGE_INCIDENTS,
    )


def _incident_routes(site: Site) -> APIRouter:
    router = APIRouter()

    @router.get("/incidents")
    async def incidents(
        request: Request, wanted: Annotated[Wanted, Depends(_wanted)], within: Annotated[str, Query(max_length=40)] = ""
    ) -> Response:
        page = await site.reader.page(wanted)
        following = str(request.url.include_query_params(after=str(page.next)).query) if page.next else ""
        return await site.render(
            lambda: PAGES.render(
                "incidents.html",
                incidents=page.incidents,
                without=page.without,
                following=following,
                wanted=wanted,
                within=within,
                withins=tuple(_WITHIN_S),
                now=time.time(),
                title="Incidents",
                states=tuple(IncidentState),
                severities=tuple(Severity),
                causes=tuple(Cause),
            )
        )

    @router.get("/incidents/{incident}")
    async def incident_page(request: Request, incident: str) -> Response:
        parts = await _incident_parts(site, incident, str(request.url))
        found = await site.reader.incident(incident)
        return await site.render(
            lambda: PAGES.render("incident.html", parts=parts, incident=found, title=found.verdict.summary)
        )

    @router.get("/incidents/{incident}/file")
    async def incident_file(request: Request, incident: str) -> Response:
        """Return the incident as one file that loads nothing and runs nothing."""
        found = await site.reader.incident(incident)
        url = str(request.url).removesuffix("/file")
        answer = await site.render(lambda: incident_html(found, url, time.time()))
        answer.headers["Content-Disposition"] = f'attachment; filename="ncclwatch-{quote(found.id, safe="")}.html"'
        return answer

    @router.get("/causes/{word}")
    async def cause_page(word: str) -> Response:
        cause = cause_of(word)
        if cause is None:
            raise HTTPException(status_code=404, detail=f"there is no cause {word!r}")
        return await site.render(
            lambda: PAGES.render("cause.html", html=cause_html(cause), cause=cause, title=cause.value.replace("_", " "))
        )

    @router.get("/live/incidents/{incident}")
    async def live(request: Request, incident: str) -> Response:
        url = str(request.url).replace("/live/incidents/", "/incidents/", 1)
        await site.reader.incident(incident)
        return site.streamed(site.changes(url, lambda: _incident_parts(site, incident, url)))

    return router


async def _incident_parts(site: Site, incident: str, url: str) -> Sections:
    found = await site.reader.incident(incident)
    now = time.time()
    return await site.reader.desk.make(
        lambda: {
            "incident": PAGES.render(
                "parts/incident.html", view=view_incident(found, url, site.settings.log_url), now=now, alone=False
            )
        }
    )


def incident_html(incident: Incident, url: str, now: float) -> str:
    """Return an incident's page as one file."""
    part = PAGES.render("parts/incident.html", view=view_incident(incident, url), now=now, alone=True)
    style = Markup((STATIC / "style.css").read_text(encoding="utf-8"))
    return PAGES.render("incident_file.html", part=Markup(part), style=style, url=url, title=incident.verdict.summary)


def _report_routes(site: Site) -> APIRouter:
    router = APIRouter()

    @router.get("/report")
    async def report(within: Annotated[str, Query(max_length=40)] = "") -> Response:
        chosen = within if within in _WITHIN_S else "last 7 days"
        found = await site.reader.losses(_WITHIN_S[chosen])
        notes = loss_notes(timeout_unknown=found.total.timeout_unknown, end_unknown=found.total.end_unknown)
        return await site.render(
            lambda: PAGES.render(
                "report.html", report=found, notes=notes, within=chosen, withins=tuple(_WITHIN_S), title="Report"
            )
        )

    return router


def _host_routes(site: Site) -> APIRouter:
    router = APIRouter()

    @router.get("/hosts/{host:path}")
    async def host_page(host: str) -> Response:
        sights, incidents = site.reader.sights(), site.reader.watch.book.all()
        found = await site.reader.desk.make(lambda: host_of(host, sights, incidents))
        if not found.known:
            raise HTTPException(
                status_code=404, detail=f"no agent of a host {host!r} reports, and no incident names it"
            )
        return await site.render(lambda: PAGES.render("host.html", host=found, title=found.name, now=time.time()))

    return router


def _settings_routes(site: Site) -> APIRouter:
    router = APIRouter()

    @router.get("/settings")
    async def settings_page() -> Response:
        well = effective.health(site.reader.watch, site.board, site.store.health())
        return await site.render(
            lambda: PAGES.render(
                "settings.html",
                health=well,
                effective=effective.effective(site.settings),
                limits=effective.limits_in_force(),
                guarded=bool(site.settings.grants),
                title="Settings and health",
            )
        )

    return router
