"""Concludes what stacks alone prove about a job, in a sentence, and no more. Pure.

A stack says where a rank is, not how many calls it has made before, nor in which group it makes this one. So two ranks
in different calls are said to be in different calls, never to wait for each other; a rank outside every
collective is said to be outside, and that others wait for it only with an if.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ncclwatch.contract.model.rank import ProcessState
from ncclwatch.contract.stacks.places import Doing, Place
from ncclwatch.contract.words.text import rank_list, ranks_words
from ncclwatch_agent.diagnose.looks import Motion, Seen
from ncclwatch_agent.diagnose.ranks import FoundJob

COUNTS = "Stacks alone do not show how many calls each has made before, nor in which process group."
PLACES_MAX = 4  # named in one sentence
_AT_WORK = (Motion.MOVES, Motion.STAYS, Motion.BUSY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What is said of a job."""

    sentences: tuple[str, ...]
    stands: bool  # some rank is stuck, frozen or missing


def conclude(job: FoundJob, seen: Sequence[Seen]) -> Conclusion:
    """Return what the looks at the ranks of a job prove."""
    frozen = [one for one in seen if one.motion is Motion.FROZEN]
    gone = [one for one in seen if one.motion is Motion.GONE]
    still = [one for one in seen if one.motion is Motion.STILL]
    said = [*_missing(job, gone), *map(_frozen_words, frozen), *_doubles(job)]
    said += _standing(still, [one for one in seen if one.motion in _AT_WORK], whole=not (frozen or gone or job.missing))
    said += _unread(seen)
    if job.elsewhere:
        said.append(
            f"{_first_up(ranks_words(job.elsewhere))} run on other nodes: run this there too. "
            "Where the job has attached, `ncclwatch diagnose --job NAME` lets the agents of all its nodes look."
        )
    idle = any(one.motion is Motion.IDLE for one in seen)
    return Conclusion(sentences=tuple(said), stands=bool(still or frozen or gone or idle or job.missing))


def _standing(still: Sequence[Seen], at_work: Sequence[Seen], *, whole: bool) -> Iterable[str]:
    """Say who stands where. `whole`: no rank of this node is frozen or missing."""
    waiting = [one for one in still if one.place.doing is Doing.COMMUNICATION]
    others = [one for one in still if one.place.doing is not Doing.COMMUNICATION]
    if not still:
        if at_work and whole:
            yield f"No hang is visible: {_at_work_words(at_work)}, and no rank is stuck."
        elif at_work:
            yield _first_up(f"{_at_work_words(at_work)}.")
        return
    if not waiting:
        yield f"{_first_up(_stand_words(others))}, in no collective that their stacks show."
        if any(one.place.doing is Doing.BACKWARD for one in others):
            yield "In backward they may wait for the gradients of other ranks; their stacks do not tell."
    elif others:
        awaited = ranks_words(one.rank for one in others)
        shown = "its stack shows" if len(others) == 1 else "their stacks show"
        yield f"{_first_up(_stand_words(others))}, in no collective that {shown}, while {_stand_words(waiting)}."
        yield f"If {_them(waiting)} needs {awaited}, then that is what {_who(waiting)} waits for. {COUNTS}"
    elif not at_work:
        yield _all_wait(waiting, whole)
    if waiting and at_work and not others:
        yield (
            f"{_first_up(_stand_words(waiting))}, while {_at_work_words(at_work)}. "
            "A wait for slow work looks the same as the beginning of a hang: look again, and see what has changed."
        )
    elif at_work:
        yield _first_up(f"{_at_work_words(at_work)}.")


def _all_wait(waiting: Sequence[Seen], whole: bool) -> str:
    places = {one.place for one in waiting}
    calls = {one.place.call for one in waiting}
    stand = _first_up(_stand_words(waiting))
    if len(calls) > 1:
        return f"{stand}: they are in different calls. {COUNTS}"
    if len(places) > 1:
        return f"{stand}: the same call at different lines, which may be different calls. {COUNTS}"
    if len(waiting) == 1:
        return f"{stand}. Its stack does not show what it waits for." if whole else f"{stand}."
    if not whole:
        return f"{stand}."
    return (
        f"{stand}: all that are here are in the same call. Stacks alone do not show why it does not "
        "end: a rank may have made a call more or fewer before, one on another node may not have entered it, or the "
        "network may have failed."
    )


