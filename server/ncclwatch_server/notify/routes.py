"""Answers over HTTP what there is of silences, and makes and ends them. Who did that is noted in the audit log."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request
from pydantic import AwareDatetime, Field
from pydantic.dataclasses import dataclass as checked_dataclass

from ncclwatch_server.notify.message import iso
from ncclwatch_server.notify.silences import (
    JOB_MAX,
    LASTS_S_MAX,
    WORDS_MAX,
    Silence,
    SilenceError,
    Silences,
    SilenceState,
)
from ncclwatch_server.security.access import client_of
from ncclwatch_server.security.audit import Act, AuditTrail
from ncclwatch_server.security.scopes import Caller

Gate = Callable[[Request], Caller | Awaitable[Caller]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceView:
    """A silence, as people and programs read it."""

    id: str
    job: str
    state: SilenceState
    starts_at: str  # ISO 8601, UTC
    ends_at: str
    reason: str
    author: str  # as the token says that made it
    signed: str  # what its maker wrote, which may be anything
    made_at: str


@checked_dataclass(frozen=True, kw_only=True)
class NewSilence:
    """What a silence is made of: either when it ends, or how long it lasts."""

    job: Annotated[str, Field(min_length=1, max_length=JOB_MAX)]
    starts_at: AwareDatetime | None = None  # default: now
    ends_at: AwareDatetime | None = None
    lasts_s: Annotated[float, Field(gt=0, le=LASTS_S_MAX)] | None = None
    reason: Annotated[str, Field(max_length=WORDS_MAX)] = ""
    signed: Annotated[str, Field(max_length=WORDS_MAX)] = ""  # whose name the token says is noted whatever this says


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """Why a request was not answered."""

    detail: str


def silence_routes(silences: Silences, trail: AuditTrail, reading: Gate, changing: Gate) -> APIRouter:
    """Return the routes, with the gates that readers and those who change something must pass."""
    router = APIRouter(
        prefix="/api/v1/silences",
        tags=["silences"],
        responses={code: {"model": Complaint} for code in (401, 403)},
    )
    reads, changes = [Depends(reading)], [Depends(_from_no_page)]
    changer = Depends(changing)

    def find(silence: str) -> Silence:
        found = silences.get(silence)
        if found is None:
            raise HTTPException(status_code=404, detail=f"no silence {silence!r} is known to this server")
        return found

    @router.get("", dependencies=reads)
    async def all_silences(state: SilenceState | None = None) -> tuple[SilenceView, ...]:
        """Return the silences, the one that ends last first."""
        now = time.time()
        return tuple(_view(each, now) for each in silences.all() if state in (None, each.state(now)))

    @router.get("/{silence}", dependencies=reads, responses={404: {"model": Complaint}})
    async def silence_by_id(silence: str) -> SilenceView:
        """Return one silence."""
        return _view(find(silence), time.time())

    @router.post(
        "", dependencies=changes, status_code=201, responses={400: {"model": Complaint}, 415: {"model": Complaint}}
    )
    async def add_silence(new: NewSilence, request: Request, caller: Annotated[Caller, changer]) -> SilenceView:
        """Tell nobody of some jobs for some time; a time that begins later is a maintenance window."""
        now = time.time()
        begins = _seconds(new.starts_at) if new.starts_at is not None else now
        if (new.ends_at is None) == (new.lasts_s is None):
            raise HTTPException(status_code=400, detail="say either ends_at or lasts_s")
        ends = _seconds(new.ends_at) if new.ends_at is not None else begins + (new.lasts_s or 0.0)
        try:
            made = silences.add(new.job, begins, ends, new.reason, author=caller.name, signed=new.signed)
        except SilenceError as error:
            raise HTTPException(status_code=400, detail=str(error)) from error
        _note(trail, Act.SILENCE, made, caller, request)
        return _view(made, now)

    @router.delete("/{silence}", dependencies=changes, responses={404: {"model": Complaint}})
    async def end_silence(silence: str, request: Request, caller: Annotated[Caller, changer]) -> SilenceView:
        """End a silence now. It stays listed as expired."""
        known = find(silence)
        ended = silences.end(silence) or known
        if ended != known:
            _note(trail, Act.UNSILENCE, ended, caller, request)
        return _view(ended, time.time())

    return router


def _note(trail: AuditTrail, act: Act, silence: Silence, caller: Caller, request: Request) -> None:
    """Write down who did it, as the token says, and from where."""
    span = f"{iso(silence.starts_at)} to {iso(silence.ends_at)}"
    words = [silence.reason, f"signed {silence.signed}" if silence.signed else ""]
    said = ", ".join(word for word in words if word) or "no reason given"
    trail.note(caller.name, act, silence.job, f"from {client_of(request)}: silence {silence.id}, {span} ({said})")


def _from_no_page(request: Request) -> None:
    """Refuse what a browser sends for some web page: such a page cannot send JSON without asking first."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if request.method == "POST" and kind != "application/json":
        raise HTTPException(status_code=415, detail="send application/json")


def _view(silence: Silence, now: float) -> SilenceView:
    return SilenceView(
        id=silence.id,
        job=silence.job,
        state=silence.state(now),
        starts_at=iso(silence.starts_at),
        ends_at=iso(silence.ends_at),
        reason=silence.reason,
        author=silence.author,
        signed=silence.signed,
        made_at=iso(silence.made_at),
    )


def _seconds(at: datetime) -> float:
    return at.timestamp()
