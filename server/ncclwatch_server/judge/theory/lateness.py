"""Says whether a wait for ranks that work is longer than this job has let such waits last before, or near its timeout.

Without any history: what is long by its nature is left to the group's timeout for long.
"""

from collections.abc import Iterable, Sequence

from ncclwatch.contract.model.job import Habit, WaitClass
from ncclwatch.contract.model.phases import Phase
from ncclwatch.contract.model.verdict import Lateness
from ncclwatch_server.judge.theory.case import Case, onset_s
from ncclwatch_server.judge.theory.phases import class_of
from ncclwatch_server.judge.theory.waits.rank_standing import Block, timeout_of

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
_COMPARED = (Phase.STEP, Phase.PIPELINE, Phase.END_OF_EPOCH)  # in which all ranks do the same
UNUSUAL_S_MIN = 30.0  # a shorter wait is worth nobody's attention, whatever the job has done before
UNUSUAL_OF_TIMEOUT = 0.25  # but where the group's timeout is short: this share of it
LEAD_OF_TIMEOUT = 0.25  # the last part of a timeout, in which it is near
LEAD_S_MIN = 120.0  # people need some minutes; up to half of a short timeout


def wait_class(case: Case, ranks: Iterable[int], blocks: Sequence[Block]) -> WaitClass | None:
    """Return the class of a wait for these ranks, None if nobody waits."""
    if not blocks:
        return None
    views = [case.views[rank] for rank in ranks]
    return class_of(views, blocks[0].operation, blocks[0].wait.op.value, case.snapshot.stacks)


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


def lateness_of(
    case: Case, kind: WaitClass | None, blocks: Sequence[Block], left: tuple[float, float], *, overlong: bool = False
) -> Lateness:
    """Return whether a wait is worth a word to people.

    `left` are the seconds until it is given up, and the timeout; `overlong`: the others were through with the same work
    in a small part of the time.
    """
    left_s, timeout_s = left
    if _is_near(left_s, timeout_s):
        return Lateness.DEADLINE
    if kind is None:
        return Lateness.NONE
    operation = blocks[0].operation
    passed = case.snapshot.under_way.get((operation.group, operation.seq), ())
    # A rank that validates and then saves may take its time for both.
    bound_s = sum(_bound_s(case.snapshot.habits.get(each), each) for each in {kind, *passed})
    if overlong:
        return Lateness.UNUSUAL
    floor_s = min(UNUSUAL_S_MIN, timeout_s * UNUSUAL_OF_TIMEOUT) if timeout_s else UNUSUAL_S_MIN
    return Lateness.UNUSUAL if onset_s(blocks) > max(floor_s, bound_s) else Lateness.NONE


def may_compare(case: Case, kind: WaitClass | None) -> bool:
    """Say whether all ranks do the same in such work, and this job has not waited for it before."""
    return kind is not None and kind.phase in _COMPARED and kind not in case.snapshot.habits


def allowed_s(case: Case, kind: WaitClass) -> float:
    """Return how long this job lets such waits last."""
    return _bound_s(case.snapshot.habits.get(kind), kind)


def _bound_s(habit: Habit | None, kind: WaitClass) -> float:
    return habit.bound_s if habit is not None else FIRST_TIME_S[kind.phase]


def time_left(case: Case, blocks: Iterable[Block]) -> tuple[float, float]:
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
