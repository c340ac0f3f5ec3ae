"""Ranks that others wait for work, or have not stood still for long: late, and never a hang.

Such a wait is shown and alarms nobody, until it lasts longer than this job has let such waits last before, and
once more in good time before the backend of the group gives it up and the job ends.
"""

from collections.abc import Sequence

from ncclwatch.contract.model.job import Habit, WaitClass
from ncclwatch.contract.model.phases import Phase
from ncclwatch.contract.model.rank import ProcessState, RankView
from ncclwatch.contract.model.verdict import Cause, Lateness, Severity
from ncclwatch.contract.words.text import ranks_words, seconds_words
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.frames.saves import save_words
from ncclwatch_server.judge.rules.frames.standstill import ADVICE_GIL, end_words, evidence_of, lock_words
from ncclwatch_server.judge.telling.evidence import culprit
from ncclwatch_server.judge.theory.case import Case, main_thread
from ncclwatch_server.judge.theory.places import place_of
from ncclwatch_server.judge.theory.pulse import is_lost
from ncclwatch_server.judge.theory.roots import LateRoot, Root
from ncclwatch_server.judge.theory.stillness import signs_of, still_s_of
from ncclwatch_server.judge.theory.waits.device_order import reads_what_its_device_does

ADVICE = (
    "Raise the timeout in init_process_group(timeout=...), or share the work among the ranks, if that work takes "
    "longer than it. No rank is stuck: the other ranks wait for one that is working."
)
ADVICE_STILL = (
    "Look at what this line waits for: a child process, a file, a lock or an answer from the network. It shows no "
    "activity, and is reported as a hang if that lasts; `ncclwatch stacks` shows where it is now."
)
ADVICE_LOOP = (
    "Check that the line ends at all: a loop's condition and counter, a regular expression, the input that only this "
    "rank has. If it is real work, bound it, share it among the ranks, or raise the group's timeout."
)
ADVICE_DEVICE = (
    "Look at what its device runs. If it computes, share that work among the ranks. It may also wait in what is not "
    "recorded while it runs: make sure that all ranks replay a CUDA graph with collectives equally often, and that "
    "NCCL's sends and receives pair up."
)
ADVICE_RPC = (
    "Look at the rank that this RPC calls: which one that is, and what it does for it, is not recorded. `ncclwatch "
    "stacks` shows the threads that serve calls. Hold no lock during an RPC whose answer may need that lock, and give "
    "init_rpc an rpc_timeout."
)
_RPC = "/torch/distributed/rpc/"  # where a thread stands that waits for an answer
QUIET_S = 2.0  # without any activity
RPC_S = 1.0  # with the same stack there: it does not prepare the call any more
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
PLACES_MAX = 3


def recognise(root: Root, case: Case) -> Explanation | None:
    """Tell of ranks that others wait for and that do not stand still."""
    if not isinstance(root, LateRoot):
        return None
    ranks, lateness = root.ranks, root.lateness
    doing = _doing_words(case, ranks)
    habit = case.snapshot.habits.get(root.waited) if root.waited is not None else None
    return Explanation(
        cause=Cause.STRAGGLER,
        severity=Severity.WARNING if lateness is not Lateness.NONE else Severity.INFO,
        summary=(
            f"waiting for {_places_words(case, ranks)}, {seconds_words(root.onset_s)}, {doing}"
            + _overlong_words(root)
            + _alarm_words(lateness, habit, root.left_s)
        ),
        explanation=_explanation(case, root, doing),
        advice=ADVICE_LOOP if root.overlong is not None else _advice(case, ranks),
        culprits=tuple(
            culprit(case.views[rank], place_of(case, case.views[rank]), _doing_words(case, [rank])) for rank in ranks
        ),
        victims=root.victims,
        evidence=evidence_of(case, ranks, root.blocks),
    )


def _places_words(case: Case, ranks: Sequence[int]) -> str:
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


def _explanation(case: Case, root: LateRoot, doing: str) -> str:
    victims = ranks_words(root.victims).capitalize()
    parts = [f"{victims} {'waits' if len(root.victims) == 1 else 'wait'} for {ranks_words(root.ranks)}: {doing}."]
    if root.waited is not None:
        parts.append(_habit_words(case.snapshot.habits.get(root.waited), root.waited))
    if root.timeout_s:
        parts.append(f"The group's timeout ends the job after {seconds_words(root.timeout_s)}.")
    return " ".join(parts)


