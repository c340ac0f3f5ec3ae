"""Ranks that others wait for and that work, or have not stood still for long: late, and never a hang.

Such a wait is shown and alarms nobody, until it lasts longer than this job has let such waits last before, and
once more in good time before the backend of the group gives it up and the job ends.
"""

from collections.abc import Iterable

from ncclwatch.contract.model.job import Habit, WaitClass
from ncclwatch.contract.model.phases import Phase
from ncclwatch.contract.model.rank import ProcessState
from ncclwatch.contract.model.verdict import Cause, Certainty, Evidence, Lateness, Severity, Verdict
from ncclwatch.contract.words.text import ADVICE, ADVICE_GIL, ranks_words, seconds_words
from ncclwatch_server.judge.rules.saves import save_words
from ncclwatch_server.judge.theory.case import (
    Case,
    block_evidence,
    culprit,
    explained,
    main_thread,
    onset_s,
    source_evidence,
)
from ncclwatch_server.judge.theory.phases import class_of
from ncclwatch_server.judge.theory.places import PULSE_LOST_S, place_of
from ncclwatch_server.judge.theory.stillness import SIGNS_MIN, signs_of, still_s_of
from ncclwatch_server.judge.theory.waits.rank_standing import Block, timeout_of
from ncclwatch_server.judge.theory.waits.wait_graph import victims_of

# Without any history: what is long by its nature is left to the group's timeout for long.
FIRST_TIME_S = {
    Phase.STEP: 60.0,
    Phase.PIPELINE: 60.0,
    Phase.END_OF_EPOCH: 120.0,
    Phase.STARTUP: 300.0,
    Phase.FIRST_USE: 300.0,
    Phase.OTHER: 300.0,
    Phase.CHECKPOINT: 900.0,
    Phase.VALIDATION: 900.0,
    Phase.COMPILE: 900.0,
}
_PHASE_WORDS = {
    Phase.STEP: "a step",
    Phase.PIPELINE: "a stage of a pipeline",
    Phase.FIRST_USE: "the first use of a group",
    Phase.STARTUP: "the start of a job",
    Phase.COMPILE: "a compilation",
    Phase.CHECKPOINT: "a checkpoint",
    Phase.VALIDATION: "a validation",
    Phase.END_OF_EPOCH: "the end of an epoch",
    Phase.OTHER: "a phase of its own",
}
UNUSUAL_S_MIN = 30.0  # a shorter wait is worth nobody's attention, whatever the job has done before
UNUSUAL_OF_TIMEOUT = 0.25  # but where the group's timeout is short: this share of it
LEAD_OF_TIMEOUT = 0.25  # the last part of a timeout, in which it is near
LEAD_S_MIN = 120.0  # people need some minutes; up to half of a short timeout
PLACES_MAX = 3


def late(case: Case, ranks: list[int]) -> Verdict:
    """Return the verdict on ranks that others wait for and that do not stand still."""
    victims = tuple(rank for rank in victims_of(case.graph, ranks) if rank not in ranks)
    blocks = [block for rank in victims for block in case.found[rank].blocks]
    waited_s = onset_s(blocks)
    kind = wait_class(case, ranks, blocks)
    left_s, timeout_s = _time_left(case, blocks)
    lateness = _lateness(case, kind, blocks, left_s, timeout_s)
    return Verdict(
        cause=Cause.STRAGGLER,
        certainty=Certainty.LATE,
        severity=Severity.WARNING if lateness is not Lateness.NONE else Severity.INFO,
        summary=(
            f"waiting for {_places_words(case, ranks)}, {seconds_words(waited_s)}, {_doing_words(case, ranks)}"
            + _alarm_words(lateness, case.snapshot.habits.get(kind) if kind is not None else None, left_s)
        ),
        explanation=_explanation(case, ranks, victims, kind, timeout_s),
        advice=_advice(case, ranks),
        culprits=tuple(
            culprit(case.views[rank], place_of(case, case.views[rank]), _doing_words(case, [rank])) for rank in ranks
        ),
        victims=victims,
        group=blocks[0].operation.group if blocks else "",
        seq=blocks[0].operation.seq if blocks else 0,
        op=blocks[0].wait.op.value if blocks else "",
        onset_s=waited_s,
        still_s=_still_s(case, ranks),
        waited=kind,
        lateness=lateness,
        explained=explained(case, victims),
        evidence=evidence_of(case, ranks, blocks),
    )


