"""Makes a capture of a job, one file with all that is known of it: `POST /api/v1/jobs/{job}/capture`.

While a job hangs it is what the verdict was made from, and costs the nodes nothing but the stacks that are still
missing. Of a job that runs well the nodes are asked for what its ranks have recorded.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import APIRouter, HTTPException, Response
from pydantic import Field

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import RankView, StackDump
from ncclwatch_server import limits
from ncclwatch_server.http.problem import Problem
from ncclwatch_server.http.stack_routes import ask
from ncclwatch_server.http.trace_routes import ask_views
from ncclwatch_server.incidents.book import Incident
from ncclwatch_server.incidents.capture_file import written
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.jobs.reader_requests import wait_for_answers
from ncclwatch_server.jobs.stack_requests import AT_ONCE_MAX, NATIVE_MAX, choose
from ncclwatch_server.watch.tick import Watch

MEDIA_TYPE = "application/zip"
PATIENCE_S = 10.0
PATIENCE_S_MAX = 60.0
NOTES_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedCapture:
    """How long to wait for stacks."""

    within_s: Annotated[float, Field(gt=0, le=PATIENCE_S_MAX, strict=True)] = PATIENCE_S


def capture_routes(watch: Watch) -> APIRouter:
    """Return the route. Whoever mounts it lets operators only through."""
    router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])
    refusals: dict[int | str, dict[str, object]] = {code: {"model": Problem} for code in (400, 403, 404, 409, 429)}
    found: dict[int | str, dict[str, object]] = {
        200: {"content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
    }

    @router.post("/{job:path}/capture", response_class=Response, responses=found | refusals)
    async def capture(job: str, wanted: WantedCapture) -> Response:
        """Return all that is known of a job in one zip file, which `ncclwatch analyze` reads."""
        known = watch.jobs.get(job)
        if known is None:
            raise HTTPException(404, f"no job {job!r} reports to this server; `ncclwatch status` lists those that do")
        if known.ended:
            raise HTTPException(
                409, f"job {job!r} has ended, and what its ranks recorded is gone; its incidents are kept: "
                "ncclwatch incidents, ncclwatch report",
            )  # fmt: skip
        if max(len(known.captures), len(known.histories)) >= AT_ONCE_MAX:
            raise HTTPException(429, f"{AT_ONCE_MAX} others are looking at job {job!r}; ask again in some seconds")
        data = await _capture(watch, known, wanted.within_s)
        return Response(data, media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store"})

    return router


async def _capture(watch: Watch, job: Job, within_s: float) -> bytes:
    incidents = watch.book.open_of(job.key)
    chosen = choose(job.world_size, incidents)
    asked: Mapping[int, RankView] = {}
    if not watch.snapshot(job).ranks:
        answers = await ask_views(job, chosen.ranks)
        asked = {rank: arrived.view for rank, arrived in answers.found.items()}
    dumps, missing = await _stacks(job, chosen.ranks, incidents, within_s)
    snapshot = _with(watch.snapshot(job), asked, dumps)
    known = [incident for incident in watch.book.all() if incident.key == job.key][-limits.CAPTURE_INCIDENTS_MAX :]
    notes = [f"no stack of rank {rank}: {why}" for rank, why in list(missing.items())[:NOTES_MAX]]
    if len(chosen.ranks) < job.world_size:
        notes.append(f"stacks of {chosen.words}")
    if not snapshot.ranks:
        notes.append("no node has told what its ranks recorded")
    return await asyncio.to_thread(written, snapshot, known, time.time(), dumps, notes)


async def _stacks(
    job: Job, ranks: tuple[int, ...], incidents: tuple[Incident, ...], within_s: float
) -> tuple[Mapping[int, StackDump], Mapping[int, str]]:
    """Return the stacks of ranks, those that are still missing looked at now, and of whom there are none and why.

    A culprit is looked at with its native frames.
    """
    held = dict(job.stacks)
    if job.gathering is not None:
        held.update(job.gathering.dumps)
    culprits = {culprit.rank for each in incidents for culprit in each.verdict.culprits}
    deep = frozenset(sorted(rank for rank in culprits if rank not in held or not held[rank].native)[:NATIVE_MAX])
    wanted = [rank for rank in sorted({*ranks, *deep}) if rank not in held or rank in deep]
    if not wanted:
        return held, {}
    request = ask(job, wanted, deep)
    await wait_for_answers(job.captures, request, within_s)
    for rank, dump in request.dumps.items():
        if dump.threads or not _has_stack(held, rank):
            held[rank] = dump
    return held, {rank: why for rank, why in request.unseen(within_s).items() if not _has_stack(held, rank)}


def _has_stack(held: Mapping[int, StackDump], rank: int) -> bool:
    return rank in held and bool(held[rank].threads)


def _with(snapshot: JobSnapshot, views: Mapping[int, RankView], stacks: Mapping[int, StackDump]) -> JobSnapshot:
    """Return a snapshot with views that were asked for, and with stacks where the judge had none."""
    ranks = {**views, **snapshot.ranks}
    return replace(
        snapshot,
        ranks=dict(sorted(ranks.items())),
        stacks={**stacks, **snapshot.stacks},
        unasked=snapshot.unasked.difference(ranks),
    )
