"""Answers questions of people and programs without holding anything up.

The event loop copies what an answer is made of; the answer is made and encoded in a thread. What only the store knows
is asked for in another one: a database that does not answer delays those who ask it for a moment, and nobody else.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

import msgspec
from fastapi import HTTPException, Response

from ncclwatch.contract.words.printable import json_bytes
from ncclwatch_server.incidents.book import Incident
from ncclwatch_server.incidents.losses import Loss, LossReport, loss_of, summed
from ncclwatch_server.incidents.pagination import Page, Wanted, page_of
from ncclwatch_server.jobs.read_model import JobSight, sight_of, sights_of
from ncclwatch_server.runtime.worker_threads import Desk
from ncclwatch_server.store.health import StoreHealth
from ncclwatch_server.store.incident_store import StoreFailed
from ncclwatch_server.watch.tick import Watch

log = logging.getLogger("ncclwatch.server")

LOSSES_MAX = 50_000  # hangs in one report
ARCHIVE_S = 3.0  # an answer of the store is waited for so long; then what is in memory has to do

T = TypeVar("T")


class Archive(Protocol):
    """Keeps incidents, also those that are in memory no more. Its questions wait for a database."""

    def find(self, wanted: Wanted, held: frozenset[str], limit: int) -> tuple[Incident, ...]:
        """Return incidents that are wanted and not held, the newest first. Raises `StoreFailed`."""

    def losses(self, since: float, held: frozenset[str], limit: int) -> tuple[Loss, ...]:
        """Return what counts of hangs that were reported since then and are not held. Raises `StoreFailed`."""

    def get(self, incident: str) -> Incident | None:
        """Return one incident. Raises `StoreFailed`."""

    def health(self) -> StoreHealth:
        """Return how it is doing. Never waits."""


class Reader:
    """Answers questions about jobs and incidents."""

    def __init__(self, watch: Watch, archive: Archive) -> None:
        self.watch = watch
        self.desk = Desk()
        self._archive = archive
        self.archivist = Desk("ncclwatch-archive", ends_s=math.inf)  # a new process would wait for the same database

    def close(self) -> None:
        """Let the threads go."""
        self.desk.close()
        self.archivist.close()

    async def make(self, task: Callable[[], object], headers: dict[str, str] | None = None) -> Response:
        """Return as JSON what a task returns. It runs in a thread, and so works on copies."""
        data = await self.desk.make(lambda: _json(task()))
        return Response(data, media_type="application/json", headers=headers)

    def sight(self, job: str) -> JobSight:
        """Copy what there is of a job. Raises 404."""
        found = self.watch.jobs.get(job)
        if found is None:
            raise HTTPException(status_code=404, detail=f"no job {job!r} reports to this server")
        return sight_of(found, self.watch.book.open_of(found.key), time.monotonic())

    def sights(self) -> tuple[JobSight, ...]:
        """Copy what there is of all jobs, by name."""
        return sights_of(self.watch.jobs.listed(), self.watch.book.open_by_job(), time.monotonic())

    async def find(self, incident: str) -> Incident | None:
        """Return one incident, of the store if it is in memory no more. Raises 503 if the store cannot say."""
        found = self.watch.book.get(incident)
        if found is not None:
            return found
        stored = await self._stored(lambda: self._archive.get(incident))
        if stored is None:
            away = f"no incident {incident!r} is in memory, and {self._why_away()}; try again when it does"
            raise HTTPException(status_code=503, detail=away)
        return stored[0]

    async def incident(self, incident: str) -> Incident:
        """Return one incident, of the store if it is in memory no more. Raises 404, and 503 if the store cannot say."""
        found = await self.find(incident)
        if found is None:
            detail = f"no incident {incident!r} is known to this server; `ncclwatch incidents` lists all"
            raise HTTPException(status_code=404, detail=detail)
        return found

    async def page(self, wanted: Wanted) -> Page:
        """Return a page of incidents; of those in memory, and it says so, while the store does not answer."""
        known = self.watch.book.all()
        stored = await self._stored(lambda: page_of(wanted, known, self._archive.find))
        if stored is not None:
            return stored[0]
        page = await self.desk.make(lambda: page_of(wanted, known, _nothing))
        return replace(page, without=f"{self._why_away()}: only incidents in memory are listed")

    async def losses(self, within_s: float) -> LossReport:
        """Return what hangs have cost that were reported so lately, and why some are missing if any are."""
        now = time.time()
        since = now - within_s
        known = self.watch.book.all()
        held = frozenset(incident.id for incident in known)
        stored = await self._stored(lambda: self._archive.losses(since, held, LOSSES_MAX))
        without = f"{self._why_away()}: only hangs in memory are counted" if stored is None else ""
        found = stored[0] if stored is not None else ()
        if len(found) >= LOSSES_MAX:
            without = f"the store has more hangs than are counted, the newest {LOSSES_MAX:,}; ask for a shorter period"

        def report() -> LossReport:
            mine = (loss_of(incident) for incident in known if incident.opened_at >= since)
            return summed((*found, *(loss for loss in mine if loss is not None)), since, now, without)

        return await self.desk.make(report)

    async def _stored(self, question: Callable[[], T]) -> tuple[T] | None:
        """Return what a question to the store returns; None if it fails or takes too long."""
        if not self._archive.health().working:
            return None
        asking = asyncio.ensure_future(self.archivist.make(question))
        done, _ = await asyncio.wait([asking], timeout=ARCHIVE_S)
        if not done:
            asking.cancel()
            return None
        try:
            return (asking.result(),)
        except StoreFailed as error:
            log.warning("%s; readers see only what is in memory", error)
            return None

    def store_works(self) -> bool:
        """Whether what is found can be stored, or nothing is to be. Never waits."""
        return self._archive.health().working

    def _why_away(self) -> str:
        return f"the incident store {self._archive.health().place} does not answer"


def _nothing(wanted: Wanted, held: frozenset[str], limit: int) -> tuple[Incident, ...]:
    return ()


def _json(found: object) -> bytes:
    """Encode an answer. A list part by part, so that other threads get their turn between them."""
    if isinstance(found, list):
        return b"[" + b",".join(map(_json, found)) + b"]"
    return json_bytes(msgspec.json.encode(found))
