"""Lets the nodes look where the ranks of a job stand right now: `POST /api/v1/jobs/{job}/stacks`.

Looking costs each rank some milliseconds, and native frames halt it for about a second: this is for operators, it is
a POST, each one is written to the log, and pages of other origins may not ask.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from fastapi import APIRouter, HTTPException, Request, Response
from pydantic import BeforeValidator, Field, StrictBool

from ncclwatch.contract.model.rank import Op, RankView, StackDump
from ncclwatch.contract.model.verdict import MergedStack
from ncclwatch.contract.stacks.places import MAIN_THREAD, Doing, Place, place_of
from ncclwatch.contract.stacks.tree import classes, gangs
from ncclwatch.contract.wire import CommandKind
from ncclwatch.contract.words.printable import json_bytes
from ncclwatch.contract.words.text import WAIT_WORDS, rank_list
from ncclwatch_server.evidence.inspection import Question
from ncclwatch_server.evidence.stack_collection import deeper, importance, main_tree
from ncclwatch_server.http.problem import Problem
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.jobs.reader_requests import wait_for_answers
from ncclwatch_server.jobs.stack_requests import (
    AT_ONCE_MAX,
    NATIVE_MAX,
    PATIENCE_NATIVE_S,
    PATIENCE_S,
    RANKS_MAX,
    Capture,
    choose,
    deep_ranks,
    why_not_native,
)
from ncclwatch_server.judge.theory.case import main_thread
from ncclwatch_server.watch.tick import Watch

log = logging.getLogger("ncclwatch.server")

SCHEMA = 1
STACKS_MAX = 256  # distinct ones in an answer


def _number(value: object) -> object:
    """Refuse what pydantic would take for 0 or 1. Raises `ValueError`."""
    if isinstance(value, bool):
        raise ValueError("a rank is a number")
    return value


Rank = Annotated[int, Field(ge=0, lt=2**31), BeforeValidator(_number)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Whose stacks are wanted."""

    ranks: Annotated[tuple[Rank, ...] | None, Field(min_length=1, max_length=RANKS_MAX)] = (
        None  # None: those that tell most
    )
    native: StrictBool = False  # native frames and child processes as well, of ranks that stand still


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRanks:
    """A node and which of the asked ranks it has."""

    host: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Ranks of which there is no stack, and why."""

    ranks: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Ranks whose main threads stand in one place; `odd` if they are few, where most are in one other place."""

    ranks: tuple[int, ...]
    words: str  # "in all_reduce at train.py:97 in train()"
    odd: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Ranks of which there is no stack, and where they stand by what they have recorded themselves."""

    ranks: tuple[int, ...]
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStacks:
    """Where ranks of a job stand, the odd ones first. What is not known of a rank is told of in `unseen`."""

    schema: int
    job: str
    world_size: int
    asked: tuple[int, ...]
    chosen: str  # how they were chosen, in words
    took_s: float
    hosts: tuple[HostRanks, ...]
    places: tuple[Standing, ...]
    stacks: tuple[MergedStack, ...]  # distinct ones, the main threads first
    left_out: int  # further distinct stacks
    tree: tuple[str, ...]  # the main threads merged by their common beginnings, lines of text
    unseen: tuple[Unseen, ...]
    recorded: tuple[Recorded, ...]  # of the unseen, as far as the server has looked at them: while a job hangs
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a capture has brought, out of the reach of whatever changes meanwhile."""

    job: str
    world_size: int
    ranks: tuple[int, ...]
    chosen: str
    hosts: tuple[HostRanks, ...]
    dumps: Sequence[StackDump]
    unseen: Mapping[int, str]
    views: Mapping[int, RankView]  # of the unseen, where there are any
    took_s: float
    notes: tuple[str, ...]


