"""Finds those of the ranks that wait who came there with an exception in hand.

A wait that is reached while an exception is handled (in an except block, in __exit__, in finally) is not the one that
the others are in: they know nothing of the exception.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ncclwatch.contract.model.rank import CallSite, RankView


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """An exception that a blocked rank is handling."""

    rank: int
    text: str  # "Type: message"
    site: CallSite | None  # where it was raised


def handled_by(view: RankView) -> Handled | None:
    """Return the exception that a blocked thread of this rank handles."""
    for thread in view.threads:
        if thread.alive and thread.wait is not None and thread.exception and not _has_gone_on(view, thread.exception):
            return Handled(rank=view.rank, text=thread.exception, site=thread.exception_site)
    return None


def have_caught_apart(views: Mapping[int, RankView], ranks: Iterable[int], others: Iterable[int]) -> bool:
    """Say whether each of some ranks caught an exception since it was last through with a call, and no other did."""
    return all(_has_caught(views[rank]) for rank in ranks) and not any(_has_caught(views[rank]) for rank in others)


def is_alone_with(views: Mapping[int, RankView], view: RankView, exception: str) -> bool:
    """Say whether a rank has made no call since an exception, and some other rank knows of none like it."""
    if _has_gone_on(view, exception):
        return False
    kind = exception.partition(":")[0]
    return not all(_has_one_of(other, kind) for other in views.values())


def _has_one_of(view: RankView, kind: str) -> bool:
    """Say whether a rank handles an exception of a type, or has caught one since it was last through with a call."""
    handled = [thread.exception for thread in view.threads if thread.main and thread.exception]
    caught = [view.last_exception] if _has_caught(view) else []
    return any(each.partition(":")[0] == kind for each in (*handled, *caught))


def _has_caught(view: RankView) -> bool:
    return bool(view.last_exception) and not _has_gone_on(view, view.last_exception)


def _has_gone_on(view: RankView, exception: str) -> bool:
    """Say whether operations have completed since: then it is a block this rank works in, and nothing new."""
    since_s = view.last_exception_s if view.last_exception == exception else 0.0
    return any(op.completed and op.age_s < since_s for op in view.history)


def astray(views: Mapping[int, RankView], ranks: Iterable[int]) -> tuple[Handled, ...]:
    """Return the exceptions of those ranks that handle one, () if none does, or all do: then it is how they work."""
    everyone = tuple(ranks)
    found = tuple(handled for rank in everyone if (handled := handled_by(views[rank])) is not None)
    return found if len(found) < len(everyone) else ()
