"""Chooses whose stacks are asked for, and in which order: at scale only as many as tell something new.

First the suspects, one rank of each class and as many more as fit, for these the verdict waits a moment; a class is
all ranks that are known to wait in the same call at the same line. Then, unhurried: more of each class in turn,
because ranks that wait in one call need not have come there on one way, and what only the suspects are worth
(native frames, children). In a small job all come first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, zip_longest

from ncclwatch.contract.model.rank import RankView
from ncclwatch.contract.model.verdict import Certainty, Verdict
from ncclwatch_server import limits

_Class = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPlan:
    """Ranks in the order of asking; nobody is in both rounds of plain stacks."""

    first: tuple[int, ...]  # suspects, one of each class, more of each
    then: tuple[int, ...]  # more of each class
    deeply: tuple[int, ...]  # suspects that keep others waiting and do not work


def plan(verdicts: Iterable[Verdict], views: Mapping[int, RankView]) -> StackPlan:
    """Return whose stacks these verdicts need. Pure."""
    said = tuple(verdicts)
    suspects = tuple(dict.fromkeys(culprit.rank for verdict in said for culprit in verdict.culprits))
    # Native frames halt a process for a second: nobody that is known to work is halted.
    still = {c.rank for v in said if v.certainty is not Certainty.LATE for c in v.culprits}
    deeply = tuple(rank for rank in suspects if rank in still)[: limits.STACK_DEEP_MAX]
    victims = sorted({rank for verdict in said for rank in verdict.victims} - set(suspects))
    by_class: dict[_Class, list[int]] = {}
    for rank in victims:
        by_class.setdefault(_class_of(views.get(rank)), []).append(rank)
    # Of the smallest classes first: who differs from most tells most.
    classes = sorted(by_class.values(), key=len)
    turns = [rank for rank in chain.from_iterable(zip_longest(*classes)) if rank is not None]
    # However many the suspects are, each class gets its turn.
    half = limits.STACK_FIRST_MAX // 2
    ordered = (*suspects[:half], *turns[: len(classes)], *suspects[half:], *turns[len(classes) :])
    return StackPlan(
        first=ordered[: limits.STACK_FIRST_MAX],
        then=ordered[limits.STACK_FIRST_MAX : limits.STACK_RANKS_MAX],
        deeply=deeply,
    )


def _class_of(view: RankView | None) -> _Class:
    """Return what a rank waits in and where its main thread stands, as far as its node has told."""
    thread = next((thread for thread in view.threads if thread.main), None) if view is not None else None
    if view is None or thread is None:
        return ()
    if thread.wait is not None:
        return (thread.wait.kind, thread.wait.op, thread.wait.site, thread.wait.label)
    return (thread.doing, thread.leaf)
