"""Gives one target its messages, each incident in its own order, whatever happens to the others.

For each incident with something to tell there is a task: it tells what is due, tries again with growing pauses while
the target is away, and ends. What is told is decided anew at each attempt, so nothing outdated is sent late.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_delay,
    wait_exponential,
    wait_random,
)

from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.job_names import namespace
from ncclwatch_server.incidents.book import Incident, IncidentState
from ncclwatch_server.notify.delivery import SEND_S, Channel, Refused, Undelivered
from ncclwatch_server.notify.message import Message
from ncclwatch_server.notify.records import Records
from ncclwatch_server.notify.silences import Silences
from ncclwatch_server.notify.stages import HOLD_S, NEVER, Due, Matter, Stage, Told, due, tell
from ncclwatch_server.notify.targets import AnyTarget

log = logging.getLogger("ncclwatch.server")

SPOOL_MAX = 256  # incidents that wait for one target
SENDS_MAX = 4  # to one target at a time


class Outcome(str, Enum):
    """What became of a message, or of an attempt."""

    DELIVERED = "delivered"
    RETRIED = "retried"  # an attempt that failed
    REFUSED = "refused"  # the target will never take it
    GIVEN_UP = "given_up"  # tried for too long
    DROPPED = "dropped"  # no room in the spool
    SILENCED = "silenced"  # incidents whose first message a silence held back
    OVERTAKEN = "overtaken"  # incidents that were over before they could be told


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """How fast things are done. Tests use other values."""

    send_s: float = SEND_S
    hold_s: float = HOLD_S
    pause_s: float = 1.0  # before the first new attempt, twice as long before each next one
    pause_s_max: float = 60.0
    give_up_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """An incident as it is now."""

    incident: Incident
    step: int = 0  # of the rank that is furthest; 0: unknown
    settled: bool = False  # no more stacks are expected
    stored: bool = False  # it comes from the store: nobody has judged it since the start


@dataclass(slots=True, kw_only=True, eq=False)
class _Case:
    """One incident, as this courier sees it."""

    incident: Incident
    since: float
    step: int = 0
    settled: bool = False
    owed: bool = False
    silenced: bool = False  # counted
    closed_at: float | None = None
    trying: Stage = Stage.FIRING
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


class Courier:
    """Tells one target of all incidents that it wants to hear of. Lives in the notifier's event loop."""

    def __init__(
        self,
        target: AnyTarget,
        channel: Channel,
        records: Records,
        silences: Silences,
        wall: Callable[[], float],
        base: str = "",
        rhythm: Rhythm | None = None,
    ) -> None:
        self.name = target.name
        self.outcomes = dict.fromkeys(Outcome, 0)
        self._target = target
        self._channel = channel
        self._records = records
        self._silences = silences
        self._wall = wall
        self._base = base
        self._rhythm = rhythm or Rhythm()
        self.leads: Callable[[], bool] = lambda: True  # this server may notify now
        self._cases: dict[str, _Case] = {}
        self._waiting: dict[str, _Case] = {}  # the spool: those with something to tell
        self._room = asyncio.Semaphore(SENDS_MAX)
        self._closing = asyncio.Event()
        self._failing = False

    @property
    def waiting(self) -> int:
        """Return how many incidents wait for this target."""
        return len(self._waiting)

    def take(self, news: News) -> None:
        """Hear of an incident."""
        incident = news.incident
        told = self._records.told(self.name, incident.id)
        stands = told is not None and told.stage is not Stage.RESOLVED
        case = self._cases.get(incident.id)
        if case is None and not stands and not self._target.wants(incident):
            return  # whoever was told of it, or is just being told, hears its end, however mild it is
        if case is None and news.stored and not self._owes(incident):
            return
        now = asyncio.get_running_loop().time()
        if case is None:
            case = self._cases[incident.id] = _Case(incident=incident, since=now, owed=self._is_overdue(news))
        if incident.open and not news.stored and not (case.incident.open and case.owed):
            case.owed = not stands
        case.incident, case.step = incident, news.step or case.step
        case.settled = case.settled or news.settled
        case.closed_at = None if incident.open else case.closed_at or now
        self._attend(case)

    def look_again(self) -> None:
        """Decide anew about all incidents: the silences have changed."""
        for case in tuple(self._cases.values()):
            self._attend(case)

    def untold(self) -> tuple[News, ...]:
        """Return what it knows of all incidents that are not over for it, for another courier to go on with."""
        return tuple(News(incident=c.incident, step=c.step, settled=c.settled) for c in self._cases.values())

    async def close(self, grace_s: float) -> None:
        """Tell what can be told at once, and end."""
        self._closing.set()
        for case in tuple(self._cases.values()):
            self._attend(case)
        tasks = [case.task for case in self._cases.values() if case.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _attend(self, case: _Case) -> None:
        case.wake.set()
        if case.task is None:
            case.task = asyncio.create_task(self._see_to(case))

    async def _see_to(self, case: _Case) -> None:
        """Tell what is due of one incident, until nothing is."""
        try:
            while await self._take_a_step(case):
                pass
        except Exception:
            # One incident that cannot be put into words must not keep the others untold.
            self.outcomes[Outcome.GIVEN_UP] += 1
            log.exception("target %s: telling of incident %s failed", self.name, case.incident.id)
        finally:
            case.task = None
            if not case.incident.open and self._cases.get(case.incident.id) is case:
                del self._cases[case.incident.id]

    async def _take_a_step(self, case: _Case) -> bool:
        """Tell what is due, or wait until something may be. Returns whether there is more to do."""
        case.wake.clear()
        found = self._due(case)
        if found.stage is not None:
            return await self._insist(case)
        if found.wait_s == NEVER:
            if case.owed and case.silenced and not case.incident.open and self._told(case) is None:
                # Or the next server, which finds no silence any more, would send what this one held back.
                self._records.note(self.name, case.incident.id, tell(case.incident, Stage.RESOLVED, None))
            elif case.owed and not case.silenced and not case.incident.open:
                self.outcomes[Outcome.OVERTAKEN] += 1
            return False
        try:
            await asyncio.wait_for(case.wake.wait(), found.wait_s)
        except asyncio.TimeoutError:
            if self._channel.refresh_s and self._stands(case):
                await self._refresh(case)
        return True

    def _due(self, case: _Case) -> Due:
        """Return what to tell, with the pauses of silences and of repeated messages."""
        now = asyncio.get_running_loop().time()
        muted_s = self._silences.muted_for(case.incident)
        told = self._told(case)
        if (told is None or told.stage is Stage.RESOLVED) and not self._target.wants(case.incident):
            return Due()
        found = due(
            Matter(
                incident=case.incident,
                told=told,
                settled=case.settled,
                owed=case.owed,
                muted=muted_s > 0,
                known_s=now - case.since,
                closed_s=now - case.closed_at if case.closed_at is not None else 0.0,
                hold_s=0.0 if self._closing.is_set() else self._rhythm.hold_s,
            )
        )
        if found.stage is None and muted_s > 0 and case.owed and not case.silenced:
            case.silenced = True
            self.outcomes[Outcome.SILENCED] += 1
        if found.stage is not None or not case.incident.open:
            return found
        wait_s = min(found.wait_s, muted_s + 0.01) if muted_s > 0 else found.wait_s
        if self._channel.refresh_s and self._stands(case):
            wait_s = min(wait_s, self._channel.refresh_s)
        return Due(wait_s=NEVER if self._closing.is_set() else wait_s)

    def _owes(self, incident: Incident) -> bool:
        """Whether this target must hear more of an incident that a store has kept, or may have to."""
        told = self._records.told(self.name, incident.id)
        return incident.open or self._is_untold(incident) or (told is not None and told.stage is not Stage.RESOLVED)

    def _is_overdue(self, news: News) -> bool:
        return news.stored and self._is_untold(news.incident)

    def _is_untold(self, incident: Incident) -> bool:
        """Whether a job has ended of it, its end was stored, and the server that tried to tell of it ended as well."""
        if incident.state is not IncidentState.ENDED or self._records.told(self.name, incident.id) is not None:
            return False
        # A clock of another server may be ahead.
        return abs(self._wall() - (incident.closed_at or 0.0)) <= self._rhythm.give_up_s

    def _told(self, case: _Case) -> Told | None:
        return self._records.told(self.name, case.incident.id)

    def _stands(self, case: _Case) -> bool:
        """Whether the target believes that it stands, and it does."""
        told = self._told(case)
        return case.incident.open and told is not None and told.stage is not Stage.RESOLVED

    async def _insist(self, case: _Case) -> bool:
        """Tell what is due, again and again until it has arrived. Returns False if that is for the next start."""
        self._enqueue(case)
        try:
            await self._retrying()(self._try, case)
        except Undelivered as error:
            if self._closing.is_set():
                return False
            self._give_up(case, Outcome.GIVEN_UP, "could not be reached for too long with", error)
        except Refused as error:
            self._give_up(case, Outcome.REFUSED, "refuses", error)
        finally:
            self._waiting.pop(case.incident.id, None)
        return True

    def _enqueue(self, case: _Case) -> None:
        """Find room in the spool: the oldest that nobody has heard of goes, of the namespace with most in it."""
        if len(self._waiting) >= SPOOL_MAX:
            spaces = Counter(namespace(each.incident.job) for each in self._waiting.values())
            greediest = spaces.most_common(1)[0][0]
            theirs = [each for each in self._waiting.values() if namespace(each.incident.job) == greediest]
            oldest = next((each for each in theirs if not self._stands(each)), theirs[0])
            del self._waiting[oldest.incident.id]
            if oldest.task is not None:
                oldest.task.cancel()
            if not self.outcomes[Outcome.DROPPED]:
                log.error("target %s: more than %d incidents wait for it; the oldest are dropped", self.name, SPOOL_MAX)
            self.outcomes[Outcome.DROPPED] += 1
        self._waiting[case.incident.id] = case

    def _retrying(self) -> AsyncRetrying:
        rhythm = self._rhythm
        pauses = wait_exponential(multiplier=rhythm.pause_s, max=rhythm.pause_s_max) + wait_random(0, rhythm.pause_s)
        too_long = stop_after_delay(rhythm.give_up_s)

        def wait(state: RetryCallState) -> float:
            error = _error(state)
            return max(pauses(state), error.retry_after_s if isinstance(error, Undelivered) else 0.0)

        return AsyncRetrying(
            retry=retry_if_exception_type(Undelivered),
            wait=wait,
            stop=lambda state: self._closing.is_set() or too_long(state),
            sleep=self._pause,
            before_sleep=self._failed,
            reraise=True,
        )

    async def _pause(self, pause_s: float) -> None:
        """Wait, but not while the server ends."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._closing.wait(), pause_s)

    def _failed(self, state: RetryCallState) -> None:
        self.outcomes[Outcome.RETRIED] += 1
        if not self._failing:  # told once, not at each attempt
            log.warning("target %s cannot be reached (%s); it is tried again", self.name, _error(state))
        self._failing = True

    async def _try(self, case: _Case) -> None:
        """Tell what is due now, if anything still is. Raises `Undelivered` or `Refused`."""
        async with self._room:
            stage = self._due(case).stage
            if stage is None:
                return
            case.trying = stage
            message = self._message(case, stage)
            await self._send(message)
        self.outcomes[Outcome.DELIVERED] += 1
        self._note(case, message.incident, stage)
        if self._failing:
            log.info("target %s can be reached again", self.name)
        self._failing = False

    async def _refresh(self, case: _Case) -> None:
        """Say once more what the target would forget; the next time comes soon enough if this fails."""
        try:
            async with self._room:
                await self._send(self._message(case, Stage.FIRING))
        except (Undelivered, Refused):
            self.outcomes[Outcome.RETRIED] += 1

    async def _send(self, message: Message) -> None:
        if not self.leads():
            raise Undelivered("another server may lead by now")
        try:
            await asyncio.wait_for(self._channel.send(message), self._rhythm.send_s)
        except asyncio.TimeoutError as error:
            raise Undelivered(f"no answer within {self._rhythm.send_s:.0f} s") from error
        except (OSError, MemoryError) as error:  # such as no free descriptor: clients do not put that into words
            raise Undelivered(getattr(error, "strerror", None) or type(error).__name__) from error

    def _message(self, case: _Case, stage: Stage) -> Message:
        told = self._told(case)
        number = told.count + 1 if told is not None else 1
        incident = case.incident
        # An id must differ from that of an earlier run that hung in the same place before a server without a store.
        return Message(
            id=f"{incident.id}-{int(incident.opened_at)}-{number}",
            stage=stage,
            incident=incident,
            at=self._wall(),
            step=case.step,
            base=self._base,
        )

    def _note(self, case: _Case, said: Incident, stage: Stage) -> None:
        """Remember what has been told: the incident may have changed while that was under way."""
        case.owed = False
        self._records.note(self.name, said.id, tell(said, stage, self._told(case)))

    def _give_up(self, case: _Case, outcome: Outcome, what: str, error: NcclwatchError) -> None:
        """Go on as if it had been told: what comes later may still arrive."""
        self.outcomes[outcome] += 1
        log.error(
            "target %s %s a message on incident %s: %s; `ncclwatch notify test` shows whether it works",
            self.name, what, case.incident.id, error,
        )  # fmt: skip
        self._note(case, case.incident, case.trying)


def _error(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome is not None else None