def _habit_words(habit: Habit | None, kind: WaitClass) -> str:
    what = f"the phase {kind.name}" if kind.name else _PHASE_WORDS[kind.phase]
    if habit is None:
        return f"Treated as {what}; this job has not waited long for one before."
    times = "once" if habit.waits == 1 else f"{habit.waits} times"
    return f"Treated as {what}; this job has waited for one {times} before, at most {seconds_words(habit.longest_s)}."


def _overlong_words(root: LateRoot) -> str:
    """Return in what loop late ranks are, and how long other ranks needed for the same stretch."""
    found = root.overlong
    if found is None:
        return ""
    loop = f" in the loop `{found.loop}`" if found.loop else ""
    return (
        f"{loop}, {seconds_words(found.since_s)} after its last operation; other ranks needed "
        f"{seconds_words(found.others_s)}"
    )


def _alarm_words(lateness: Lateness, habit: Habit | None, left_s: float) -> str:
    """Return why a late rank is worth an alert."""
    if lateness is Lateness.DEADLINE:
        return f"; the group's timeout ends the job in {seconds_words(left_s)}"
    if lateness is Lateness.UNUSUAL and habit is not None:
        return f"; this job has waited for that {seconds_words(habit.longest_s)} at most"
    return ""


def _advice(case: Case, ranks: Sequence[int]) -> str:
    views = [case.views[rank] for rank in ranks]
    advice = ADVICE_STILL if min(map(still_s_of, views), default=0.0) else ADVICE
    if all(map(_reads_from_device, views)):
        advice = ADVICE_DEVICE
    if all(map(_awaits_rpc, views)):
        advice = ADVICE_RPC
    return f"{advice} {ADVICE_GIL}" if any(map(is_lost, views)) else advice


def _doing_words(case: Case, ranks: Sequence[int]) -> str:
    """Return what is known of the work of late ranks, never more."""
    still_s = min((still_s_of(case.views[rank]) for rank in ranks), default=0.0)
    saves = [words for rank in ranks if (words := save_words(case.views[rank]))]
    if saves and not still_s:
        return f"in {saves[0]}" + (f"; {len(saves) - 1} more in a save" if len(saves) > 1 else "")
    lock = lock_words(case.views[ranks[0]]) if len(ranks) == 1 else ""
    if lock and not still_s:
        return lock
    if still_s:
        end = (end_words(case.views[ranks[0]]) or lock) if len(ranks) == 1 else ""
        return f"no activity for {seconds_words(still_s)}" + (f": {end}" if end else "")
    views = [case.views[rank] for rank in ranks]
    if any(is_lost(view) and view.process.cpu_still_s == 0 for view in views):
        if any(view.process.state is ProcessState.UNKNOWN for view in views):
            return "its process cannot be seen"
        return "computing with the GIL held"
    if all(map(_reads_from_device, views)):
        return f"held up by {'its device' if len(views) == 1 else 'their devices'}"
    if all(map(_awaits_rpc, views)):
        return f"in an RPC without an answer for {seconds_words(min(map(_same_s, views)))}"
    if all(min(signs_of(view)) > 0 for view in views):
        return f"no CPU used for {seconds_words(min(view.process.cpu_still_s for view in views))}, more is not known"
    return _working_words(case, ranks)


def _working_words(case: Case, ranks: Sequence[int]) -> str:
    """Return which of late ranks, one of which at least works, shows a sign of that."""
    quiet = [rank for rank in ranks if still_s_of(case.views[rank]) >= QUIET_S]
    if not quiet:
        return "working"
    longest_s = max(still_s_of(case.views[rank]) for rank in quiet)
    busy = [rank for rank in ranks if rank not in quiet]
    return f"{ranks_words(busy)} working, {ranks_words(quiet)} without activity for up to {seconds_words(longest_s)}"


def _awaits_rpc(view: RankView) -> bool:
    """Say whether a rank waits in torch's RPC. The CPU that its process uses is that of threads that serve calls."""
    thread = main_thread(view)
    return thread is not None and _RPC in thread.leaf and thread.same_s >= RPC_S


def _same_s(view: RankView) -> float:
    thread = main_thread(view)
    return thread.same_s if thread is not None else 0.0


def _reads_from_device(view: RankView) -> bool:
    thread = main_thread(view)
    return thread is not None and reads_what_its_device_does(view, thread)


RULE = Rule(cause=Cause.STRAGGLER, advice=ADVICE, recognise=recognise)
