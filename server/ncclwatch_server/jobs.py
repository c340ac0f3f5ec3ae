"""Which jobs does this server know, under which names, and who speaks for their ranks?"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from ncclwatch.contract import wire
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.model import JobSnapshot, StackDump, Verdict
from ncclwatch.contract.testimony import Communicator, Testimony
from ncclwatch.contract.text import ranks_words
from ncclwatch_server import settings
from ncclwatch_server.captures import Capture
from ncclwatch_server.confirmation import Confirmation
from ncclwatch_server.habits import Lesson, Memory
from ncclwatch_server.incidents import JobKey
from ncclwatch_server.inspection import Inspection
from ncclwatch_server.likeness import Likeness
from ncclwatch_server.links import Link
from ncclwatch_server.loops import Loops
from ncclwatch_server.owners import Speaker
from ncclwatch_server.patience import Patience
from ncclwatch_server.showing import Showing
from ncclwatch_server.stacks import Gathering
from ncclwatch_server.state import JobState, Suspicion
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
    agents: set[str] = field(default_factory=set)  # every agent that ever announced it
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
    suspicious_at: float = float("-inf")  # when it was so last
    judge_failing: bool = False  # told already
    look_failing: bool = False
    showing: Showing = field(default_factory=Showing)
    hung_s: float = 0.0  # for how long critical incidents of it have been open
    over_at: float | None = None
    ended: bool = False  # over, and judged for the last time
    astray: bool = False  # its ranks say another number of ranks than those of the job that is listed

    def __post_init__(self) -> None:
        self.stragglers = Stragglers(self.state.world_size)

    @property
    def world_size(self) -> int:
        """Return how many ranks the job has."""
        return self.state.world_size

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

    def is_partial(self, now: float) -> bool:
        """Whether it is too early to judge: some ranks, or nodes after a restart, are still to come."""
        return not self.state.seen.all() and now - self.known_since < settings.PARTIAL_S

    def deserted(self, now: float) -> bool:
        """Whether no connection has spoken for it for a long time."""
        if any(served.alive for served in self.served.values()):
            return False
        quiet_s = min((self.state.heard_ago_s(number, now) for number in self.served), default=0.0)
        return quiet_s > settings.ABANDONED_S

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
        self.retiring: list[Job] = []

    def get(self, job: str) -> Job | None:
        """Return a job by the name it is listed under."""
        return self._by_id.get(job)

    def listed(self) -> tuple[Job, ...]:
        """Return the jobs, by name."""
        return tuple(job for _, job in sorted(self._by_id.items()))

    def all(self) -> tuple[Job, ...]:
        """Return the jobs with the earlier attempts that are not judged to the end yet."""
        return (*self._by_id.values(), *self.retiring)

    def announce(self, link: Link, said: wire.Announce, now: float) -> Job:
        """Return the job that an agent speaks of, which may be new. Raises `WireError`."""
        _check(said)
        job = self._find(said)
        if job is not None and said.attempt < job.key.attempt:
            job = self._earlier(said, now)
        elif job is None or _replaces(said, link, job):
            job = self._begin(said, job, now)
        if said.world_size != job.world_size and job.ended:
            job = self._begin(said, job, now)
        elif said.world_size != job.world_size:
            job = _astray(said, now)
        if any(rank >= job.world_size for rank in said.ranks):
            raise WireError(f"job {said.job} of {said.world_size} ranks has no rank {max(said.ranks)}")
        job.served[link.number] = Served(link=link, index=said.index, terminal=said.terminal)
        job.state.announce(link.number, said.ranks, now, Speaker(agent=link.agent, host=link.host))
        if not job.state.speaks(link.number):
            return job
        job.agents.add(link.agent)
        if link.ahead_s is not None:
            job.likeness.note_clock(link.host, link.ahead_s)
        return job

    def set_up(self, link: Link, job: Job, said: wire.Facts, now: float) -> None:
        """Keep how the ranks of a node were set up."""
        if not job.astray:
            claimed = frozenset(job.state.contested.get(link.number, ()))
            if claimed and job.state.under_way:
                said, claimed = msgspec.structs.replace(said, joined=tuple(set(said.joined) - claimed)), frozenset()
            job.likeness.take(link.agent, link.host, said, now, claimed)
            return
        listed = self._listed_with(job.key)
        if listed is not None and said.joined and not listed.state.under_way:
            listed.likeness.note_world(link.host, job.world_size, said.joined, now)

    def may_begin(self, astray: Job) -> bool:
        """Whether the job that stood in the way of this one has ended."""
        listed = self._listed_with(astray.key)
        return listed is None or listed.ended

    def lose(self, link: Link, now: float) -> None:
        """Note that a connection broke."""
        for job in self.all():
            served = job.served.get(link.number)
            if served is None:
                continue
            job.served[link.number] = replace(served, lost=True)
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
        self._by_id.pop(name, None)
        self._memory.forget(name)
        return False

    def recall(self, lessons: Mapping[str, Sequence[Lesson]]) -> None:
        """Add what jobs taught before this server started, which was not at hand then."""
        self._memory.recall(lessons)

    def lessons(self) -> list[tuple[str, Lesson]]:
        """Return all that jobs have taught, each with the job's name."""
        return self._memory.lessons()

    def prune(self, now: float) -> None:
        """Forget jobs that ended long ago."""
        self.retiring = [job for job in self.retiring if not job.ended]
        for name, job in list(self._by_id.items()):
            if job.ended and now - (job.over_at or now) > settings.ENDED_KEPT_S:
                del self._by_id[name]

    def _find(self, said: wire.Announce) -> Job | None:
        for job in self._by_id.values():
            if (job.key.name, job.key.instance) == (said.job, said.instance):
                return job
        return None

    def _find_by_key(self, key: JobKey) -> Job | None:
        return next((job for job in self._by_id.values() if job.key == key), None)

    def _listed_with(self, key: JobKey) -> Job | None:
        return next((job for job in self._by_id.values() if job.key == key), None)

    def _earlier(self, said: wire.Announce, now: float) -> Job:
        """Return the job of an attempt that is over. Late news of it changes nothing that is listed."""
        key = JobKey(name=said.job, instance=said.instance, attempt=said.attempt)
        for job in self.retiring:
            if job.key == key:
                return job
        return Job(id=said.job, key=key, state=JobState(said.world_size), known_since=now, ended=True)

    def _begin(self, said: wire.Announce, before: Job | None, now: float) -> Job:
        self._make_room(said)
        name = said.job
        remarks: tuple[str, ...] = ()
        holder = self._by_id.get(said.job)
        if before is not None:
            name, remarks = before.id, before.remarks
            if not before.ended:
                self.retiring.append(before)
        elif holder is not None and not holder.ended:
            name = f"{said.job}~{hashlib.sha256(said.instance.encode()).hexdigest()[:4]}"
            remarks = (f"two jobs report as {said.job!r}; set NCCLWATCH_JOB to tell them apart",)
            holder.remarks = remarks
        job = Job(
            id=name,
            key=JobKey(name=said.job, instance=said.instance, attempt=said.attempt),
            state=JobState(said.world_size),
            known_since=now,
            remarks=remarks,
            patience=Patience(self._memory.of(said.job)),
            likeness=Likeness(one_rendezvous=not _LOOPBACK.match(said.instance)),
        )
        self._by_id[name] = job
        return job

    def _make_room(self, said: wire.Announce) -> None:
        """Drop ended jobs until a new one fits. Raises `WireError` if none can be dropped."""
        ended = sorted((j for j in self._by_id.values() if j.ended), key=lambda j: j.over_at or 0.0)
        while len(self._by_id) >= settings.JOBS_MAX or self._ranks() + said.world_size > settings.RANKS_TOTAL_MAX:
            if not ended:
                raise WireError(
                    f"no room for job {said.job} of {said.world_size} ranks: this server watches {len(self._by_id)} "
                    f"jobs of {self._ranks()} ranks; start another ncclwatch-server for it"
                )
            del self._by_id[ended.pop(0).id]

    def _ranks(self) -> int:
        return sum(job.world_size for job in self.all())


def _check(said: wire.Announce) -> None:
    if not 1 <= said.world_size <= settings.RANKS_MAX:
        raise WireError(f"a job of {said.world_size} ranks was announced; 1 to {settings.RANKS_MAX} can be watched")
    if not said.job.isprintable() or not 1 <= len(said.job) <= 200 or len(said.instance) > 1000:
        raise WireError("a job was announced without a name, or with one that is too long or not printable")
    if any(rank < 0 for rank in said.ranks) or not 0 <= said.attempt < 2**31:
        raise WireError(f"job {said.job} was announced with an impossible rank or attempt")


def _astray(said: wire.Announce, now: float) -> Job:
    """Return a job that nobody looks at, for ranks that say another number of ranks than the others of theirs."""
    key = JobKey(name=said.job, instance=said.instance, attempt=said.attempt)
    return Job(id=said.job, key=key, state=JobState(said.world_size), known_since=now, ended=True, astray=True)


def _replaces(said: wire.Announce, link: Link, job: Job) -> bool:
    """Whether an announcement of a known launch is about a new attempt or a new run of it."""
    return said.attempt > job.key.attempt or (job.ended and link.agent not in job.agents)
