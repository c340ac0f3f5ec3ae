"""Compares how long ranks need between the same two operations: a late rank, and those that have come to the second.

All ranks run the same code there, as far as is known. So what the others needed tells how long it should take, whatever
kind of work it is. It never tells that the late rank is not going to come.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ncclwatch.contract.model.rank import CallSite, ProcessState, RankView, WaitKind
from ncclwatch_server.judge.theory.case import Case, main_thread
from ncclwatch_server.judge.theory.histories.lines.call_sites import note_at
from ncclwatch_server.judge.theory.places import cannot_look, place_of
from ncclwatch_server.judge.theory.waits.device_order import reads_what_its_device_does
from ncclwatch_server.judge.theory.waits.rank_standing import Block, find_issued, group_of

OVERLONG_S = 12.0  # of pure computation, before a rank is compared with its peers
OVERLONG_TIMES = 20.0  # what the slowest of the others needed


_HEAD = re.compile(r"(while|for|async for)\b.*:$")  # a line that is one itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlong:
    """A rank that computes for much longer than the others did between the same two operations."""

    since_s: float  # since it issued the first of both
    others_s: float  # the longest that another rank needed from there to the second
    loop: str = ""  # head of the innermost loop that it is in, and the others are not; "": none is known


def overlong(case: Case, rank: int, blocks: Sequence[Block]) -> Overlong | None:
    """Return by how much a rank needs longer than those that wait for it, None if not much or nobody can tell."""
    view = case.views[rank]
    if not _computes(view) or _runs_on_some_ranks(case, view):
        return None
    for operation in dict.fromkeys(block.operation for block in blocks if block.operation.kind is WaitKind.COLLECTIVE):
        group = group_of(view, operation.group)
        before = find_issued(view, operation.group, operation.seq - 1)
        if group is None or before is None or group.enqueued != before.seq or view.history[-1] != before:
            continue
        waiting = [block for block in blocks if block.operation == operation]
        needed = [_needed_s(case.views[block.rank], block) for block in waiting]
        known_s = [seconds for seconds in needed if seconds is not None]
        since_s = before.age_s + view.news_age_s
        if known_s and since_s >= max(OVERLONG_S, OVERLONG_TIMES * max(known_s)):
            return Overlong(since_s=since_s, others_s=max(known_s), loop=_loop(case, view, waiting))
    return None


def _needed_s(view: RankView, block: Block) -> float | None:
    """Return how long after the operation before a rank came to that which it waits in, None if that is not known."""
    before = find_issued(view, block.operation.group, block.operation.seq - 1)
    return max(0.0, before.age_s - block.wait.age_s) if before is not None else None


def _computes(view: RankView) -> bool:
    """Say whether the main thread of a rank does nothing but compute, in no call that is known to take long."""
    thread, process = main_thread(view), view.process
    if thread is None or thread.wait is not None or thread.work is not None or not view.history:
        return False
    if reads_what_its_device_does(view, thread):
        return False
    reads = process.io_still_s == 0 and not process.io_unknown
    known = process.state in (ProcessState.RUNNING, ProcessState.SLEEPING)
    return known and process.cpu_still_s == 0 and thread.cpu_still_s == 0 and not reads


def _runs_on_some_ranks(case: Case, view: RankView) -> bool:
    """Say whether a test of the rank led to where a rank is: then the others had nothing to do there."""
    return any(note.condition for frame in _frames(case, view) if (note := note_at(view, frame)) is not None)


def _frames(case: Case, view: RankView) -> tuple[CallSite, ...]:
    thread = main_thread(view)
    if thread is not None and not cannot_look(view):
        return thread.frames
    place = place_of(case, view)
    return (place,) if place is not None else ()


def _loop(case: Case, view: RankView, waiting: Sequence[Block]) -> str:
    others = [case.views[block.rank] for block in waiting]
    theirs = [frame for other in others for thread in other.threads for frame in thread.frames]
    for depth, frame in enumerate(_frames(case, view)):
        note = note_at(view, frame)
        if note is not None and not depth and _HEAD.match(note.text) and frame not in theirs:
            return note.text.removesuffix(":")
        first, last = note.loop_lines if note is not None else (0, 0)
        if note is not None and note.loop and first <= frame.line <= last:
            shared = any(each.file == frame.file and first <= each.line <= last for each in theirs)
            return "" if shared else note.loop
    return ""