def _missing(job: FoundJob, gone: Sequence[Seen]) -> Iterable[str]:
    if job.missing:
        verb = "has" if len(job.missing) == 1 else "have"
        yield (
            f"{_first_up(ranks_words(job.missing))} {verb} no process here, and should: "
            f"{job.local_world_size} ranks belong on this node (LOCAL_WORLD_SIZE). "
            "Ended, or not started: stacks do not tell."
        )
    if gone:
        yield f"{_first_up(ranks_words(one.rank for one in gone))} ended during the looks."


def _doubles(job: FoundJob) -> Iterable[str]:
    for rank, pids in job.doubles:
        listed = ", ".join(map(str, pids))
        yield (
            f"{len(pids)} processes were started as rank {rank} (pids {listed}); the newest is shown. "
            "One may be left over from an earlier start."
        )


def _frozen_words(one: Seen) -> str:
    who = f"Rank {one.rank} (pid {one.pid})"
    if one.state is ProcessState.STOPPED:
        return f"{who} is stopped (state T) and runs nothing until it is continued: kill -CONT {one.pid}."
    if one.state is ProcessState.TRACED:
        return f"{who} is held by a debugger (state t) and runs nothing until that lets it go."
    place = f", in {one.in_kernel}" if one.in_kernel else ""
    return f"{who} was in an uninterruptible wait of the kernel (state D{place}) in every look: storage, mostly."


def _unread(seen: Sequence[Seen]) -> Iterable[str]:
    idle = [one.rank for one in seen if one.motion is Motion.IDLE]
    if idle:
        stacks, threads, wait = (
            ("stacks", "their main threads", "they wait") if len(idle) > 1 else ("stack", "its main thread", "it waits")
        )
        yield (
            f"The {stacks} of {ranks_words(idle)} could not be read. The scheduler has not run {threads} between the "
            f"looks: where {wait}, only a stack would tell."
        )


def _stand_words(still: Iterable[Seen]) -> str:
    return _listed("are", "is", still)


def _at_work_words(at_work: Sequence[Seen]) -> str:
    moving = [one for one in at_work if one.motion is Motion.MOVES]
    staying = [one for one in at_work if one.motion is Motion.STAYS]
    busy = [one.rank for one in at_work if one.motion is Motion.BUSY]
    said = []
    if moving:
        said.append(f"{ranks_words(one.rank for one in moving)} {'move' if len(moving) > 1 else 'moves'}")
    if staying:
        words = _listed("stay", "stays", staying)
        said.append(f"{words}, running in between")
    if busy:
        said.append(f"{ranks_words(busy)} {'run' if len(busy) > 1 else 'runs'} (stack unread)")
    return " and ".join(said)


def _listed(plural: str, singular: str, seen: Iterable[Seen]) -> str:
    """Return "rank 2 is in barrier at ..., ranks 0-1,3 are in all_reduce at ...", the fewest first."""
    together: dict[Place, list[int]] = {}
    for one in seen:
        together.setdefault(one.place, []).append(one.rank)
    ordered = sorted(together.items(), key=lambda item: (len(item[1]), item[1]))
    said = [
        f"{ranks_words(ranks)} {plural if len(ranks) > 1 else singular} {place.words}"
        for place, ranks in ordered[:PLACES_MAX]
    ]
    rest = [rank for _, ranks in ordered[PLACES_MAX:] for rank in ranks]
    if rest:
        said.append(f"{ranks_words(rest)} {plural if len(rest) > 1 else singular} elsewhere")
    return ", ".join(said)


def _them(waiting: Sequence[Seen]) -> str:
    calls = {one.place.call for one in waiting}
    return f"that {next(iter(calls))}" if len(calls) == 1 else "one of these calls"


def _who(waiting: Sequence[Seen]) -> str:
    ranks = [one.rank for one in waiting]
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"each of {rank_list(ranks)}"


def _first_up(text: str) -> str:
    return text[:1].upper() + text[1:]
