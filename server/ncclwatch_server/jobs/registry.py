"""Keeps the jobs that this server knows, under their names, and who speaks for their ranks."""

import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from ncclwatch.contract import wire
from ncclwatch.contract.errors import WireError
from ncclwatch_server import limits
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.evidence.inspection import Inspection
from ncclwatch_server.evidence.view_room import ViewRoom
from ncclwatch_server.incidents.book import JobKey
from ncclwatch_server.jobs import announced
from ncclwatch_server.jobs.job import Job, LaunchFacts, Served
from ncclwatch_server.jobs.room import Opener, Room, accounts_of
from ncclwatch_server.state.job_state import JobState
from ncclwatch_server.state.owners import Speaker
from ncclwatch_server.state.rank_setup import Likeness
from ncclwatch_server.state.waits.history import Lesson, Memory
from ncclwatch_server.state.waits.learning import Patience

# Instances of jobs whose ranks meet on one node, if they name an address at all: on another node it is another one.
_LOOPBACK = re.compile(r"(127\.|localhost|\[?::1|:)")


class OverError(WireError):
    """An attempt that was announced is over: another one has taken its place."""


class Jobs:
    """The jobs by name, and those of earlier attempts that still get their last judgement."""

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory or Memory()
        self._by_id: dict[str, Job] = {}
        # The listed attempts of each launch: one, as a rule. More stand side by side, the launch's own one first.
        self._by_launch: dict[tuple[str, str], list[Job]] = {}
        self._by_link: dict[int, set[Job]] = {}  # announced on a connection, by its number
        self.retiring: list[Job] = []
        self.room = Room()
        self.views = ViewRoom()

    def get(self, job: str) -> Job | None:
        """Return a job by the name it is listed under."""
        return self._by_id.get(job)

    def by_key(self, key: JobKey) -> Job | None:
        """Return a listed job by what its ranks say: these do not know which run they are."""
        launch = self._by_launch.get((key.name, key.instance), ())
        return next((job for job in launch if job.key.attempt == key.attempt), None)

    def listed(self) -> tuple[Job, ...]:
        """Return the jobs, by name."""
        return tuple(job for _, job in sorted(self._by_id.items()))

    def all(self) -> tuple[Job, ...]:
        """Return the jobs with the earlier attempts that are not judged to the end yet."""
        return (*self._by_id.values(), *self.retiring)

    def announce(self, link: Link, said: wire.Announce, now: float) -> Job:
        """Return the job that an agent speaks of, which may be new.

        Raises `WireError`: then nothing has changed; `OverError` of an attempt that another one has replaced.
        """
        announced.check(said, link)
        job = self._attempt(link, said, now)
        if said.world_size != job.world_size:
            over = job.ended and self._by_id.get(job.id) is job
            job = self._begin(link, said, job, now) if over else _astray(said, now)
        seen = job.seen
        if self.by_key(job.key) is job:
            self._make_room_for_ranks(link, job, job.state.unseen(said.ranks))
        job.stirred = True
        job.served[link.number] = Served(
            link=link, index=said.index, terminal=said.terminal, acts=said.acts, addresses=announced.addresses_of(said)
        )
        job.state.announce(link.number, said.ranks, now, _speaker(link))
        job.inspection.forget_hearsay(said.ranks, link.number)
        self._by_link.setdefault(link.number, set()).add(job)
        self.room.see(job, job.seen - seen, accounts_of(link.caller, said.job))
        if job.state.speaks(link.number):
            job.note_agent(link.agent, said.run)
            job.hooks.note(link.agent, said.hooks)
            if link.ahead_s is not None:
                job.likeness.note_clock(link.host, link.ahead_s)
        job.forget_links()
        return job

    def has_outlived(self, link: Link, job: Job, now: float) -> bool:
        """Whether ranks of a connection live in a run that is over, or beside the launch's own, which lacks them."""
        if self._by_launch.get(job.launch, [None])[0] is job:
            return False
        ranks = list(job.state.ranks_of(link.number))
        current = self._next_run(job.key, ranks, _speaker(link), now, replaced=job.replaced)
        return current is not None and current is not job and not job.state.ended[ranks].all()

    def _next_run(
        self, key: JobKey, ranks: Sequence[int], speaker: Speaker, now: float, *, replaced: bool
    ) -> Job | None:
        """Return the run of a launch that goes on without these ranks, None while they may still come to it.

        Each agent sees for itself that a run has ended, and not all do: one was started again since, another has a
        process that lingers. A rank that lives in the run before for so long is not of that one.

        The number of the attempt may differ: torchrun counts the failures of its own node. A server that was started
        since the restart hears of some ranks in one attempt, of the others in another one. But where the ranks are of
        an attempt that was `replaced`, they may be of a node that was lost, and those of a spare are still to come.
        """
        launch = self._by_launch.get((key.name, key.instance), ())
        for job in sorted(launch, key=lambda job: job.key.attempt != key.attempt):
            same = job.key.attempt == key.attempt
            settle_s = limits.SPARE_S if replaced and not same else limits.RUNS_SETTLE_S
            if job.ended or now - job.known_since < settle_s or not job.lacks(ranks, speaker, now):
                continue
            if same or job.goes_on(now):
                return job
        return None

    def set_up(self, link: Link, job: Job, said: wire.Facts, now: float) -> None:
        """Keep how the ranks of a node were set up."""
        if not job.astray:
            claimed = frozenset(job.state.contested.get(link.number, ()))
            if claimed and job.state.under_way:
                said, claimed = msgspec.structs.replace(said, joined=tuple(set(said.joined) - claimed)), frozenset()
            job.likeness.receive_facts(link.agent, link.host, said, now, claimed)
            return
        listed = self.by_key(job.key)
        if listed is not None and said.joined and not listed.state.under_way:
            listed.likeness.note_world(link.host, job.world_size, said.joined, now)

    def may_begin(self, astray: Job) -> bool:
        """Whether the job that stood in the way of this one has ended."""
        listed = self.by_key(astray.key)
        return listed is None or listed.ended or listed.world_size == astray.world_size

    def drop_astray(self, link: Link, job: Job) -> None:
        """Forget a job that nobody looks at, when its number on a connection stands for another one."""
        if job.astray:
            self._by_link.get(link.number, set()).discard(job)

    def lose(self, link: Link, now: float) -> None:
        """Note that a connection broke."""
        for job in self._by_link.pop(link.number, ()):
            served = job.served.get(link.number)
            if served is None:
                continue
            job.served[link.number] = replace(served, lost=True)
            job.stirred = True
            job.state.lose(link.number, now)
            job.likeness.lose(link.agent)
            job.inspection.lose(link.number)
            if job.gathering is not None:
                job.gathering.lose(link.number)
            for capture in job.captures:
                capture.lose(link.number)
            for history in job.histories:
                history.lose(link.number)

    def delete(self, name: str) -> bool:
        """Forget a job that is over, and what it has taught. Returns whether it was not: it goes on, and stays."""
        job = self._by_id.get(name)
        if job is not None and not job.ended:
            return True
        if job is not None:
            self._unlist(job)
        self._memory.forget(name)
        return False

    def recall(self, lessons: Mapping[str, Sequence[Lesson]]) -> None:
        """Add what jobs taught before this server started, which was not at hand then."""
        self._memory.recall(lessons)

    def lessons(self) -> list[tuple[str, Lesson]]:
        """Return all that jobs have taught, each with the job's name."""
        return self._memory.lessons()

    def prune(self, now: float) -> None:
        """Forget jobs that ended long ago, and let an attempt take the place of one that nobody speaks for any more."""
        for job in self.retiring:
            for number in job.served.keys() & self._by_link.keys() if job.ended else ():
                self._by_link[number].discard(job)
        self.retiring = [job for job in self.retiring if not job.ended]
        for job in list(self._by_id.values()):
            if job.ended and now - (job.over_at or now) > limits.ENDED_KEPT_S:
                self._unlist(job)
        for first, *others in [launch for launch in self._by_launch.values() if len(launch) > 1]:
            if first.ended or first.state.over:
                continue
            later = (job for job in others if job.key.attempt > first.key.attempt and job.state.is_spoken_for(now))
            heir = next((job for job in later if not first.state.belongs_to_others(job.state.first_speaker, now)), None)
            if heir is not None:
                self._promote(heir, first)
        self.room.count(self._by_id.values(), self.retiring)

    def _attempt(self, link: Link, said: wire.Announce, now: float) -> Job:
        """Return the attempt that is announced. It follows another one if it is an agent of that one that says so.

        Each agent counts its own runs. The first to speak of a later one begins it, and the others join.
        """
        launch = self._by_launch.get((said.job, said.instance), [])
        joined = next((job for job in launch if _is_of(said, link, job, now)), None)
        if joined is not None:
            joined.counts[link.agent] = said.attempt, said.run
            self._leave(link, joined, [job for job in launch if job.stands_beside])
            gone_on = joined.ended and joined.given_up and said.lives
            return self._come_back(link, said, joined, now) if gone_on else joined
        other = self._of_another_run(link, said, launch, now)
        if other is not None:
            return other
        again = next(
            (job for job in launch if _starts_again(said, link, job) or _takes_over(said, link, job, now)), None
        )
        if again is not None:
            return self._begin(link, said, again, now)
        known = next((job for job in launch if job.key.attempt == said.attempt), None)
        before = next((job for job in launch if job is not known and _follows(said, link, job)), None)
        if before is not None:
            return self._begin(link, said, before, now) if known is None else self._promote(known, before)
        if known is not None:
            if not known.ended:
                return known
            if link.agent not in known.agents:
                return self._begin(link, said, known, now)
            return self._come_back(link, said, known, now) if said.lives and known.given_up else known
        if any(said.attempt <= job.floor for job in launch) and not _is_new(said, link, launch):
            return self._earlier(link, said)
        first = launch[0] if launch else None
        newer = first is not None and said.attempt > first.key.attempt
        if first is not None and newer and not first.state.belongs_to_others(_speaker(link), now):
            return self._begin(link, said, first, now)
        return self._begin(link, said, None, now)

    def _of_another_run(self, link: Link, said: wire.Announce, launch: list[Job], now: float) -> Job | None:
        """Return the job where an agent speaks of a past run, or of one beside the launch's own; None if it does not.

        Raises `OverError` of a past one that is judged to the end.
        """
        over = bool(said.run) and any(said.run < job.runs_from(link.agent) for job in launch)
        if not over and not any(link.number in job.served for job in launch[1:]):
            return None
        return self._joined(link, said, now, over=over) or (self._earlier(link, said) if over else None)

    def _joined(self, link: Link, said: wire.Announce, now: float, *, over: bool) -> Job | None:
        """Return the current run if the ranks that an agent announces in another one are of that."""
        key = JobKey(name=said.job, instance=said.instance, attempt=said.attempt)
        current = self._next_run(key, said.ranks, _speaker(link), now, replaced=over) if said.lives else None
        if current is None or said.world_size != current.world_size:
            return None
        self._leave(link, current, [*self._by_launch[current.launch], *self.retiring])
        if said.attempt != current.key.attempt:
            current.counts[link.agent] = said.attempt, said.run
        return current

    def _leave(self, link: Link, current: Job, others: Sequence[Job]) -> None:
        """Take the ranks of a connection out of other jobs of a launch, and what is left of these from the list."""
        for other in others:
            if other is current or other.launch != current.launch or not other.state.speaks(link.number):
                continue
            other.state.gone(link.number)
            if other not in self.retiring and other.state.over:
                self._replace(current, other, again=True)
                current.remarks = ()

    def _promote(self, job: Job, before: Job) -> Job:
        """Let an attempt that stood beside another one take its place and name."""
        self._unlist(job)
        self._replace(job, before)
        job.id, job.remarks = before.id, ()
        self._list(job, first=True)
        return job

    def _replace(self, job: Job, before: Job, *, again: bool = False) -> None:
        """Take a listed job from the list, for another attempt of the same, or `again` for another run."""
        self._unlist(before)
        before.replaced = True
        if not before.ended:
            self.retiring.append(before)
            self.room.retire(before)
            before.stirred = True
        job.note_past(before)
        if (job.launch, job.key.attempt) != (before.launch, before.key.attempt) and not again:
            stranger = before.heirs and not before.heirs.intersection(before.agents)
            job.heirs = before.heirs if stranger else frozenset(before.agents)
            job.floor = max(before.floor, before.key.attempt if before.key.attempt < job.key.attempt else -1)
            job.state.owners.heirs = job.heirs

    def _earlier(self, link: Link, said: wire.Announce) -> Job:
        """Return the job of a past attempt or run that is not judged to the end yet. Raises `OverError` if it is."""
        said_of = said.job, said.instance, said.attempt
        for job in self.retiring:
            if (*job.launch, job.key.attempt) == said_of and job.agents.get(link.agent, said.run) == said.run:
                return job
        raise OverError(f"attempt {said.attempt} of job {said.job} is over")

    def _begin(self, link: Link, said: wire.Announce, before: Job | None, now: float) -> Job:
        self._make_room(link, said, before)
        accounts = tuple(account.key for account in accounts_of(link.caller, said.job))
        job = Job(
            id=said.job,
            key=_key_after(before, said),
            state=JobState(said.world_size),
            known_since=now,
            inspection=Inspection(self.views),
            launch_facts=LaunchFacts.of(said, time.time()),
            patience=self._patience(said, before),
            likeness=Likeness(one_rendezvous=not _LOOPBACK.match(said.instance)),
            opener=Opener(link=link.number, host=link.host, token=link.caller.holder, accounts=accounts),
        )
        holder = self._by_id.get(said.job)
        if before is not None:
            self._replace(job, before, again=_starts_again(said, link, before))
            job.id, job.remarks = before.id, before.remarks
        elif holder is not None and not holder.ended:
            job.id = self._free_name(job, holder)
            job.remarks = holder.remarks = (_side_by_side(job, holder),)
        self._list(job, first=before is not None)
        self.room.jobs += 1
        self.room.add(job)
        return job

    def _come_back(self, link: Link, said: wire.Announce, before: Job, now: float) -> Job:
        """Return a job that was given up because nobody spoke for it, and goes on: the way to its agents was broken."""
        job = self._begin(link, said, before, now)
        job.key, job.floor, job.came_back = before.key, before.floor, True
        job.agents, job.past_runs, job.past_machines = dict(before.agents), before.past_runs, before.past_machines
        job.counts = dict(before.counts)
        job.heirs = job.state.owners.heirs = before.heirs
        return job

    def _patience(self, said: wire.Announce, before: Job | None) -> Patience:
        """Return what is known of a job's waits. Where its name is only an address, other jobs teach it nothing."""
        if said.named:
            return Patience(self._memory.of(said.job))
        return before.patience.next_attempt() if before is not None else Patience()

    def _list(self, job: Job, *, first: bool) -> None:
        if job.id in self._by_id:
            self._unlist(self._by_id[job.id])  # it has ended
        self._by_id[job.id] = job
        launch = self._by_launch.setdefault(job.launch, [])
        launch.insert(0 if first else limits.JOBS_MAX, job)
        launch.sort(key=lambda each: each.stands_beside)  # who has the launch's name stays the first

    def _unlist(self, job: Job) -> None:
        if self._by_id.get(job.id) is not job:
            return
        del self._by_id[job.id]
        self._by_launch[job.launch].remove(job)
        if not self._by_launch[job.launch]:
            del self._by_launch[job.launch]
        if job.ended:
            for number in job.served.keys() & self._by_link.keys():
                self._by_link[number].discard(job)

    def _free_name(self, job: Job, holder: Job) -> str:
        """Return a name for one of several jobs of one name, the same whenever it comes back."""
        apart = job.key.instance if job.launch != holder.launch else f"{job.key.instance} {job.key.attempt}"
        digest = hashlib.sha256(apart.encode()).hexdigest()
        names = (f"{job.key.name}~{digest[:length]}" for length in range(4, len(digest)))
        return next(name for name in names if name not in self._by_id or self._by_id[name].ended)

    def _make_room(self, link: Link, said: wire.Announce, before: Job | None) -> None:
        """Drop ended jobs until a new one fits. Raises `NoRoom` if none can be dropped."""
        ranks = len(said.ranks)
        self.room.check_opener(link, said.job, said.world_size, ranks, before)
        if not self._drop_ended(lambda: self.room.lacks(said.world_size, ranks)):
            raise self.room.full(said.job, said.world_size)

    def _make_room_for_ranks(self, link: Link, job: Job, ranks: int) -> None:
        """Drop ended jobs until more ranks of a known one fit. Raises `NoRoom`."""
        self.room.check_ranks(link, job.key.name, ranks)
        if not self._drop_ended(lambda: self.room.lacks_ranks(ranks)):
            raise self.room.full(job.key.name, job.world_size)

    def _drop_ended(self, lacks: Callable[[], bool]) -> bool:
        """Drop jobs that have ended while anything is lacking. Returns whether nothing is."""
        if not lacks():
            return True
        while (job := self._least_missed()) is not None:
            self._unlist(job)
            self.room.drop_ended(job)
            if not lacks():
                return True
        return False

    def _least_missed(self) -> Job | None:
        """Return the job that ended first, of those that were begun with the token of which most are listed."""
        tokens = Counter(_token(job) for job in self._by_id.values())
        ended = (job for job in self._by_id.values() if job.ended)
        return min(ended, key=lambda job: (-tokens[_token(job)], job.over_at or 0.0), default=None)


