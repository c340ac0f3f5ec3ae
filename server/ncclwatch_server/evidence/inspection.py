"""Keeps what the nodes know of a suspicious job, and says when to ask them again.

Pure: the watch loop sends the questions, hands in the answers, and judges the snapshot.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import RankView, StackDump
from ncclwatch.contract.ring.members import unpacked
from ncclwatch_server import limits
from ncclwatch_server.evidence.view_room import ViewRoom
from ncclwatch_server.state.suspicion import Suspicion

Question = tuple[int, int]  # (number of the connection, id of the command)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A view and when it came, on the server's clock."""

    view: RankView
    at: float
    asked_at: float  # it was not taken before this
    link: int = 0  # number of the connection that it came from


class Inspection:
    """The questions about one job and the newest answers."""

    def __init__(self, room: ViewRoom | None = None) -> None:
        self._room = room or ViewRoom()
        self._views: dict[int, Held] = {}
        self._weights: Counter[int] = Counter()  # of the views, by the connection that they came from
        self._unanswered: set[Question] = set()
        self._asked_at: float | None = None
        self._next_at = float("-inf")
        self._unchanged_since: float | None = None
        self.dropped = 0

    @property
    def weight(self) -> int:
        """How many bytes of memory the views take."""
        return self._weights.total()

    @property
    def asking(self) -> bool:
        """Whether questions are under way."""
        return self._asked_at is not None

    def due(self, now: float) -> bool:
        """Whether it is time for the next questions."""
        return self._asked_at is None and now >= self._next_at

    def wake_at(self) -> float:
        """Return when this wants the next look: at the end of its patience or pause."""
        return self._next_at if self._asked_at is None else self._asked_at + limits.ANSWER_S

    def focus(self, ranks: Iterable[int]) -> None:
        """Forget the views of ranks that are not asked any more: in a big job others are asked each time.

        How a rank ended is kept: that changes no more.
        """
        asked = frozenset(ranks)
        for rank in [rank for rank, held in self._views.items() if rank not in asked and held.view.ending is None]:
            self._forget(rank)

    def ask(self, questions: Iterable[Question], now: float) -> None:
        """Note that these were sent."""
        self._unanswered = set(questions)
        self._asked_at = now
        if self._unchanged_since is None:
            self._unchanged_since = now

    def receive_views(self, views: Iterable[RankView], question: Question, now: float) -> None:
        """Keep the views of an answer, or those that came unasked."""
        # An answer that is late, or came unasked, may have waited for as long as an agent may be quiet.
        known = question in self._unanswered and self._asked_at is not None
        asked_at = self._asked_at if known and self._asked_at is not None else now - limits.SILENT_S
        for view in views:
            self._forget(view.rank)
            if len(self._views) >= limits.VIEWS_MAX:
                self._drop(self._least_telling())
            self._views[view.rank] = Held(view=view, at=now, asked_at=asked_at, link=question[0])
            self._weights[question[0]] += view.weight
        self._unanswered.discard(question)
        self.drop(self._weights[question[0]] - limits.VIEWS_BYTES_PER_LINE_MAX, link=question[0])
        self.drop(self.weight - limits.VIEWS_BYTES_PER_JOB_MAX)
        self._room.note(self)

    def _least_telling(self) -> int:
        """Return the rank whose view is dropped first: the oldest of those that live, else the last that has ended."""
        living = [rank for rank, held in self._views.items() if held.view.ending is None]
        if living:
            return min(living, key=lambda rank: self._views[rank].at)
        return max(self._views, key=lambda rank: self._views[rank].at)

    def forget_hearsay(self, ranks: Iterable[int], link: int) -> None:
        """Forget what others have told of ranks that had not attached, now that a connection speaks for them."""
        for rank in ranks:
            held = self._views.get(rank)
            if held is not None and held.link != link and not held.view.attached:
                self._forget(rank)

    def forget_living(self, ranks: Iterable[int]) -> None:
        """Forget the views of ranks that are not watched any more. How one has ended it keeps."""
        for rank in ranks:
            if not self.has_ending(rank):
                self._forget(rank)

    def drop(self, weight: int, *, link: int | None = None) -> None:
        """Let views of at least so many bytes go, of one connection or of all: the oldest, of ranks that live first.

        Of ranks that have ended the last ones go first: they often ended because of those before them.
        """
        if weight <= 0:
            return
        views = self._views
        ranks = [rank for rank, held in views.items() if link is None or held.link == link]
        living = [rank for rank in ranks if views[rank].view.ending is None]
        ended = [rank for rank in ranks if views[rank].view.ending is not None]
        living.sort(key=lambda rank: views[rank].at)
        ended.sort(key=lambda rank: -views[rank].at)
        for rank in (*living, *ended):
            if weight <= 0:
                return
            weight -= views[rank].view.weight
            self._drop(rank)

    def _drop(self, rank: int) -> None:
        self._forget(rank)
        self.dropped += 1

    def _forget(self, rank: int) -> None:
        held = self._views.pop(rank, None)
        if held is not None:
            self._weights[held.link] -= held.view.weight
            if self._weights[held.link] <= 0:
                del self._weights[held.link]

    def lose(self, link: int) -> None:
        """Expect no answers of a connection that broke."""
        self._unanswered = {question for question in self._unanswered if question[0] != link}

    def complete(self, now: float) -> bool:
        """Whether the answers are in, or have been waited for long enough."""
        if self._asked_at is None:
            return False
        return not self._unanswered or now - self._asked_at >= limits.ANSWER_S

    def finish(self, now: float, *, changed: bool, moving: bool = False) -> None:
        """Note that the answers were judged. The longer nothing changes, the longer the pause.

        `moving`: what was said is about ranks that work, and is true of this moment only.
        """
        self._asked_at = None
        self._unanswered = set()
        if changed or self._unchanged_since is None:
            self._unchanged_since = now
        pause_s = _pause_s(now - self._unchanged_since)
        self._next_at = now + (min(pause_s, limits.TICK_S) if moving else pause_s)

    def rest(self) -> None:
        """Nothing is suspicious any more."""
        self._asked_at = None
        self._unanswered = set()
        self._unchanged_since = None
        self._next_at = float("-inf")

    def hurry(self, now: float) -> None:
        """Something happened: ask again at once."""
        self._next_at = now
        self._unchanged_since = now

    def view(self, rank: int) -> RankView | None:
        """Return the newest view of a rank, None if nobody has asked for it."""
        held = self._views.get(rank)
        return held.view if held is not None else None

    def has_ending(self, rank: int) -> bool:
        """Whether it is known how a rank ended. Such a view changes no more."""
        held = self._views.get(rank)
        return held is not None and held.view.ending is not None

    def snapshot(
        self,
        job: str,
        world_size: int,
        suspicion: Suspicion,
        stacks: dict[int, StackDump],
        known_s: float,
        now: float,
    ) -> JobSnapshot:
        """Return what is known now, each view with the age of its news. Members of big groups are runs still."""
        views = {
            rank: replace(held.view, news_age_s=held.view.news_age_s + now - held.at, taken_s=held.at - held.asked_at)
            for rank, held in sorted(self._views.items())
        }
        # After a restart of the server old waits are seen before all nodes are back: what this
        # server has not been able to see for longer than it knows the job is no absence.
        absent_s = min(suspicion.longest_wait_s, known_s)
        return JobSnapshot(
            job=job,
            world_size=world_size,
            ranks=views,
            stacks=stacks,
            silent=dict(suspicion.silent),
            absent_s=absent_s,
        )


def with_members(snapshot: JobSnapshot) -> JobSnapshot:
    """Return a snapshot with the lists of members that were runs until now: for the judge, and as long as it looks.

    What is beyond `MEMBERS_MAX` stays unknown.
    """
    views = unpacked(snapshot.ranks.values(), limits.MEMBERS_MAX)
    return replace(snapshot, ranks=dict(zip(snapshot.ranks, views, strict=True)))


def _pause_s(unchanged_s: float) -> float:
    """Return how long to leave the nodes alone when nothing has changed for so long."""
    if unchanged_s < 15:
        return limits.PAUSE_S
    if unchanged_s < 120:
        return 1.0
    return 2.0 if unchanged_s < 600 else 5.0
