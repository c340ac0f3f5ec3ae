"""Leaves a situation as files: the ring of each rank as it was when nobody wrote to it any more, and the analyzer."""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import RankView
from ncclwatch.contract.model.verdict import Cause, Certainty, Severity, Verdict
from ncclwatch.contract.ring.layout import Word
from ncclwatch.rank.ring.ringfile import RingFile
from ncclwatch_server.judge.theory.case import open_case
from ncclwatch_server.simulation.rings import WrittenRing
from tests.postmortem.analysis import said
from tests.scenarios.through_rings import _Writing

# What only the node or the operating system can tell of an end: a ring has what the rank's own exit hooks wrote.
TOLD_BY_THE_RANK = ("exited", "crashed")


def left_by(snapshot: JobSnapshot, folder: Path) -> Path:
    """Write the rings of all ranks that had one into a folder."""
    for view in snapshot.ranks.values():
        if view.attached:
            _leave(view, folder)
    return folder


def _leave(view: RankView, folder: Path) -> None:
    file = RingFile(
        str(folder / f"{view.rank}-{view.pid}.ring"), rank=view.rank, local_rank=view.local_rank,
        world=(view.world_size, view.local_world_size), attempt=view.attempt,
    )  # fmt: skip
    # Hours ahead: a wait of a scenario may have begun before the machine did.
    ring = WrittenRing(file, time.monotonic_ns() + 10**13 - round(view.news_age_s * 1e9))
    try:
        _Writing(ring, view).all()
        _last_words(ring, view)
    finally:
        ring.close()


def _last_words(ring: WrittenRing, view: RankView) -> None:
    ending = view.ending
    if ending is None:
        return
    ring.beat(ending.age_s)
    kind, code = ("crashed", 1) if ending.exception else (ending.kind, ending.exit_code)  # said before any signal came
    if kind not in TOLD_BY_THE_RANK:
        return
    site = ending.site
    found: dict[str, object] = {"kind": kind, "exit_code": code, "exception": ending.exception}
    if site is not None:
        found |= {"file": site.file, "line": site.line, "function": site.function}
    ring.say(Word.ENDED, json.dumps(found))
    ring.file.set_word(Word.ENDED_NS, ring.turn_back(ending.age_s))


# What a file may say instead, because it knows less: a cause, and what it is a kind of.
KIND_OF = {
    Cause.RANK_CONDITIONAL_COLLECTIVE: (
        Cause.DIVERGENT_CONTROL_FLOW,
        Cause.INIT_INCOMPLETE,
        Cause.COLLECTIVE_ORDER,
    ),
    Cause.UNEVEN_BATCHES: (Cause.DIVERGENT_CONTROL_FLOW, Cause.HOST_STALL),
    Cause.DIVERGENT_CONTROL_FLOW: (Cause.HOST_STALL,),
    Cause.SWALLOWED_EXCEPTION: (Cause.DIVERGENT_CONTROL_FLOW, Cause.HOST_STALL),
    Cause.COLLECTIVE_ORDER: (Cause.DIVERGENT_CONTROL_FLOW,),
    Cause.DATA_STALL: (Cause.HOST_STALL,),
    Cause.PROCESS_FROZEN: (Cause.HOST_STALL,),
    Cause.STUCK_SAVE: (Cause.HOST_STALL,),
    Cause.FILESYSTEM_VIEW: (Cause.HOST_STALL,),
    Cause.INIT_INCOMPLETE: (Cause.HOST_STALL,),
    Cause.CONFIGURATION_DRIFT: (Cause.INIT_INCOMPLETE, Cause.TRANSPORT, Cause.RANK_CRASHED),
    Cause.RNG_STATE_MISMATCH: (Cause.RANK_CRASHED,),
    Cause.DUPLICATE_DEVICE: (Cause.RANK_CRASHED,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Who is named for what."""

    cause: Cause
    ranks: frozenset[int]
    one_of: bool
    late: bool = False  # it only says who had not come at that moment


def claims_of(verdicts: Iterable[Verdict]) -> tuple[Claim, ...]:
    """Return all that verdicts claim, in whatever tone."""
    return tuple(
        Claim(cause=each.cause, ranks=frozenset(culprit.rank for culprit in each.culprits), one_of=each.one_of)
        for each in verdicts
    )


def claims_in_files(folder: Path) -> tuple[Claim, ...]:
    """Return what the analyzer claims of a folder, warnings and worse."""
    return tuple(
        Claim(
            cause=Cause(incident["cause"]), ranks=frozenset(each["rank"] for each in incident["culprits"]),
            one_of=incident["one_of"], late=incident["certainty"] == Certainty.LATE.value,
        )
        for incident in said(folder)["incidents"]
        if incident["severity"] != Severity.INFO.value
    )  # fmt: skip


def awaited_in(snapshot: JobSnapshot) -> frozenset[int]:
    """Return the ranks that have not come to what another one waits in."""
    return frozenset().union(*open_case(snapshot).graph.absent.values())


def is_backed(claim: Claim, live: Iterable[Claim], awaited: frozenset[int]) -> bool:
    """Whether a claim of files says no more than the living job: each rank is named there, for that or closer.

    Who is only said to have been late had not come there either.
    """
    if claim.cause is Cause.UNDETERMINED and claim.one_of:
        return True  # it names nobody for certain, and nothing as the cause
    if claim.cause is Cause.UNDETERMINED and claim.late:
        return claim.ranks <= awaited
    for_this = [each for each in live if _is_weaker(claim.cause, each.cause)]
    if claim.one_of:
        return any(claim.ranks & each.ranks for each in for_this)
    return claim.ranks <= frozenset().union(*(each.ranks for each in for_this if not each.one_of))


def _is_weaker(cause: Cause, live: Cause) -> bool:
    return cause in (live, Cause.UNDETERMINED, *KIND_OF.get(live, ()))