def _token(job: Job) -> str:
    return job.opener.token if job.opener is not None else ""


def _speaker(link: Link) -> Speaker:
    return Speaker(agent=link.agent, host=link.host, token=link.caller.holder, machine=link.machine)


def _astray(said: wire.Announce, now: float) -> Job:
    """Return a job that nobody looks at, for ranks that say another number of ranks than the others of theirs."""
    key = JobKey(name=said.job, instance=said.instance, attempt=said.attempt)
    return Job(id=said.job, key=key, state=JobState(said.world_size), known_since=now, ended=True, astray=True)


def _key_after(before: Job | None, said: wire.Announce) -> JobKey:
    """Return the key of an attempt that takes the place of another job: as a later run if it is no later attempt."""
    run = 0
    if before is not None and before.launch == (said.job, said.instance):
        run = before.key.run + (said.attempt <= before.key.attempt)
    return JobKey(name=said.job, instance=said.instance, attempt=said.attempt, run=run)


def _starts_again(said: wire.Announce, link: Link, job: Job) -> bool:
    """Whether somebody has started by hand what a job is: its agent speaks of a later run, and of no later attempt."""
    run = job.agents.get(link.agent)
    return run is not None and said.run > run and said.attempt <= job.key.attempt


def _is_of(said: wire.Announce, link: Link, job: Job, now: float) -> bool:
    """Whether ranks are of a job that goes on, though their node counts another attempt.

    torchrun counts the failures of its own node: where others have failed it starts its ranks again in the same
    attempt. So a restart has several numbers. The ranks of a node that had a part in the run before, and which this one
    lacks, are of this one as long as it is whole. A node is known by its agent, or by its machine if that is new.
    """
    if not said.run or said.attempt == job.key.attempt or said.world_size != job.world_size:
        return False
    if job.counts.get(link.agent) == (said.attempt, said.run):
        return True
    if job.ended or link.agent in job.agents or job.state.ended.any():
        return False
    before = job.past_runs.get(link.agent)
    if before is None:
        speaker = _speaker(link)
        known = said.lives and bool(speaker.machine) and (speaker.machine, speaker.token) in job.machines
    else:
        known = said.run > before
    return known and job.lacks(said.ranks, _speaker(link), now)


