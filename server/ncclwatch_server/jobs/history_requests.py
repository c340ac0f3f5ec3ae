"""Keeps the views that a reader has asked for, to make a trace of them. The judge does not see them."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from ncclwatch.contract.model.rank import RankView
from ncclwatch_server.evidence.inspection import Question

AT_ONCE_MAX = 2  # traces of one job
RANKS_MAX = 256  # of one trace
PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A view, and when its message came."""

    view: RankView
    at_s: float  # seconds since 1970, by this server's clock
    message: str  # names what came together: the times in one message are of one clock


@dataclass(slots=True, kw_only=True, eq=False)
class HistoryRequest:
    """One question of one reader."""

    questions: dict[Question, set[int]]  # unanswered, with the ranks that are still to come
    found: dict[int, Arrived] = field(default_factory=dict)
    messages: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)  # every question is answered, or its line broke

    def __post_init__(self) -> None:
        """Nothing asked is answered at once."""
        self._settle()

    def receive_views(self, views: Iterable[RankView], question: Question) -> bool:
        """Keep the answer to a question. Returns whether it was one of this request."""
        left = self.questions.get(question)
        if left is None:
            return False
        at_s, self.messages = time.time(), self.messages + 1
        for view in views:
            if view.rank in left:
                left.discard(view.rank)
                self.found[view.rank] = Arrived(view=view, at_s=at_s, message=f"{view.host}, message {self.messages}")
        if not left:  # a long answer comes in several messages
            del self.questions[question]
        self._settle()
        return True

    def lose(self, link: int) -> None:
        """Expect no answers of a connection that broke."""
        self.questions = {question: left for question, left in self.questions.items() if question[0] != link}
        self._settle()

    def _settle(self) -> None:
        if not self.questions:
            self.over.set()