def stack_routes(watch: Watch) -> APIRouter:
    """Return the route. Whoever mounts it lets operators only through."""
    router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])
    refusals: dict[int | str, dict[str, object]] = {code: {"model": Problem} for code in (400, 403, 404, 409, 429)}

    @router.post("/{job:path}/stacks", response_model=JobStacks, responses=refusals)
    async def stacks(job: str, wanted: Wanted, request: Request) -> Response:
        """Let the nodes look where ranks of a job stand, and return their stacks merged."""
        found = watch.jobs.get(job)
        if found is None:
            raise HTTPException(404, f"no job {job!r} reports to this server; `ncclwatch status` lists those that do")
        client = request.client.host if request.client else "unknown"
        return Response(await _capture(watch, found, wanted, client), media_type="application/json")

    return router


async def _capture(watch: Watch, job: Job, wanted: Wanted, client: str) -> bytes:
    incidents = watch.book.open_of(job.key)
    choice = choose(job.world_size, incidents)
    named = wanted.ranks is not None
    ranks = tuple(sorted(set(wanted.ranks))) if wanted.ranks is not None else choice.ranks
    deep = deep_ranks(ranks, named, incidents) if wanted.native else ()
    _check(job, ranks, deep if named else ())
    log.info(
        "stacks of %d ranks of job %s (%s) asked for by %s; native frames of %s",
        len(ranks), job.id, rank_list(ranks)[:200], client, rank_list(deep) or "none",
    )  # fmt: skip
    capture = ask(job, ranks, frozenset(deep))
    began = time.monotonic()
    patience_s = PATIENCE_NATIVE_S if deep else PATIENCE_S
    await wait_for_answers(job.captures, capture, patience_s)
    took_s = time.monotonic() - began
    notes = tuple(filter(None, (_too_many(wanted, ranks, deep), why_not_native(capture.dumps, deep))))
    unseen = capture.unseen(took_s)
    draft = Draft(
        job=job.id,
        world_size=job.world_size,
        ranks=ranks,
        chosen="as named" if named else choice.words,
        hosts=_hosts(job, ranks),
        dumps=[dump for _, dump in sorted(capture.dumps.items())],
        unseen=unseen,
        views={rank: view for rank in unseen if (view := job.inspection.view(rank)) is not None},
        took_s=round(took_s, 2),
        notes=notes,
    )
    # Merging and writing out the stacks of 256 ranks takes tens of milliseconds, which no agent has to wait for.
    return await asyncio.to_thread(lambda: json_bytes(msgspec.json.encode(report(draft))))


def ask(job: Job, ranks: Iterable[int], deep: frozenset[int]) -> Capture:
    """Send a job's agents the question where these ranks stand. One command to each, or two where some go deep."""
    questions: dict[tuple[int, bool], list[int]] = {}
    unasked: dict[int, str] = {}
    for rank in ranks:
        number = job.state.owner(rank)
        served = job.served.get(number)
        if job.state.ended[rank]:
            unasked[rank] = "it has ended"
        elif served is None:
            unasked[rank] = "no node speaks for it"
        elif not served.alive:
            unasked[rank] = f"its agent on {served.link.host} is not connected"
        else:
            questions.setdefault((number, rank in deep), []).append(rank)
    sent: dict[Question, tuple[int, ...]] = {}
    for (number, deeply), asked in questions.items():
        served = job.served[number]
        command = served.link.command(CommandKind.STACKS, served.index, tuple(asked), deeply=deeply)
        sent[number, command] = tuple(asked)
    return Capture(questions=sent, unasked=unasked)


def _check(job: Job, ranks: Sequence[int], deep: Sequence[int]) -> None:
    """Refuse what cannot be done, with what to ask for instead."""
    if ranks and ranks[-1] >= job.world_size:
        newest = job.world_size - 1
        raise HTTPException(404, f"job {job.id!r} has no rank {ranks[-1]}; name ranks of 0-{newest}")
    if len(deep) > NATIVE_MAX:
        raise HTTPException(
            409, f"native frames of {len(deep)} ranks were asked for, and each is halted for about a second; name at "
            f"most {NATIVE_MAX}",
        )  # fmt: skip
    if job.ended:
        raise HTTPException(409, f"job {job.id!r} has ended: its ranks stand nowhere; its incidents have their stacks")
    if len(job.captures) >= AT_ONCE_MAX:
        raise HTTPException(
            429, f"{AT_ONCE_MAX} others are looking at the stacks of job {job.id!r}; ask again in some seconds"
        )  # fmt: skip