def _is_new(said: wire.Announce, link: Link, launch: Sequence[Job]) -> bool:
    """Whether nobody has heard of an agent that speaks of living ranks: it may count from any attempt."""
    known = any(link.agent in job.agents or link.agent in job.past_runs for job in launch)
    return said.lives and bool(said.run) and not known


def _takes_over(said: wire.Announce, link: Link, job: Job, now: float) -> bool:
    """Whether a node is of the next run of a job whose ranks have ended, but for those of a node that died.

    It may be a spare in place of that one. Until the lost node is given up, nobody says that its ranks have ended.
    """
    if job.ended or not _is_new(said, link, (job,)) or said.attempt < job.key.attempt or job.stands_beside:
        return False
    if not link.machine or not job.state.ended.any() or job.state.is_spoken_for(now):
        return False
    theirs = job.state.owners.speakers()
    here = [number for number, each in theirs.items() if each.machine == link.machine]
    if any(not job.state.ended[list(job.state.ranks_of(number))].all() for number in here):
        return False  # it may be the agent of those, started again
    return all(each.token == link.caller.holder for each in theirs.values())


def _follows(said: wire.Announce, link: Link, job: Job) -> bool:
    """Whether an attempt takes the place of a listed one: an agent that speaks for ranks of that says so.

    Anybody can say any attempt. Of one that nobody of the attempt before has spoken in, these agents say what comes.
    """
    if link.agent in job.agents:
        return said.attempt > job.key.attempt
    return job.belongs_to(link.agent) and said.attempt > job.floor


def _side_by_side(job: Job, holder: Job) -> str:
    if job.launch != holder.launch:
        return f"two jobs report as {job.key.name!r}; set NCCLWATCH_JOB to tell them apart"
    return (
        f"attempt {job.key.attempt} of {job.key.name!r} reports while attempt {holder.key.attempt} goes on, and no "
        "agent of that one says that it was started again: both are watched"
    )
