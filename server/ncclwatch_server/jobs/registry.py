"""Keeps the jobs that this server knows, under their names, and who speaks for their ranks."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from ncclwatch.contract import wire
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import StackDump
from ncclwatch.contract.model.testimony import Communicator, Testimony
from ncclwatch.contract.model.verdict import Verdict
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server import limits
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.evidence.inspection import Inspection
from ncclwatch_server.evidence.rank_labels import Showing
from ncclwatch_server.evidence.stack_collection import Gathering
from ncclwatch_server.incidents.book import JobKey
from ncclwatch_server.incidents.confirmation import Confirmation
from ncclwatch_server.jobs.room import Opener, Room
from ncclwatch_server.jobs.stack_requests import Capture
from ncclwatch_server.state.dataloaders import Loops
from ncclwatch_server.state.job_state import JobState, Suspicion
from ncclwatch_server.state.owners import Speaker
from ncclwatch_server.state.rank_setup import Likeness
from ncclwatch_server.state.wait_history import Lesson, Memory
from ncclwatch_server.state.wait_learning import Patience
from ncclwatch_server.stragglers.closely import Closely
from ncclwatch_server.stragglers.tracker import Stragglers

# Instances of jobs whose ranks meet on one node, if they name an address at all: on another node it is another one.
_LOOPBACK = re.compile(r"(127\.|localhost|\[?::1|:)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One connection's part in a job."""

    link: Link
    index: int  # the job's number on that connection
    terminal: bool
    lost: bool = False

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return not self.lost and not self.link.closing


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """One attempt of one job, with everything the watch loop needs to know of it."""

    id: str  # the name it is listed under
    key: JobKey
    state: JobState
    known_since: float
    remarks: tuple[str, ...] = ()  # for people, on how its ranks report
    agents: dict[str, None] = field(default_factory=dict)  # that have spoken for ranks of it, the newest last
    served: dict[int, Served] = field(default_factory=dict)  # by number of the connection
    inspection: Inspection = field(default_factory=Inspection)
    confirmation: Confirmation = field(default_factory=Confirmation)
    suspicion: Suspicion = field(default_factory=Suspicion)
    loops: Loops = field(default_factory=Loops)
    likeness: Likeness = field(default_factory=Likeness)
    stragglers: Stragglers = field(init=False)
    closely: Closely = field(default_factory=Closely)
    paced_at: float = float("-inf")  # when that was looked at last
    gathering: Gathering | None = None
    stacks: dict[int, StackDump] = field(default_factory=dict)  # newest, for the judge
    testimonies: dict[int, Testimony] = field(default_factory=dict)  # newest, for the judge
    communicators: tuple[Communicator, ...] = ()  # likewise
    captures: list[Capture] = field(default_factory=list)  # stacks that readers have asked for
    waiting: tuple[Verdict, ...] = ()  # for ranks that work: shown, and no hang
    patience: Patience = field(default_factory=Patience)
    looked_at: float = float("-inf")
    stirred: bool = True  # there was news other than digests since, or something is under way
    quiet: bool = False  # nothing was to be seen of it at the last look, and for a while before
    suspicious_at: float = float("-inf")  # when it was so last
    judge_failing: bool = False  # told already
    look_failing: bool = False
    showing: Showing = field(default_factory=Showing)
    hung_s: float = 0.0  # for how long critical incidents of it have been open
    over_at: float | None = None
    ended: bool = False  # over, and judged for the last time
    astray: bool = False  # its ranks say another number of ranks than those of the job that is listed
    opener: Opener | None = None  # who began it
    floor: int = -1  # attempts up to this one are over
    heirs: frozenset[str] = frozenset()  # agents of the attempt before: this one is theirs

    def __post_init__(self) -> None:
        self.stragglers = Stragglers(self.state.world_size)

    @property
    def world_size(self) -> int:
        """Return how many ranks the job has."""
        return self.state.world_size

    @property
    def seen(self) -> int:
        """Return how many of its ranks were seen."""
        return self.state.seen_count

    @property
    def launch(self) -> tuple[str, str]:
        """Return what its attempts have in common."""
        return self.key.name, self.key.instance

    def belongs_to(self, agent: str) -> bool:
        """Whether this attempt is one of an agent of the attempt before, and no such agent has spoken in it yet."""
        return agent in self.heirs and not any(each in self.heirs for each in self.agents)

    def note_agent(self, agent: str) -> None:
        """Remember who has spoken for ranks: as many as may be on its nodes, and those that came after them."""
        self.agents.pop(agent, None)
        self.agents[agent] = None
        while len(self.agents) > limits.AGENTS_PER_RANK_MAX * self.world_size + 16:
            del self.agents[next(iter(self.agents))]

    @property
    def notices(self) -> tuple[str, ...]:
        """What people should know of how its ranks report."""
        claims = self.state.contested
        if not claims:
            return self.remarks
        newest = max(claims)
        ranks, claimant = claims[newest], self.served.get(newest)
        owner = self.served.get(self.state.owner(ranks[0]))
        hosts = [served.link.host if served is not None else "another node" for served in (claimant, owner)]
        said = (
            f"the agent on {hosts[0]} claims {ranks_words(ranks)}, of which the one on {hosts[1]} speaks: the second "
            "claim does not count while the first agent reports; stop whichever is a leftover"
        )
        return (*self.remarks, said)

    def living(self) -> tuple[Served, ...]:
        """Return the connections that speak for ranks and can be asked, the one with the lowest rank first."""
        alive = [(self.state.ranks_of(number)[:1], served) for number, served in self.served.items() if served.alive]
        return tuple(served for _, served in sorted((each for each in alive if each[0]), key=lambda each: each[0]))

    def settle(self, now: float) -> None:
        """Note that it was looked at, and whether it may be looked at in its turn only from now on."""
        self.looked_at = now
        busy = self.suspicion or self.gathering is not None or self.over_at is not None or self.inspection.asking
        self.stirred = self.stirred or bool(busy)
        calm_s = now - max(self.suspicious_at, self.known_since)
        told = bool(self.suspicion.unheard or self.waiting or self.captures)
        self.quiet = not (busy or told or self.likeness.pending) and calm_s > limits.CALM_S

    def is_partial(self, now: float) -> bool:
        """Whether it is too early to judge: some ranks, or nodes after a restart, are still to come."""
        return not self.state.seen.all() and now - self.known_since < limits.PARTIAL_S

    def forget_links(self) -> None:
        """Forget connections that broke, and for all ranks of which another one speaks."""
        if len(self.served) > self.state.links:
            self.served = {number: served for number, served in self.served.items() if self.state.knows(number)}

    def deserted(self, now: float) -> bool:
        """Whether no connection has spoken for it for a long time."""
        self.forget_links()
        if any(served.alive for served in self.served.values()):
            return False
        quiet_s = min((self.state.heard_ago_s(number, now) for number in self.served), default=0.0)
        return quiet_s > limits.ABANDONED_S

    def snapshot(self, now: float) -> JobSnapshot:
        """Return what the judge gets to see of it."""
        found = self.inspection.snapshot(
            self.id, self.world_size, self.suspicion, dict(self.stacks), now - self.known_since, now
        )
        known = frozenset(self.state.seen.nonzero()[0].tolist())
        return replace(
            found,
            unasked=known.difference(found.ranks, found.silent),
            habits=self.patience.habits,
            under_way=self.patience.under_way,
            testimonies=dict(self.testimonies),
            communicators=self.communicators,
            setup=self.likeness.setup,
        )

    def counted(self, verdict: Verdict) -> Verdict:
        """Return a verdict with the count of all ranks that it explains; the judge saw some of a big job only."""
        found = self.state.explained_by(culprit.rank for culprit in verdict.culprits)
        return replace(verdict, explained=found) if found is not None else verdict

    def release(self) -> None:
        """Note that it was judged for the last time, and let go what only judging needs."""
        self.ended = True
        self.inspection, self.confirmation = Inspection(), Confirmation()
        self.gathering, self.stacks, self.waiting = None, {}, ()
        self.testimonies, self.communicators = {}, ()
        self.suspicion, self.loops, self.likeness = Suspicion(), Loops(), Likeness()
        self.stragglers, self.closely = Stragglers(0), Closely()


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

    def get(self, job: str) -> Job | None:
        """Return a job by the name it is listed under."""
        return self._by_id.get(job)

    def by_key(self, key: JobKey) -> Job | None:
        """Return a listed job by what its ranks say."""
        return next((job for job in self._by_launch.get((key.name, key.instance), ()) if job.key == key), None)

    def listed(self) -> tuple[Job, ...]:
        """Return the jobs, by name."""
        return tuple(job for _, job in sorted(self._by_id.items()))

    def all(self) -> tuple[Job, ...]:
        """Return the jobs with the earlier attempts that are not judged to the end yet."""
        return (*self._by_id.values(), *self.retiring)

    def announce(self, link: Link, said: wire.Announce, now: float) -> Job:
        """Return the job that an agent speaks of, which may be new. Raises `WireError`: then nothing has changed."""
        _check(said, link)
        job = self._attempt(link, said, now)
        if said.world_size != job.world_size:
            over = job.ended and self._by_id.get(job.id) is job
            job = self._begin(link, said, job, now) if over else _astray(said, now)
        seen = job.seen
        if self.by_key(job.key) is job and self.room.lacks_ranks(job.state.unseen(said.ranks)):
            raise self.room.full(said.job, said.world_size)
        job.stirred = True
        job.served[link.number] = Served(link=link, index=said.index, terminal=said.terminal)
        job.state.announce(link.number, said.ranks, now, Speaker(agent=link.agent, host=link.host))
        self._by_link.setdefault(link.number, set()).add(job)
        self.room.ranks += job.seen - seen
        if job.state.speaks(link.number):
            job.note_agent(link.agent)
            if link.ahead_s is not None:
                job.likeness.note_clock(link.host, link.ahead_s)
        job.forget_links()
        return job

    def set_up(self, link: Link, job: Job, said: wire.Facts, now: float) -> None:
        """Keep how the ranks of a node were set up."""
        if not job.astray:
            claimed = frozenset(job.state.contested.get(link.number, ()))
            if claimed and job.state.under_way:
                said, claimed = msgspec.structs.replace(said, joined=tuple(set(said.joined) - claimed)), frozenset()
            job.likeness.take(link.agent, link.host, said, now, claimed)
            return
        listed = self.by_key(job.key)
        if listed is not None and said.joined and not listed.state.under_way:
            listed.likeness.note_world(link.host, job.world_size, said.joined, now)

    def may_begin(self, astray: Job) -> bool:
        """Whether the job that stood in the way of this one has ended."""
        listed = self.by_key(astray.key)
        return listed is None or listed.ended

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
            if not (first.ended or first.state.over or first.state.is_spoken_for(now)):
                later = [job for job in others if job.key.attempt > first.key.attempt and job.state.is_spoken_for(now)]
                if later:
                    self._promote(later[0], first)
        self.room.count(self._by_id.values(), self.retiring)

    def _attempt(self, link: Link, said: wire.Announce, now: float) -> Job:
        """Return the attempt that is announced. It follows another one if it is an agent of that one that says so."""
        launch = self._by_launch.get((said.job, said.instance), [])
        known = next((job for job in launch if job.key.attempt == said.attempt), None)
        before = next((job for job in launch if job is not known and _follows(said, link, job)), None)
        if before is not None:
            return self._begin(link, said, before, now) if known is None else self._promote(known, before)
        if known is not None:
            new_run = known.ended and link.agent not in known.agents
            return self._begin(link, said, known, now) if new_run else known
        if any(said.attempt <= job.floor for job in launch):
            return self._earlier(said, now)
        first = launch[0] if launch else None
        if first is not None and said.attempt > first.key.attempt and not first.state.is_spoken_for(now):
            return self._begin(link, said, first, now)
        return self._begin(link, said, None, now)

    def _promote(self, job: Job, before: Job) -> Job:
        """Let an attempt that stood beside another one take its place and name."""
        self._unlist(job)
        self._replace(job, before)
        job.id, job.remarks = before.id, ()
        self._list(job, first=True)
        return job

    def _replace(self, job: Job, before: Job) -> None:
        """Take a listed job from the list, for another attempt or run of the same."""
        self._unlist(before)
        if not before.ended:
            self.retiring.append(before)
            before.stirred = True
        if job.key != before.key:
            stranger = before.heirs and not before.heirs.intersection(before.agents)
            job.heirs = before.heirs if stranger else frozenset(before.agents)
            job.floor = max(before.floor, before.key.attempt if before.key.attempt < job.key.attempt else -1)
            job.state.heirs = job.heirs

    def _earlier(self, said: wire.Announce, now: float) -> Job:
        """Return the job of an attempt that is over. Late news of it changes nothing that is listed."""
        key = JobKey(name=said.job, instance=said.instance, attempt=said.attempt)
        for job in self.retiring:
            if job.key == key:
                return job
        return Job(id=said.job, key=key, state=JobState(said.world_size), known_since=now, ended=True)

    def _begin(self, link: Link, said: wire.Announce, before: Job | None, now: float) -> Job:
        self._make_room(link, said)
        job = Job(
            id=said.job,
            key=JobKey(name=said.job, instance=said.instance, attempt=said.attempt),
            state=JobState(said.world_size),
            known_since=now,
            patience=Patience(self._memory.of(said.job)),
            likeness=Likeness(one_rendezvous=not _LOOPBACK.match(said.instance)),
            opener=Opener(link=link.number, host=link.host, token=link.caller.name),
        )
        holder = self._by_id.get(said.job)
        if before is not None:
            self._replace(job, before)
            job.id, job.remarks = before.id, before.remarks
        elif holder is not None and not holder.ended:
            job.id = self._free_name(job, holder)
            job.remarks = holder.remarks = (_side_by_side(job, holder),)
        self._list(job, first=before is not None)
        self.room.jobs += 1
        self.room.add(job)
        return job

    def _list(self, job: Job, *, first: bool) -> None:
        if job.id in self._by_id:
            self._unlist(self._by_id[job.id])  # it has ended
        self._by_id[job.id] = job
        self._by_launch.setdefault(job.launch, []).insert(0 if first else limits.JOBS_MAX, job)

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

    def _make_room(self, link: Link, said: wire.Announce) -> None:
        """Drop ended jobs until a new one fits. Raises `NoRoom` if none can be dropped."""
        self.room.check_opener(link, said.job, said.world_size)
        if not self.room.lacks(said.world_size, len(said.ranks)):
            return
        for job in sorted((j for j in self._by_id.values() if j.ended), key=lambda j: j.over_at or 0.0):
            self._unlist(job)
            self.room.count(self._by_id.values(), self.retiring)
            if not self.room.lacks(said.world_size, len(said.ranks)):
                return
        raise self.room.full(said.job, said.world_size)