def waited_in(case: Case, ranks: Iterable[int]) -> dict[int, Block]:
    """Return for each of these ranks a wait of another rank that it holds up."""
    waits = {block.operation: block for blocks in case.graph.blocks.values() for block in blocks}
    wanted = set(ranks)
    found: dict[int, Block] = {}
    for operation, block in waits.items():
        for rank in (*case.graph.absent[operation], *operation.members):
            if rank in wanted:
                found.setdefault(rank, block)
    return found


def wait_class(case: Case, ranks: Iterable[int], blocks: list[Block]) -> WaitClass | None:
    """Return the class of a wait for these ranks, None if nobody waits."""
    if not blocks:
        return None
    views = [case.views[rank] for rank in ranks]
    return class_of(views, blocks[0].operation, blocks[0].wait.op.value, case.snapshot.stacks)


def _lateness(case: Case, kind: WaitClass | None, blocks: list[Block], left_s: float, timeout_s: float) -> Lateness:
    if _is_near(left_s, timeout_s):
        return Lateness.DEADLINE
    if kind is None:
        return Lateness.NONE
    operation = blocks[0].operation
    passed = case.snapshot.under_way.get((operation.group, operation.seq), ())
    # A rank that validates and then saves may take its time for both.
    bound_s = sum(_bound_s(case.snapshot.habits.get(each), each) for each in {kind, *passed})
    floor_s = min(UNUSUAL_S_MIN, timeout_s * UNUSUAL_OF_TIMEOUT) if timeout_s else UNUSUAL_S_MIN
    return Lateness.UNUSUAL if onset_s(blocks) > max(floor_s, bound_s) else Lateness.NONE


def _bound_s(habit: Habit | None, kind: WaitClass) -> float:
    return habit.bound_s if habit is not None else FIRST_TIME_S[kind.phase]


def _time_left(case: Case, blocks: Iterable[Block]) -> tuple[float, float]:
    """Return (seconds until the first of these waits is given up, the timeout of its group); (0, 0): unknown."""
    found = []
    for block in blocks:
        view = case.views[block.rank]
        timeout_s = timeout_of(view, block.operation.group)
        if timeout_s > 0:
            found.append((timeout_s - block.wait.age_s - view.news_age_s, timeout_s))
    left_s, timeout_s = min(found, default=(0.0, 0.0))
    return max(0.0, left_s), timeout_s


def _is_near(left_s: float, timeout_s: float) -> bool:
    """Say whether a timeout is so near that somebody has to decide."""
    return timeout_s > 0 and left_s < max(timeout_s * LEAD_OF_TIMEOUT, min(LEAD_S_MIN, timeout_s / 2))


def _places_words(case: Case, ranks: list[int]) -> str:
    """Return "rank 0: validate() train.py:212", one phrase for each place."""
    places: dict[str, list[int]] = {}
    for rank in ranks:
        view = case.views[rank]
        site = place_of(case, view)
        where = f"{site.function}() {site.file.rsplit('/', 1)[-1]}:{site.line}" if site is not None else ""
        phase = f"in phase {view.phase}" if view.phase else ""
        words = " ".join(part for part in (where, phase) if part) or "outside of every collective"
        places.setdefault(words, []).append(rank)
    found = sorted(places.items(), key=lambda item: item[1][0])
    phrases = [f"{ranks_words(who)}: {words}" for words, who in found[:PLACES_MAX]]
    return "; ".join([*phrases, "others elsewhere"] if len(found) > PLACES_MAX else phrases)


