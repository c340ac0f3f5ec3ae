"""Asks closely about the slow ranks of a job, and some of their like to compare them with.

A question to a few agents when something is found and now and then while it lasts: their views tell a slow rank's
process, and the gradient buckets in which it loses time.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from ncclwatch.contract.model.rank import RankView
from ncclwatch_server.evidence.inspection import Question
from ncclwatch_server.stragglers.reasons.gradients import SlowBucket, slow_buckets

SUSPECTS_MAX = 4
LIKE_MAX = 3
AGAIN_S = 60.0
Ask = Callable[[tuple[int, ...]], Iterable[Question]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What a close look at a slow rank told."""

    pid: int = 0
    device: str = ""
    buckets: tuple[SlowBucket, ...] = ()


class Closely:
    """The questions about the slow ranks of one job, and their newest answers."""

    def __init__(self) -> None:
        self._asked: set[Question] = set()
        self._asked_at = float("-inf")
        self._suspects: tuple[int, ...] = ()
        self._views: dict[int, RankView] = {}

    def ask_about(self, suspects: Iterable[int], like: Iterable[int], ask: Ask, now: float) -> None:
        """Ask about these ranks, if they are others than before or the answers are old."""
        few = tuple(suspects)[:SUSPECTS_MAX]
        if not few or (set(few) <= set(self._suspects) and now - self._asked_at < AGAIN_S):
            return
        others = tuple(rank for rank in like if rank not in few)[:LIKE_MAX]
        self._suspects, self._asked_at, self._views = few, now, {}
        self._asked = set(ask((*few, *others)))

    def receive_views(self, views: Iterable[RankView], question: Question) -> bool:
        """Keep the views of an answer. Returns whether it was one to us."""
        if question not in self._asked:
            return False
        self._asked.discard(question)
        room = SUSPECTS_MAX + LIKE_MAX - len(self._views)
        self._views.update((view.rank, view) for view in islice(views, max(0, room)))
        return True

    def detail(self, rank: int) -> Detail:
        """Return what is known of a slow rank."""
        view = self._views.get(rank)
        if view is None:
            return Detail()
        like = [each for other, each in self._views.items() if other not in self._suspects]
        return Detail(pid=view.pid, device=view.device, buckets=slow_buckets(view, like))
