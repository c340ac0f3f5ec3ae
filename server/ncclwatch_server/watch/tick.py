"""Looks at each job when it is due. The one place where time passes: a tick every second, sooner on news."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ncclwatch.contract.machine.liveness import LoopLife
from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.verdict import Severity
from ncclwatch_server import limits, settings
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.incidents.book import Incident, IncidentBook, IncidentState
from ncclwatch_server.incidents.event_stream import Announcements
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.jobs.registry import Jobs
from ncclwatch_server.state.waits.history import Lesson, Memory
from ncclwatch_server.watch.counters import Counters
from ncclwatch_server.watch.examiner import Clock, Examiner, Judge
from ncclwatch_server.watch.hangs.acting import tell_agents
from ncclwatch_server.watch.hangs.captures import HangCaptures
from ncclwatch_server.watch.hangs.restarts import Restarts
from ncclwatch_server.watch.publisher import Keeper, Publisher, Teller
from ncclwatch_server.watch.refusals import Refusals
from ncclwatch_server.watch.screening import Screening
from ncclwatch_server.watch.slowdowns import Slowdowns
from ncclwatch_server.watch.succession import Successions

log = logging.getLogger("ncclwatch.server")


class Watch:
    """Looks at all jobs, again and again. Everything but the judge runs in the event loop."""

    def __init__(  # noqa: PLR0913 - who keeps, who remembers, who tells: each is another one in tests
        self,
        judge: Judge,
        book: IncidentBook,
        keeper: Keeper,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
        memory: Memory | None = None,
        keeping: settings.Keeping | None = None,
        teller: Teller | None = None,
    ) -> None:
        self.jobs = Jobs(memory)
        self.book = book
        self.counters = Counters()
        self.refusals = Refusals(wall)
        self.agents = 0  # connected now
        self.ready = False  # the first tick is over
        self.leads: Callable[[], bool] = lambda: True  # it may judge now, see `ncclwatch_server.leadership`
        self.successions: Successions | None = None  # of a server that an agent started for one job
        self.life = LoopLife("watch", age_s_max=limits.WATCH_STILL_S, ends_s=limits.WATCH_ENDS_S, vital=True)
        self._keeping = keeping or settings.Keeping()
        self._clock = clock
        self._wall = wall
        self._started_at = self._ticked_at = clock()
        self.announcements = Announcements()
        self._keeper = keeper
        self._publisher = Publisher(keeper, self.counters, self.announcements, teller)
        self._examiner = Examiner(judge, book, self._publisher, self.counters, clock, wall)
        self._captures = HangCaptures(book, partial(self.look_within, limits.SOON_S))
        self._slowdowns = Slowdowns(book, self._publisher, wall)
        self._restarts = Restarts(book, self._publisher, clock, wall)
        self._news = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf  # when it wakes
        self._screening = Screening()

    def look_within(self, delay_s: float) -> None:
        """Make sure that the jobs are looked at before this time is over."""
        due = self._clock() + delay_s
        if due >= self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def lost(self, link: Link) -> None:
        """Note that a connection broke."""
        self.jobs.lose(link, self._clock())
        self.look_within(limits.SOON_S)

    def claimed(self, job: Job, link: Link) -> None:
        """Note that an agent claims ranks of which another one speaks."""
        self._publisher.claimed(job, link)

    def snapshot(self, job: Job) -> JobSnapshot:
        """Return what the judge would get to see of a job now."""
        return job.snapshot(self._clock())

    def recall(self, incidents: Sequence[Incident], lessons: Mapping[str, Sequence[Lesson]]) -> tuple[Incident, ...]:
        """Take what was known before this server started, of a store that was not at hand then. Returns what is new."""
        self.jobs.recall(lessons)
        return self.book.recall(incidents)

    def keep_again(self) -> None:
        """Keep all that is known once more: the store has lost what it had."""
        for incident in self.book.all():
            self._keeper.put(incident)
        for job, lesson in self.jobs.lessons()[-limits.UNSTORED_MAX :]:
            self._keeper.learn(job, lesson)

    async def run(self) -> None:
        """Look at all jobs until cancelled."""
        next_tick = self._clock()
        while True:
            now = self._clock()
            if not self.leads():
                self.life.went_round()
                await asyncio.sleep(limits.SOON_S)
                continue
            if now >= next_tick:
                self._tick(now)
                # A tick that was missed is not made up for.
                next_tick = max(next_tick + limits.TICK_S, now)
            self.life.went_round()  # after the tick: where each one fails, that is seen by its age
            for number, job in enumerate(self._screening.awake(self.jobs.all(), now)):
                job.stirred = False
                await self._look_at_safely(job)
                job.settle(now)
                self.life.went_round()
                if number % limits.LOOKS_AT_ONCE == limits.LOOKS_AT_ONCE - 1:
                    await asyncio.sleep(0)
            self.counters.tick_s += self._clock() - now
            self.ready = True
            await self._sleep(next_tick)

    def _wake(self) -> None:
        self._timer, self._due = None, math.inf
        self._news.set()

    async def _sleep(self, until: float) -> None:
        now = self._clock()
        for job in self.jobs.all():
            if job.stirred:
                until = min(until, _wake_at(job, now))
        # Never spin: whatever wants attention can wait for a hundredth of a second.
        delay_s = max(0.01, until - self._clock())
        try:
            await asyncio.wait_for(self._news.wait(), delay_s)
        except asyncio.TimeoutError:
            return
        self._news.clear()

    async def _look_at_safely(self, job: Job) -> None:
        """Look at a job so that whatever its ranks sent cannot leave all other jobs unwatched."""
        try:
            await self._look_at(job)
        except (Exception, SystemExit):
            self.counters.look_failures += 1
            if not job.look_failing:  # told once, not every second
                log.exception("looking at job %s failed; it is looked at again", job.id)
            job.look_failing = True
        else:
            job.look_failing = False

    async def _look_at(self, job: Job) -> None:
        now = self._clock()
        for number in job.state.fold(now):
            served = job.served.get(number)
            if served is not None:
                served.link.refuse(f"impossible ranks or too many groups in a digest of job {job.id}")
        drifted = job.likeness.compare(now, job.seen, job.patience.habits)
        job.patience.timeout_s = job.likeness.timeout_s
        job.suspicion = replace(job.state.suspicion(now), uneven=job.loops.uneven(), drifted=drifted)
        job.inspection.forget_living(job.suspicion.detached)
        if self._is_over(job, now):
            if not self._has_last_words(job, now):
                return
            if await self._examiner.finish(job, lambda: self._is_over(job, self._clock())):
                self._restarts.over(job)
            return
        job.over_at = None
        self._slowdowns.update(job, now)
        job.probe(now)
        if job.suspicion:
            job.suspicious_at = now
            await self._examiner.examine(job)
        else:
            self._examiner.rest(job, now)
        self._examiner.compare(job)
        await self._examiner.gather(job, self._clock())
        self._restarts.look(job, self.jobs.all())
        tell_agents(job, self.book, now, partial(self._captured, job))

    def _captured(self, job: Job, incident: Incident) -> str | None:
        return self._captures.told_of(job, incident, partial(self.snapshot, job), self._clock())

    def _is_over(self, job: Job, now: float) -> bool:
        """Whether nothing more will happen in a job; notes since when."""
        if not (job.state.over or job in self.jobs.retiring or job.deserted(now)):
            return False
        if job.over_at is None:
            job.over_at = now
        return True

    def _has_last_words(self, job: Job, now: float) -> bool:
        """Whether it is known how all ranks ended, or no more is to be expected."""
        waited_s = now - (job.over_at if job.over_at is not None else now)
        if not job.state.seen.all():
            return waited_s >= limits.FINAL_PARTIAL_S
        complete = all(job.inspection.has_ending(rank) for rank in range(job.world_size))
        return complete or waited_s >= limits.FINAL_S

    def _tick(self, now: float) -> None:
        """Do what needs doing once a second."""
        self.counters.ticks += 1
        self._count_hung(now)
        self.jobs.prune(now)
        if self.successions is not None:
            self.successions.look(self.jobs.listed(), now)
        if self.counters.ticks % limits.EXPIRE_TICKS == 0:
            self.book.expire(self._wall() - self._keeping.days * 86_400.0, self._keeping.incidents_per_job)
        if now - self._started_at > limits.ABANDONED_S:
            self._close_orphans()

    def _count_hung(self, now: float) -> None:
        """Add the time since the last tick to the jobs that hang."""
        for key, incidents in self.book.open_by_job().items():
            job = self.jobs.by_key(key)
            if (
                job is not None
                and job.key == key
                and not job.ended
                and any(_is_critical(incident) for incident in incidents)
            ):
                job.hung_s += now - self._ticked_at
        self._ticked_at = now

    def _close_orphans(self) -> None:
        """Close stored incidents of jobs that ended while no server ran."""
        living = {job.key for job in self.jobs.all()}
        for incident in self.book.all():
            if incident.open and incident.key not in living:
                for closed in self.book.close(incident.key, IncidentState.ENDED, self._wall()):
                    self._publisher.closed(self.book.amend(replace(closed, end_seen=False)))


def _is_critical(incident: Incident) -> bool:
    return incident.verdict.severity is Severity.CRITICAL


def _wake_at(job: Job, now: float) -> float:
    """Return when a job wants to be looked at, the next tick apart."""
    if job.ended:
        return float("inf")
    if job.over_at is not None:
        patience_s = limits.FINAL_S if job.state.seen.all() else limits.FINAL_PARTIAL_S
        return job.over_at + patience_s
    at = float("inf")
    if job.suspicion:
        at = job.known_since + limits.PARTIAL_S if job.is_partial(now) else job.inspection.wake_at()
    if job.gathering is not None and not job.gathering.opened:
        at = min(at, job.gathering.opens_by)
    return at
