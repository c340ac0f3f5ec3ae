"""Takes the news of one agent in, each to the job that it is of.

What is of ranks that the agent does not speak for is left out.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from ncclwatch.contract import config, digests, job_names, wire
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.model.rank import ProcessState, RankView, StackDump
from ncclwatch_server import limits
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.ingest.host_names import HostNames
from ncclwatch_server.ingest.own_news import News, check_lengths, own_part, ranks_of
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.jobs.registry import OverError
from ncclwatch_server.jobs.room import NoRoom
from ncclwatch_server.watch.succession import recall
from ncclwatch_server.watch.tick import Watch

log = logging.getLogger("ncclwatch.server")

TOLD_MAX = 256  # kinds of news of others' ranks, by job, that the log tells of one connection


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parted:
    """The parts of an answer with stacks that came so far, to which command, and how long they were."""

    reply_to: int = 0
    dumps: tuple[StackDump, ...] = ()
    size: int = 0


@dataclass(slots=True, kw_only=True)
class AgentNews:
    """The news of one agent, which has said who it is, and of the jobs it has announced."""

    link: Link
    watch: Watch
    host_names: HostNames = field(default_factory=HostNames)
    namespaces: frozenset[str] = frozenset()  # to which tokens are bound
    clock: Callable[[], float] = time.monotonic
    jobs: dict[int, Job] = field(default_factory=dict)
    told: set[tuple[str, str]] = field(default_factory=set)  # (job, kind) of news of others' ranks that was told
    announced: dict[int, wire.Announce] = field(default_factory=dict)
    parted: _Parted = field(default_factory=_Parted)  # the first parts of an answer with stacks
    over: dict[int, None] = field(default_factory=dict)  # jobs of which the agent has said that all ranks ended
    refused: dict[int, None] = field(default_factory=dict)  # of which no news is taken, the newest last

    def world_sizes(self) -> dict[int, int]:
        """Return how many ranks the jobs have of which news may come, by their number."""
        return {index: job.world_size for index, job in self.jobs.items()}

    def take_digest(self, data: bytes) -> None:
        """Take a digest of one job."""
        index, ranks, groups = digests.split_digest(data)
        job = self.jobs.get(index)
        if job is None:
            if index in self.refused:
                return
            raise WireError(f"a digest of job number {index}, which was not announced")
        now = self.clock()
        if (job.astray and self.watch.jobs.may_begin(job)) or (
            (job.replaced or job.stands_beside) and self.watch.jobs.has_outlived(self.link, job, now)
        ):
            self._announce(self.announced[index])
            if index not in self.jobs:
                return
            job = self.jobs[index]
        job.state.receive_digest(self.link.number, ranks, groups, now)
        self.watch.counters.digests += 1
        self.watch.look_within(limits.DIGEST_LOOK_S)

    def take_message(
        self, message: wire.UnreadMessage | wire.Views, now: float, size: int = 0
    ) -> wire.UnreadViews | None:
        """Take a message of so many bytes that came at this moment.

        Returns views that want to be read elsewhere, then to be taken.
        """
        self.watch.counters.messages += 1
        if isinstance(message, wire.Hello):
            raise WireError("a second hello on one connection")
        if isinstance(message, wire.Announce):
            self._announce(message)
            return None
        job = self.jobs.get(message.index)
        if job is None:
            if message.index in self.refused:
                return None
            raise WireError(f"news of job number {message.index}, which was not announced")
        if isinstance(message, wire.Standby | wire.Predecessor):
            self._take_standby_news(job, message, now)
            return None
        if not self._was_asked(job, message):
            kind = type(message).__name__.lower()
            self._tell_once(job.id, kind, f"left out {kind} of job {job.id} that nobody has asked {self.link.host} for")
            return None
        job.stirred = True
        if isinstance(message, (wire.UnreadViews, wire.Views, wire.Stacks, wire.Testimonies)):
            self._time(message)
        if isinstance(message, wire.UnreadViews):
            return message
        if isinstance(message, wire.Views):
            self.take_views(job, message, now)
        else:
            self._hear(job, message, size)
        return None

    def _take_standby_news(self, job: Job, message: wire.StandbyNews, now: float) -> None:
        """Take news that only a server wants which an agent started for one job: nodes stand by for no other one."""
        successions = self.watch.successions
        if successions is None or not job.state.speaks(self.link.number):
            return
        if isinstance(message, wire.Predecessor):
            recall(job, message, self.link, now)
            self.watch.look_within(limits.SOON_S)
        elif self.link.asked(message.reply_to, wire.CommandKind.STAND_BY, message.index):
            successions.answered(job, self.link, message)

    def _was_asked(self, job: Job, message: wire.JobNews | wire.UnreadViews) -> bool:
        """Whether a message is no answer, or one to a command of this kind that was sent for this job."""
        if isinstance(message, wire.Stacks):
            return self.link.asked(message.reply_to, wire.CommandKind.STACKS, message.index)
        if isinstance(message, wire.Testimonies):
            return self.link.asked(message.reply_to, wire.CommandKind.WITNESS, message.index)
        if isinstance(message, wire.Probed):
            return job.probes.asked((self.link.number, message.reply_to))
        if isinstance(message, wire.Parameters):
            return self.link.asked(message.reply_to, wire.CommandKind.PARAMETERS, message.index, " ".join(message.key))
        return True

    def _time(self, message: wire.UnreadViews | wire.Views | wire.Stacks | wire.Testimonies) -> None:
        """Note how long an answer took, and of how many ranks it has nothing to tell."""
        counters, found = self.watch.counters, self.link.answered(message.reply_to)
        if found is not None:
            counters.timings.captured(found[0].value, found[1])
        if isinstance(message, wire.Stacks):
            failed = sum(1 for dump in message.dumps if dump.failure and not dump.threads)
            counters.count_capture_failures(wire.CommandKind.STACKS.value, failed)
        elif isinstance(message, wire.Testimonies):
            failed = sum(1 for testimony in message.ranks if testimony.failure)
            counters.count_capture_failures(wire.CommandKind.WITNESS.value, failed)

    def _own_part(self, job: Job, message: News) -> News | None:
        """Return what of a message is of ranks that this connection speaks for, None if it speaks for none.

        Raises `WireError` if the job has no such ranks.
        """
        check_lengths(message, job.world_size)
        if any(not 0 <= rank < job.world_size for rank in ranks_of(message)):
            raise WireError(f"news of a rank outside of 0..{job.world_size - 1}")
        own, foreign = own_part(message, job.state, self.link.number)
        speaks = job.state.speaks(self.link.number)
        if foreign or not speaks:
            self._tell_foreign(job, type(message).__name__.lower())
        return own if speaks or (isinstance(own, wire.Facts) and own.joined) else None

    def _tell_foreign(self, job: Job, kind: str) -> None:
        """Count news of ranks for which this connection does not speak; the log says it once of each kind and job."""
        self.watch.counters.count_foreign(kind)
        self._tell_once(
            job.id, kind,
            f"left out {kind} of ranks of job {job.id}: they came from the agent on {self.link.host} (connection "
            f"{self.link.number}), and it does not speak for these ranks",
        )  # fmt: skip

    def _hear(self, job: Job, said: wire.ReadNews, size: int) -> None:
        message = self._own_part(job, said)
        if message is None:
            return
        if isinstance(message, wire.Stacks):
            self._stacks(job, message, size)
        elif isinstance(message, wire.Loops):
            job.stragglers.batches.add_loops(message.ranks, self.clock())
            if job.loops.receive_loops(message.ranks):
                self.watch.look_within(limits.SOON_S)
        elif isinstance(message, wire.Facts):
            self.watch.jobs.set_up(self.link, job, message, self.clock())
            self.watch.look_within(limits.DIGEST_LOOK_S)
        elif isinstance(message, wire.Parameters):
            job.likeness.learn(message)
            self.watch.look_within(limits.SOON_S)
        elif isinstance(message, wire.Testimonies):
            if job.gathering is not None:
                job.gathering.receive_testimonies(
                    message.ranks, message.communicators, (self.link.number, message.reply_to)
                )
            self.watch.look_within(limits.SOON_S)
        elif isinstance(message, wire.Probed):
            question = (self.link.number, message.reply_to)
            job.probes.hear(question, message.answering, self.link.host, self.clock())
            self.watch.look_within(limits.SOON_S)
        else:
            job.state.gone(self.link.number)
            self.over[message.index] = None
            self.watch.look_within(limits.SOON_S)

    def _stacks(self, job: Job, message: wire.Stacks, size: int) -> None:
        question = (self.link.number, message.reply_to)
        known = self.parted if self.parted.reply_to == message.reply_to else _Parted(reply_to=message.reply_to)
        dumps, size = (*known.dumps, *message.dumps), known.size + size
        if message.more and len(dumps) <= config.ELEMENTS_MAX and size <= limits.ANSWER_BYTES_MAX:
            self.parted = _Parted(reply_to=message.reply_to, dumps=dumps, size=size)
            return
        if known.dumps:
            message = msgspec.structs.replace(message, dumps=dumps)
            self.parted = _Parted()
        if any(capture.receive_stacks(message.dumps, question) for capture in job.captures):
            return
        if job.gathering is not None:
            job.gathering.receive_stacks(message.dumps, question)
        self.watch.look_within(limits.SOON_S)

    def _announce(self, message: wire.Announce) -> None:
        """Take an announcement, or refuse this job alone: what else runs on the node is watched."""
        try:
            job = self._admit(message)
        except OverError:  # late news of it changes nothing
            self._forget(message.index)
            return
        except WireError as error:
            self._refuse_job(message, str(error))
            return
        before = self.jobs.get(message.index)
        if before is not None and before is not job:
            self.watch.jobs.drop_astray(self.link, before)
        self.jobs[message.index] = job
        if message.hooks:  # others wait to hear which agent runs it, or that it has ended
            self.watch.look_within(limits.SOON_S)
        self.announced[message.index] = message
        self.over.pop(message.index, None)
        self.refused.pop(message.index, None)
        if self.link.number in job.state.contested and job.notices:
            self.watch.counters.count_foreign("claims")
            self._tell_once(job.id, "claims", f"job {job.id}: {job.notices[-1]}")
            self.watch.claimed(job, self.link)

    def _admit(self, message: wire.Announce) -> Job:
        others = [job for index, job in self.jobs.items() if index != message.index and index not in self.over]
        if len(others) >= limits.JOBS_PER_AGENT_MAX:
            raise NoRoom(
                f"no room for job {message.job}: more than {limits.JOBS_PER_AGENT_MAX} jobs run on {self.link.host}"
            )
        caller, space = self.link.caller, job_names.namespace(message.job)
        if space in self.namespaces and caller.bounds.leave_jobs_open:
            raise WireError(
                f"namespace {space} belongs to the tokens that are bound to it, and the token of {caller.name} is not; "
                "ask for a token with namespace= or job="
            )
        job = self.watch.jobs.announce(self.link, message, self.clock())
        if job.astray and sum(each.astray for each in others) >= limits.ASTRAY_PER_AGENT_MAX:
            raise WireError(f"more than {limits.ASTRAY_PER_AGENT_MAX} numbers of ranks for jobs on one node")
        while len(self.jobs) >= 2 * limits.JOBS_PER_AGENT_MAX and self.over:
            self._forget(next(iter(self.over)))
        return job

    def _refuse_job(self, message: wire.Announce, reason: str) -> None:
        self._forget(message.index)
        self.link.send(wire.JobRefused(index=message.index, reason=reason))
        self.watch.counters.jobs_refused += 1
        self.watch.refusals.note(self.link.host, reason, message.job)
        self._tell_once(message.job, "refused", f"refused a job of the agent on {self.link.host}: {reason}")

    def _forget(self, index: int) -> None:
        """Take no more news of a job. What is on its way of it is no mistake of the agent."""
        if index in self.jobs:
            self.watch.jobs.drop_astray(self.link, self.jobs[index])
        for known in (self.jobs, self.announced, self.over):
            known.pop(index, None)
        self.refused[index] = None
        while len(self.refused) > limits.REFUSED_PER_AGENT_MAX:
            del self.refused[next(iter(self.refused))]

    def _tell_once(self, job: str, kind: str, sentence: str) -> None:
        if (job, kind) not in self.told and len(self.told) < TOLD_MAX:
            self.told.add((job, kind))
            log.warning("%s", sentence)

    def _shown(self, view: RankView) -> RankView:
        """Return a view under the name that its host has here: that is told in verdicts."""
        link = self.link
        own = view.host == link.said_host
        host = link.host if own else self.host_names.shown(link.caller, view.host, link.machine)
        return view if host == view.host else replace(view, host=host)

    def take_views(self, job: Job, said: wire.Views, now: float) -> None:
        """Take views of a job that came at this moment."""
        message = self._own_part(job, said)
        if message is None:
            return
        job.stirred = True
        message = msgspec.structs.replace(message, ranks=tuple(self._shown(view) for view in message.ranks))
        job.showing.receive_views(message.ranks)
        if job.showing.asked((self.link.number, message.reply_to)):
            return  # for people: the judge asks for itself
        if any(each.receive_views(message.ranks, (self.link.number, message.reply_to)) for each in job.histories):
            return
        if job.closely.receive_views(message.ranks, (self.link.number, message.reply_to)):
            return
        job.inspection.receive_views(message.ranks, (self.link.number, message.reply_to), now)
        for view in message.ranks:
            if view.ending is not None and not _lives_on(view):
                job.state.note_ended(view.rank)
        if not message.reply_to:
            job.inspection.hurry(now)
        self.watch.look_within(limits.SOON_S)


def _lives_on(view: RankView) -> bool:
    """Say whether a rank has said that its program ends well, and its process is there still."""
    gone = view.process.state in (ProcessState.GONE, ProcessState.ZOMBIE, ProcessState.UNKNOWN)
    return view.ending is not None and view.ending.kind == "exited" and not gone