def _too_many(wanted: Wanted, ranks: Sequence[int], deep: Sequence[int]) -> str:
    if not wanted.native or deep:
        return ""
    return (
        f"no native frames: none of the {len(ranks)} ranks is a culprit of an open incident, and each would be halted "
        f"for about a second; name up to {NATIVE_MAX} ranks"
    )


def report(draft: Draft) -> JobStacks:
    """Return what is said of a capture. Pure."""
    merged = merge_all(draft.dumps)
    shown = tuple(merged[:STACKS_MAX])
    standing = gangs({dump.rank: _place(dump) for dump in draft.dumps if dump.threads})
    return JobStacks(
        schema=SCHEMA,
        job=draft.job,
        world_size=draft.world_size,
        asked=draft.ranks,
        chosen=draft.chosen,
        took_s=draft.took_s,
        hosts=draft.hosts,
        places=tuple(Standing(ranks=gang.ranks, words=gang.place.words, odd=gang.odd) for gang in standing),
        stacks=shown,
        left_out=len(merged) - len(shown),
        tree=main_tree(shown),
        unseen=tuple(Unseen(ranks=who, why=why) for why, who in _together(draft.unseen)),
        recorded=tuple(Recorded(ranks=who, words=words) for words, who in _together(_recorded(draft.views))),
        notes=draft.notes,
    )


def _together(words: Mapping[int, str]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield what is said with the ranks of which the same is."""
    found: dict[str, list[int]] = {}
    for rank, said in words.items():
        found.setdefault(said, []).append(rank)
    yield from ((said, tuple(ranks)) for said, ranks in found.items())


def _recorded(views: Mapping[int, RankView]) -> dict[int, str]:
    """Return where ranks stand by their own records: the wait their main thread has entered, else the line it is at."""
    found = {}
    for rank, view in views.items():
        thread = main_thread(view)
        if view.ending is not None or thread is None:
            continue
        if thread.wait is not None:
            kind, op = thread.wait.kind, thread.wait.op
            call = WAIT_WORDS.get(kind) or (op.value if op is not Op.UNKNOWN else kind.value)
            found[rank] = f"in {call} at {thread.wait.site or 'an unknown line'}"
        elif thread.doing is not None:
            found[rank] = f"at {thread.doing}"
    return found


def merge_all(dumps: Iterable[StackDump]) -> list[MergedStack]:
    """Return the distinct stacks of all these ranks, the main threads first, with what a closer look showed."""
    found = list(dumps)
    merged = [MergedStack(ranks=s.ranks, thread=s.thread, frames=s.frames) for s in classes(found)]
    merged += [stack for dump in found for stack in deeper(dump)]
    return sorted(merged, key=lambda stack: (importance(stack), len(stack.ranks), stack.ranks))


def _place(dump: StackDump) -> Place:
    """Return where a rank stands: by its native frames where they show a wait that Python's do not."""
    main = next((frames for thread, frames in dump.threads if thread == MAIN_THREAD), ())
    native = place_of(dump.native)
    return native if native.doing is Doing.COMMUNICATION else place_of(main)


def _hosts(job: Job, ranks: Iterable[int]) -> tuple[HostRanks, ...]:
    by_host: dict[str, list[int]] = {}
    for rank in ranks:
        served = job.served.get(job.state.owner(rank))
        if served is not None:
            by_host.setdefault(served.link.host, []).append(rank)
    return tuple(HostRanks(host=host, ranks=tuple(found)) for host, found in by_host.items())
