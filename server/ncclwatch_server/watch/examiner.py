"""What happens to one suspicious job: inspect its ranks, judge them, gather stacks, open incidents."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.verdict import Certainty, Severity, Verdict
from ncclwatch.contract.wire import CommandKind
from ncclwatch_server import limits
from ncclwatch_server.evidence.inspection import Question, with_members
from ncclwatch_server.evidence.stack_collection import Gathering, failures, merge
from ncclwatch_server.evidence.stack_sampling import plan
from ncclwatch_server.incidents.book import Incident, IncidentBook, IncidentState, Opening
from ncclwatch_server.incidents.confirmation import key_of, said_again
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.jobs.outcome import end_of
from ncclwatch_server.judge.theory.places import cannot_look
from ncclwatch_server.judge.theory.waits.mismatches import has_completed
from ncclwatch_server.judge.theory.waits.rank_standing import group_of, timeout_of
from ncclwatch_server.watch.counters import Counters
from ncclwatch_server.watch.publisher import Publisher

log = logging.getLogger("ncclwatch.server")

Clock = Callable[[], float]


class Judge(Protocol):
    """Says what is wrong with a job. Pure."""

    def __call__(self, snapshot: JobSnapshot) -> tuple[Verdict, ...]:
        """Return the verdicts on one snapshot."""


class Examiner:
    """Works on one job at a time; the watch loop calls it."""

    def __init__(
        self, judge: Judge, book: IncidentBook, publisher: Publisher, counters: Counters, clock: Clock, wall: Clock
    ) -> None:
        self._judge: Judge = lambda snapshot: judge(with_members(snapshot))  # in a thread
        self._book = book
        self._publisher = publisher
        self._counters = counters
        self._clock = clock
        self._wall = wall

    async def examine(self, job: Job) -> None:
        """Ask about a suspicious job, or judge the answers."""
        now = self._clock()
        if job.inspection.complete(now):
            await self._judge_answers(job)
        elif job.inspection.due(now) and not job.is_partial(now):
            ranks = ranks_to_inspect(job)
            job.inspection.focus(ranks)
            job.inspection.ask(self._ask(job, CommandKind.INSPECT, ranks), now)
            if job.inspection.complete(now):  # nobody can be asked
                await self._judge_answers(job)

    def compare(self, job: Job) -> None:
        """Ask for the parameters of models that differ: their names are told by few, and only then."""
        for (kind, members), ranks in job.likeness.questions():
            self._ask(job, CommandKind.PARAMETERS, ranks, text=f"{kind} {members}")

    def rest(self, job: Job, now: float) -> None:
        """Note that nothing about a job is suspicious."""
        job.inspection.rest()
        job.confirmation.clear()
        if job.suspicion.unheard:
            job.patience.forget()
        else:
            self._publisher.learned(job, job.patience.rest(now))
        job.waiting = ()
        if job.gathering is not None and not job.gathering.opened:
            job.gathering = None
        if job.suspicion.unheard or now - max(job.suspicious_at, job.known_since) < limits.CALM_S:
            return
        job.came_back = False
        for incident in self._book.close(job.key, IncidentState.RESOLVED, self._wall()):
            self._publisher.closed(incident)

    async def finish(self, job: Job, is_over: Callable[[], bool]) -> bool:
        """Judge a job that is over for the last time. Returns whether it is over still: an agent may have come back."""
        verdicts = await self._verdicts(job)
        if not is_over():
            return False
        if job.gathering is not None and not job.gathering.opened:
            await self._open(job, job.gathering)  # so that the last words on a hang find its incident
        now = self._clock()
        standing = job.confirmation.confirm(verdicts or (), now, final=True)
        job.gathering = Gathering(
            started_at=now,
            verdicts=self._settle(job, verdicts or (), standing),
            judged_at=now,
            dumps=dict(job.stacks),
            testimonies=dict(job.testimonies),
            communicators=job.communicators,
        )
        await self._open(job, job.gathering)
        if not is_over():
            return False
        for incident in self._book.close(job.key, IncidentState.ENDED, self._wall()):
            self._publisher.closed(incident)
        incidents = tuple(each for each in self._book.all() if each.key == job.key)
        job.end = end_of(incidents, job.endings(), all_ended=job.state.over and bool(job.state.seen.all()))
        job.release()
        return True

    async def gather(self, job: Job, now: float) -> None:
        """Open the incidents whose stacks are here or late, and attach those that come later."""
        gathering = job.gathering
        if gathering is None:
            return
        if not gathering.opened:
            if not gathering.ready(now):
                return
            gathering.fresh = False  # what comes from now on is attached later
            await self._open(job, gathering)
        elif gathering.fresh:
            gathering.fresh = False
            self._attach(job, gathering)
        then, deeply = gathering.next_round(now)
        gathering.questions.update(self._ask(job, CommandKind.STACKS, then))
        gathering.questions.update(self._ask(job, CommandKind.STACKS, deeply, deeply=True))
        if gathering.done(now):
            job.gathering = None
            self._publisher.settled(self._book.open_of(job.key))

    async def _judge_answers(self, job: Job) -> None:
        verdicts = await self._verdicts(job)
        now = self._clock()
        if verdicts is None:
            job.inspection.finish(now, changed=False)
            return
        verdicts = tuple(self._book.insist(job.key, verdict) for verdict in verdicts)
        before = job.confirmation.keys
        standing = job.confirmation.confirm(verdicts, now, final=False)
        keys = job.confirmation.keys
        late = tuple(v for v in verdicts if v.certainty is Certainty.LATE and not v.predicted)
        moving = bool(late) and job.world_size <= limits.INSPECT_ALL_MAX
        job.inspection.finish(now, changed=keys != before, moving=moving)
        job.waiting = late
        self._publisher.learned(job, job.patience.see(verdicts, now, job.suspicion.unheard))
        gathering = job.gathering
        if gathering is not None and not gathering.opened:
            gathering.verdicts = [v for v in gathering.verdicts if key_of(v) in keys]
        fresh = self._settle(job, verdicts, standing)
        if fresh:
            self._begin_gathering(job, fresh, now)
        matches = self._book.assign(job.key, _alarms(verdicts), self._wall(), came_back=job.came_back)
        shown = frozenset(incident.id for incident in matches if incident is not None)
        over = frozenset(each.id for each in self._book.open_of(job.key) if _is_through(job, each))
        for incident in self._book.miss(job.key, shown, self._unsure(job), self._wall(), over):
            self._publisher.closed(incident)

    async def _verdicts(self, job: Job) -> tuple[Verdict, ...] | None:
        """Return what the judge says of what is known now, None if it failed."""
        snapshot = self._snapshot(job)
        began = time.perf_counter()
        try:
            verdicts = await asyncio.to_thread(self._judge, snapshot)
        except Exception:
            # One job that the judge cannot digest must not leave all others unwatched.
            self._counters.judge_failures += 1
            if not job.judge_failing:  # told once, not every second of a long hang
                log.exception("the judge failed on job %s; it is judged again with the next news", job.id)
            job.judge_failing = True
            return None
        job.judge_failing = False
        self._counters.judgements += 1
        self._counters.judge_s += time.perf_counter() - began
        return tuple(job.counted(verdict) for verdict in verdicts)

    def _snapshot(self, job: Job) -> JobSnapshot:
        return job.snapshot(self._clock())

    async def _with_evidence(self, job: Job, verdicts: list[Verdict]) -> list[Verdict]:
        """Judge once more with stacks and testimonies at hand.

        Stacks tell the line of a rank that cannot say it itself; another witness may know better.
        """
        try:
            said = tuple(map(job.counted, await asyncio.to_thread(self._judge, self._snapshot(job))))
        except Exception:
            self._counters.judge_failures += 1
            log.exception("the judge failed on job %s with its evidence; the verdict stays as it was", job.id)
            return verdicts
        return [said_again(verdict, said) for verdict in verdicts]

    def _settle(self, job: Job, verdicts: Iterable[Verdict], standing: Iterable[Verdict]) -> list[Verdict]:
        """Give the verdicts that stand to the incidents they belong to. Returns those that have none yet."""
        fresh = []
        keys = job.confirmation.keys
        stand = {key_of(verdict) for verdict in standing}
        said = _alarms(verdicts)
        for verdict, known in zip(
            said, self._book.assign(job.key, said, self._wall(), came_back=job.came_back), strict=True
        ):
            if key_of(verdict) not in stand:
                continue
            if known is None:
                fresh.append(verdict)
                continue
            shown = frozenset(i.id for i in self._book.open_of(job.key) if key_of(i.verdict) in keys)
            self._improve(job, self._book.get(known.id) or known, verdict, shown)
        return fresh

    def _improve(self, job: Job, known: Incident, verdict: Verdict, shown: frozenset[str]) -> None:
        changed = self._book.update(known, verdict, shown, self._wall())
        if changed is None:
            return
        if changed.verdict.lateness.rank > known.verdict.lateness.rank:
            self._publisher.escalated(job, changed)
            return
        if job.stacks:
            stacks = merge(job.stacks, changed.verdict)
            changed = self._book.attach(changed.id, stacks, failures(job.stacks)) or changed
        self._publisher.changed(changed)

    def _begin_gathering(self, job: Job, fresh: list[Verdict], now: float) -> None:
        gathering = job.gathering
        if gathering is not None and not gathering.opened:
            keys = {key_of(verdict) for verdict in fresh}
            gathering.verdicts = [v for v in gathering.verdicts if key_of(v) not in keys] + fresh
            gathering.judged_at = now
            return
        views = self._snapshot(job).ranks
        hanging = [verdict for verdict in fresh if not verdict.predicted and not verdict.about]
        wanted = plan(hanging, views)
        culprits = {culprit.rank for verdict in hanging for culprit in verdict.culprits}
        needed = {rank for rank in culprits & set(wanted.first) & views.keys() if cannot_look(views[rank])}
        questions = self._ask(job, CommandKind.WITNESS, wanted.first + wanted.then)
        questions += self._ask(job, CommandKind.STACKS, wanted.first)
        job.gathering = Gathering(
            started_at=now,
            verdicts=fresh,
            judged_at=now,
            questions=set(questions),
            needed=frozenset(needed),
            then=wanted.then,
            deeply=wanted.deeply,
        )

    async def _open(self, job: Job, gathering: Gathering) -> None:
        gathering.opened = True
        _keep(job, gathering)
        if job.stacks or job.testimonies:
            gathering.verdicts = await self._with_evidence(job, gathering.verdicts)
        keys = job.confirmation.keys
        taken = frozenset(i.id for i in self._book.open_of(job.key) if key_of(i.verdict) in keys)
        incidents = self._book.assign(job.key, gathering.verdicts, self._wall(), taken, came_back=job.came_back)
        for verdict, known in zip(gathering.verdicts, incidents, strict=True):
            if known is not None:
                self._improve(job, self._book.get(known.id) or known, verdict, frozenset())
                continue
            opening = Opening(
                key=job.key,
                job=job.id,
                world_size=job.world_size,
                verdict=verdict,
                accounts=job.accounts,
                delay_s=self._clock() - gathering.judged_at,
                stacks=merge(gathering.dumps, verdict),
                unseen=failures(gathering.dumps),
                user=job.launch_facts.user,
                labels=job.launch_facts.labels,
                gpus=job.gpus,
                saved=job.saved,
                timeout_s=_timeout_s(job, verdict),
            )
            incident = self._book.open(opening, self._wall())
            if incident is not None:
                self._publisher.opened(job, incident)

    def _attach(self, job: Job, gathering: Gathering) -> None:
        _keep(job, gathering)  # what testimonies change is told after the next judgement
        for incident in self._book.open_of(job.key):
            if incident.verdict.slowness is not None:
                continue
            stacks = merge(gathering.dumps, incident.verdict)
            changed = self._book.attach(incident.id, stacks, failures(gathering.dumps))
            if changed is not None:
                self._publisher.changed(changed)

    def _ask(
        self, job: Job, kind: CommandKind, ranks: Iterable[int], *, deeply: bool = False, text: str = ""
    ) -> list[Question]:
        """Send a command to the agents of these ranks. Who is silent would keep the judge waiting in vain."""
        mute = job.suspicion.detached.union(job.suspicion.silent)
        by_link: dict[int, list[int]] = {}
        for rank in ranks:
            known = job.state.ended[rank] and job.inspection.has_ending(rank)
            if not known and rank not in mute:
                by_link.setdefault(job.state.owner(rank), []).append(rank)
        questions = []
        reached: list[int] = []
        for number, asked in by_link.items():
            served = job.served.get(number)
            if served is not None and served.alive:
                questions.append(
                    (number, served.link.command(kind, served.index, tuple(asked), deeply=deeply, text=text))
                )
                reached += asked
        if kind is CommandKind.STACKS and reached:
            self._publisher.looked(job, reached, deeply=deeply)
        return questions

    def _unsure(self, job: Job) -> frozenset[int]:
        """Return the ranks whose absence from the verdicts means nothing: unheard, detached, or dying."""
        return job.suspicion.unheard | job.suspicion.detached | frozenset(job.suspicion.ended)


def _keep(job: Job, gathering: Gathering) -> None:
    """Let the judge have what was gathered."""
    job.stacks = dict(gathering.dumps)
    job.testimonies, job.communicators = dict(gathering.testimonies), gathering.communicators


def _is_through(job: Job, incident: Incident) -> bool:
    """Say whether those that are seen are through with what they waited in: so those came that have detached since."""
    unheard, detached = job.suspicion.unheard.union(job.suspicion.ended), job.suspicion.detached
    if incident.ranks & unheard or not incident.ranks & detached:
        return False
    verdict = incident.verdict
    seen = (job.inspection.view(rank) for rank in verdict.victims if rank not in detached)
    groups = (group_of(view, verdict.group) for view in seen if view is not None)
    through = [has_completed(group, verdict.seq) for group in groups if group is not None]
    return bool(through) and all(through)


def _timeout_s(job: Job, verdict: Verdict) -> float:
    """Return after how long the first of the ranks that wait would give up, 0 where none has said."""
    waiting = (job.inspection.view(rank) for rank in verdict.victims[: limits.INSPECT_MAX])
    told = (timeout_of(view, verdict.group) for view in waiting if view is not None)
    return min((timeout_s for timeout_s in told if timeout_s > 0), default=0.0)


def _alarms(verdicts: Iterable[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.severity is not Severity.INFO]


def ranks_to_inspect(job: Job) -> tuple[int, ...]:
    """Return the ranks whose views may tell more; never those that have detached."""
    found = job.suspicion
    ranks = {*found.desynced, *found.uneven, *found.saving, *found.sharing, *found.noted, *found.drifted}
    if found.waiting or found.ended or found.silent or not ranks:
        if job.world_size <= limits.INSPECT_ALL_MAX:
            ranks = set(job.state.seen.nonzero()[0].tolist())
        else:
            looked = job.state.worth_a_look(found.waiting, limits.INSPECT_MAX)
            ranks = {*looked, *found.uneven, *found.saving}
    return tuple(sorted(ranks - found.detached))