def _explanation(
    case: Case, ranks: list[int], victims: tuple[int, ...], kind: WaitClass | None, timeout_s: float
) -> str:
    parts = [
        f"{ranks_words(victims).capitalize()} {'waits' if len(victims) == 1 else 'wait'} for {ranks_words(ranks)}: "
        f"{_doing_words(case, ranks)}."
    ]
    if kind is not None:
        parts.append(_habit_words(case.snapshot.habits.get(kind), kind))
    if timeout_s:
        parts.append(f"The group's timeout ends the job after {seconds_words(timeout_s)}.")
    return " ".join(parts)


def _habit_words(habit: Habit | None, kind: WaitClass) -> str:
    what = f"the phase {kind.name}" if kind.name else _PHASE_WORDS[kind.phase]
    if habit is None:
        return f"Taken for {what}, for which this job has not waited for long before."
    times = "once" if habit.waits == 1 else f"{habit.waits} times"
    return f"Taken for {what}; this job has waited for that {times} before, {seconds_words(habit.longest_s)} at most."


def _alarm_words(lateness: Lateness, habit: Habit | None, left_s: float) -> str:
    """Return why a late rank is worth an alert."""
    if lateness is Lateness.DEADLINE:
        return f"; the group's timeout ends the job in {seconds_words(left_s)}"
    if lateness is Lateness.UNUSUAL and habit is not None:
        return f"; this job has waited for that {seconds_words(habit.longest_s)} at most"
    return ""


def _advice(case: Case, ranks: list[int]) -> str:
    if any(case.views[rank].pulse_age_s >= PULSE_LOST_S for rank in ranks):
        return f"{ADVICE[Cause.STRAGGLER]} {ADVICE_GIL}"
    return ADVICE[Cause.STRAGGLER]


def _still_s(case: Case, ranks: list[int]) -> float:
    """Return for how long all of these ranks have stood still, 0 if one of them works."""
    return min((still_s_of(case.views[rank]) for rank in ranks), default=0.0)


def _doing_words(case: Case, ranks: list[int]) -> str:
    """Return what is known of the work of late ranks, never more."""
    still_s = _still_s(case, ranks)
    saves = [words for rank in ranks if (words := save_words(case.views[rank]))]
    if saves and not still_s:
        return f"in {saves[0]}" + (f"; {len(saves) - 1} more in a save" if len(saves) > 1 else "")
    if still_s:
        return f"no sign of work for {seconds_words(still_s)}"
    views = [case.views[rank] for rank in ranks]
    if any(view.pulse_age_s >= PULSE_LOST_S and view.process.cpu_still_s == 0 for view in views):
        if any(view.process.state is ProcessState.UNKNOWN for view in views):
            return "nobody can see its process"
        return "computing with the GIL held"
    if all(min(signs_of(view)) > 0 and len(signs_of(view)) < SIGNS_MIN for view in views):
        return f"no CPU used for {seconds_words(min(view.process.cpu_still_s for view in views))}, more is not known"
    return "working"


def evidence_of(case: Case, ranks: Iterable[int], blocks: list[Block]) -> tuple[Evidence, ...]:
    """Return what was seen of the ranks that are waited for, and of the first that wait."""
    facts = []
    for rank in ranks:
        view = case.views[rank]
        process, thread = view.process, main_thread(view)
        inside = f" in {process.in_kernel}" if process.in_kernel else ""
        facts.append(
            Evidence(
                source="proc",
                rank=rank,
                fact=f"process {process.state.value}{inside}, no CPU for {seconds_words(process.cpu_still_s)}, "
                f"no I/O for {'an unknown time' if process.io_unknown else seconds_words(process.io_still_s)}",
            )
        )
        if thread is not None and thread.leaf:
            facts.append(
                Evidence(
                    source="ring",
                    rank=rank,
                    fact=f"innermost frame {thread.leaf}, the same for {seconds_words(thread.same_s)}",
                )
            )
        facts += source_evidence(view, place_of(case, view))
    return tuple(facts + [block_evidence(block) for block in blocks[:16]])
