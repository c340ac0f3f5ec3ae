"""Makes traces of jobs for Perfetto: `POST /api/v1/jobs/{job}/trace`.

The nodes are asked for what the rings of some ranks hold. That costs the ranks nothing, and an agent milliseconds.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, HTTPException, Response
from pydantic import Field

from ncclwatch.contract.wire import CommandKind
from ncclwatch_server.http.job_views import nodes_of
from ncclwatch_server.http.problem import Problem
from ncclwatch_server.http.queries import Reader
from ncclwatch_server.http.stack_routes import Rank
from ncclwatch_server.incidents.book import Incident, JobKey
from ncclwatch_server.jobs.history_requests import AT_ONCE_MAX, PATIENCE_S, RANKS_MAX, HistoryRequest
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.jobs.read_model import JobSight
from ncclwatch_server.jobs.reader_requests import wait_for_answers
from ncclwatch_server.tracing.operations import Seen
from ncclwatch_server.tracing.timeline import History, Known, chosen, timeline

MEDIA_TYPE = "application/x-perfetto-trace"
States = Callable[[JobKey], Callable[[], History]]  # of the last minutes of a job; it is unpacked in a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTrace:
    """What a trace is to show."""

    ranks: Annotated[tuple[Rank, ...] | None, Field(min_length=1, max_length=RANKS_MAX)] = None  # None: what matters


def trace_routes(reader: Reader, states: States) -> APIRouter:
    """Return the route. Whoever mounts it lets operators only through."""
    router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])
    refusals: dict[int | str, dict[str, object]] = {code: {"model": Problem} for code in (400, 403, 404, 429)}
    found: dict[int | str, dict[str, object]] = {
        200: {"content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
    }

    @router.post("/{job:path}/trace", response_class=Response, responses=found | refusals)
    async def trace(job: str, wanted: WantedTrace) -> Response:
        """Return the last minutes of a job as a trace that Perfetto opens: states, operations, incidents."""
        sight = reader.sight(job)
        known = reader.watch.jobs.get(job)
        if known is None:
            raise HTTPException(404, f"no job {job!r} reports to this server")
        if wanted.ranks is not None and max(wanted.ranks) >= sight.world_size:
            newest = sight.world_size - 1
            raise HTTPException(404, f"job {job!r} has no rank {max(wanted.ranks)}; name ranks of 0-{newest}")
        if len(known.histories) >= AT_ONCE_MAX:
            raise HTTPException(429, f"{AT_ONCE_MAX} others are tracing job {job!r}; ask again in some seconds")
        history = await reader.desk.make(states(sight.key))
        incidents = tuple(each for each in reader.watch.book.all() if each.key == sight.key)
        before = await reader.desk.make(lambda: _known(sight, None, history, incidents))
        culprits = [culprit.rank for incident in incidents for culprit in incident.verdict.culprits]
        ranks = wanted.ranks if wanted.ranks is not None else chosen(before, culprits)
        request = await ask_views(known, ranks)
        data = await reader.desk.make(lambda: _encoded(_known(sight, request, history, incidents)))
        return Response(data, media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store"})

    return router


def _encoded(known: Known) -> bytes:
    from ncclwatch_server.tracing.perfetto import encode  # half a second, and only for those who want a trace

    return encode(timeline(known))


async def ask_views(job: Job, ranks: Iterable[int]) -> HistoryRequest:
    """Ask the nodes for the views of ranks, and wait for them for a while."""
    by_node: dict[int, list[int]] = {}
    for rank in ranks:
        if not job.state.ended[rank]:
            by_node.setdefault(job.state.owner(rank), []).append(rank)
    questions = {}
    for number, mine in by_node.items():
        served = job.served.get(number)
        if served is not None and served.alive:
            command = served.link.command(CommandKind.INSPECT, served.index, tuple(mine))
            questions[number, command] = set(mine)
    request = HistoryRequest(questions=questions)
    await wait_for_answers(job.histories, request, PATIENCE_S)
    return request


def _known(sight: JobSight, request: HistoryRequest | None, history: History, incidents: tuple[Incident, ...]) -> Known:
    arrived = tuple(request.found.values()) if request is not None else ()
    return Known(
        job=sight.title,
        world_size=sight.world_size,
        views=tuple(each.view for each in arrived),
        seen={each.view.rank: Seen(at_s=each.at_s, clock=each.message) for each in arrived},
        now_s=time.time(),
        hosts={rank: node.host for node in nodes_of(sight) for rank in node.ranks},
        incidents=incidents,
        history=history,
    )