def _check(said: wire.Announce, link: Link) -> None:
    if not 1 <= said.world_size <= limits.RANKS_MAX:
        raise WireError(f"a job of {said.world_size} ranks was announced; 1 to {limits.RANKS_MAX} can be watched")
    if not said.job.isprintable() or not 1 <= len(said.job) <= 200 or len(said.instance) > 1000:
        raise WireError("a job was announced without a name, or with one that is too long or not printable")
    if any(rank < 0 for rank in said.ranks) or not 0 <= said.attempt < 2**31:
        raise WireError(f"job {said.job} was announced with an impossible rank or attempt")
    if any(rank >= said.world_size for rank in said.ranks):
        raise WireError(f"job {said.job} of {said.world_size} ranks has no rank {max(said.ranks)}")
    if not link.caller.bounds.allow_job(said.job):
        raise WireError(
            f"the token of {link.caller.name} is bound to {link.caller.bounds}, and does not allow job {said.job!r}; "
            "name the job otherwise with NCCLWATCH_JOB, or ask for another token"
        )


def _astray(said: wire.Announce, now: float) -> Job:
    """Return a job that nobody looks at, for ranks that say another number of ranks than the others of theirs."""
    key = JobKey(name=said.job, instance=said.instance, attempt=said.attempt)
    return Job(id=said.job, key=key, state=JobState(said.world_size), known_since=now, ended=True, astray=True)


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
