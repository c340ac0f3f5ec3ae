"""Takes the news of one agent in: what is said on its line, from `Hello` to the last word.

Whatever an agent sends, only its own connection can suffer from it.
"""

import asyncio
import functools
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from ncclwatch.contract import config, wire
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.model.rank import StackDump
from ncclwatch.contract.version import VERSION
from ncclwatch_server import limits
from ncclwatch_server.evidence.agent_link import Link, nobody
from ncclwatch_server.ingest.line_budget import LineBudget
from ncclwatch_server.ingest.own_news import News, own_part, ranks_of
from ncclwatch_server.ingest.websocket import AgentLine
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.jobs.room import NoRoom
from ncclwatch_server.runtime.worker_threads import Desk
from ncclwatch_server.security.access import shown
from ncclwatch_server.security.boundary import problem
from ncclwatch_server.security.guesses import Guesses
from ncclwatch_server.security.peers import Network, origin
from ncclwatch_server.security.scopes import Access, Caller, Denial, Scope
from ncclwatch_server.watch.counters import RefusedAt
from ncclwatch_server.watch.tick import Watch

log = logging.getLogger("ncclwatch.server")

_POLICY_VIOLATION = 1008  # RFC 6455: what was received breaks a rule
TOLD_MAX = 256  # kinds of news of others' ranks, by job, that the log tells of one connection
UNREAD_MAX = 4  # messages with views of one agent that wait to be read; then nothing more is taken from it


@dataclass(slots=True, kw_only=True)
class _News:
    """The news of one agent, which has said who it is, and of the jobs it has announced."""

    link: Link
    watch: Watch
    clock: Callable[[], float] = time.monotonic
    jobs: dict[int, Job] = field(default_factory=dict)
    told: set[tuple[str, str]] = field(default_factory=set)  # (job, kind) of news of others' ranks that was told
    announced: dict[int, wire.Announce] = field(default_factory=dict)
    parted: tuple[int, tuple[StackDump, ...]] = 0, ()  # the first parts of an answer with stacks, and to what
    over: dict[int, None] = field(default_factory=dict)  # jobs of which the agent has said that all ranks ended
    refused: dict[int, None] = field(default_factory=dict)  # of which no news is taken, the newest last

    def take_digest(self, data: bytes) -> None:
        index, ranks, groups = wire.split_digest(data)
        job = self.jobs.get(index)
        if job is None:
            if index in self.refused:
                return
            raise WireError(f"a digest of job number {index}, which was not announced")
        if job.astray and self.watch.jobs.may_begin(job):
            self._announce(self.announced[index])
            if index not in self.jobs:
                return
            job = self.jobs[index]
        job.state.receive_digest(self.link.number, ranks, groups, self.clock())
        self.watch.counters.digests += 1
        self.watch.look_within(limits.DIGEST_LOOK_S)

    def take_message(self, message: wire.UnreadMessage | wire.Views, now: float) -> wire.UnreadViews | None:
        """Take a message that came at this moment. Returns views that want to be read elsewhere, then to be taken."""
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
        job.stirred = True
        if isinstance(message, (wire.UnreadViews, wire.Views, wire.Stacks, wire.Testimonies)):
            self._time(message)
        if isinstance(message, wire.UnreadViews):
            return message
        if isinstance(message, wire.Views):
            self.take_views(job, message, now)
        else:
            self._hear(job, message)
        return None

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

    def _hear(self, job: Job, said: wire.ReadNews) -> None:
        message = self._own_part(job, said)
        if message is None:
            return
        if isinstance(message, wire.Stacks):
            self._stacks(job, message)
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
        else:
            job.state.gone(self.link.number)
            self.over[message.index] = None
            self.watch.look_within(limits.SOON_S)

    def _stacks(self, job: Job, message: wire.Stacks) -> None:
        question = (self.link.number, message.reply_to)
        known = self.parted if self.parted[0] == message.reply_to else (message.reply_to, ())
        if message.more and len(known[1]) + len(message.dumps) <= config.ELEMENTS_MAX:
            self.parted = message.reply_to, (*known[1], *message.dumps)
            return
        if known[1]:
            message = msgspec.structs.replace(message, dumps=(*known[1], *message.dumps))
            self.parted = 0, ()
        if any(capture.receive_stacks(message.dumps, question) for capture in job.captures):
            return
        if job.gathering is not None:
            job.gathering.receive_stacks(message.dumps, question)
        self.watch.look_within(limits.SOON_S)

    def _announce(self, message: wire.Announce) -> None:
        """Take an announcement, or refuse this job alone: what else runs on the node is watched."""
        try:
            job = self._admit(message)
        except WireError as error:
            self._refuse_job(message, str(error))
            return
        self.jobs[message.index] = job
        self.announced[message.index] = message
        self.over.pop(message.index, None)
        self.refused.pop(message.index, None)
        if self.link.number in job.state.contested and job.notices:
            self.watch.counters.count_foreign("claims")
            log.warning("job %s: %s", job.id, job.notices[-1])

    def _admit(self, message: wire.Announce) -> Job:
        others = [job for index, job in self.jobs.items() if index != message.index and index not in self.over]
        if len(others) >= limits.JOBS_PER_AGENT_MAX:
            raise NoRoom(
                f"no room for job {message.job}: more than {limits.JOBS_PER_AGENT_MAX} jobs run on {self.link.host}"
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
        self._tell_once(message.job, "refused", f"refused a job of the agent on {self.link.host}: {reason}")

    def _forget(self, index: int) -> None:
        """Take no more news of a job. What is on its way of it is no mistake of the agent."""
        for known in (self.jobs, self.announced, self.over):
            known.pop(index, None)
        self.refused[index] = None
        while len(self.refused) > limits.REFUSED_PER_AGENT_MAX:
            del self.refused[next(iter(self.refused))]

    def _tell_once(self, job: str, kind: str, sentence: str) -> None:
        if (job, kind) not in self.told and len(self.told) < TOLD_MAX:
            self.told.add((job, kind))
            log.warning("%s", sentence)

    def take_views(self, job: Job, said: wire.Views, now: float) -> None:
        """Take views of a job that came at this moment."""
        message = self._own_part(job, said)
        if message is None:
            return
        job.stirred = True
        job.showing.receive_views(message.ranks)
        if job.showing.asked((self.link.number, message.reply_to)):
            return  # for people: the judge asks for itself
        if job.closely.receive_views(message.ranks, (self.link.number, message.reply_to)):
            return
        job.inspection.receive_views(message.ranks, (self.link.number, message.reply_to), now)
        for view in message.ranks:
            if view.ending is not None:
                job.state.note_ended(view.rank)
        if not message.reply_to:
            job.inspection.hurry(now)
        self.watch.look_within(limits.SOON_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Late:
    """A message that is taken later."""

    data: bytes
    text: bool
    came_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    """For how long the answer to a token waits, and for whom."""

    guesses: Guesses
    address: str
    seconds: float


class _Session:
    """What is said on one line: first the hello, then news. What is wrong ends it, with a sentence."""

    __slots__ = ("_caller", "_door", "_ends", "_later", "_line", "_news", "_pinged", "_unread", "_wait")

    def __init__(self, door: "Door", line: AgentLine, caller: Caller | Denial, wait: "_Wait") -> None:
        self._wait: _Wait | None = wait if wait.seconds else None  # where somebody guesses
        self._door = door
        self._line = line
        self._caller = caller
        self._news: _News | None = None
        self._ends: asyncio.TimerHandle | None = None  # if there is no hello until then; later: if its token is no more
        self._pinged = False
        self._unread = 0  # messages with views that are being read
        self._later: deque[_Late] = deque()  # a long message that is being read, and what came after it

    def begin(self) -> None:
        """Refuse whoever shows no good token, and give the others time to say who they are."""
        if self._wait is not None:
            self._wait.guesses.waits(self._wait.address, 1)
            self._line.pause()
            self._ends = asyncio.get_running_loop().call_later(self._wait.seconds, self._have_waited)
        else:
            self._begin()

    def _have_waited(self) -> None:
        self._stop_waiting()
        self._line.resume()
        self._begin()

    def _stop_waiting(self) -> None:
        if self._wait is not None:
            self._wait.guesses.waits(self._wait.address, -1)
            self._wait = None

    def _begin(self) -> None:
        if isinstance(self._caller, Denial):
            self._refuse(self._caller.sentence, RefusedAt.HELLO)
            return
        late = f"no hello within {limits.HELLO_S:.0f} s"
        self._ends = asyncio.get_running_loop().call_later(limits.HELLO_S, self._refuse, late, RefusedAt.HELLO)

    def expects(self, size: int, head: bytes, *, text: bool) -> bool:
        """Say whether a long message may come, of which these are the first bytes. If not, this ends the talk."""
        if self._news is None:
            reason = f"the first message of an agent must be its hello, and that has no {size} bytes"
            self._refuse(reason, RefusedAt.HELLO)
            return False
        kind = wire.kind_of(head) if text else "digest"
        if size <= max(wire.bytes_max(kind), limits.PLAIN_BYTES_MAX):
            return True
        what = f"a message of kind {kind}" if kind else "a message that does not begin with its kind"
        reason = f"agent on {self._news.link.host}: {what} has {size} bytes; the limit is {wire.bytes_max(kind)}"
        self._refuse(reason, RefusedAt.NEWS)
        return False

    def take(self, data: bytes, *, text: bool) -> None:
        """Take a message: of JSON, or a digest."""
        news = self._news
        if news is None:
            self._take_hello(data)
        elif self._later or (text and len(data) > limits.PLAIN_BYTES_MAX):
            self._put_off(news, _Late(data=data, text=text, came_at=news.clock()))
        else:
            self._take_now(news, data, text=text)

    def _take_now(self, news: _News, data: bytes, *, text: bool) -> None:
        unread = None
        try:
            if text:
                unread = news.take_message(wire.open_from_agent(data), news.clock())
            else:
                news.take_digest(data)
        except WireError as error:
            self._refuse(f"agent on {news.link.host}: {error}", RefusedAt.NEWS)
        if unread is not None:
            self._read(news, unread, len(data))

    def _put_off(self, news: _News, late: "_Late") -> None:
        """Let a long message be read in a thread, and everything after it wait for that."""
        self._line.hold(len(late.data))
        if not self._line.talks:  # there was no memory for it
            self._line.hold(-len(late.data))
            return
        self._later.append(late)
        if len(self._later) == 1:
            self._line.pause()
            self._read_long(news, late)

    def _read_long(self, news: _News, late: "_Late") -> None:
        reading = self._door.desk.begin(functools.partial(wire.read_long, late.data))
        reading.add_done_callback(functools.partial(self._have_read_long, news))

    def _have_read_long(self, news: _News, reading: "asyncio.Future[wire.AgentMessage]") -> None:
        late = self._later.popleft()
        self._line.hold(-len(late.data))
        if not reading.cancelled() and self._line.talks:
            try:
                news.take_message(reading.result(), late.came_at)
            except WireError as error:
                self._refuse(f"agent on {news.link.host}: {error}", RefusedAt.NEWS)
        self._go_on(news)

    def _go_on(self, news: _News) -> None:
        """Take what has waited for a long message."""
        while self._later and self._line.talks:
            late = self._later[0]
            if late.text and len(late.data) > limits.PLAIN_BYTES_MAX:
                self._read_long(news, late)
                return
            self._later.popleft()
            self._line.hold(-len(late.data))
            self._take_now(news, late.data, text=late.text)
        self._line.hold(-sum(len(late.data) for late in self._later))
        self._later.clear()
        if self._unread < UNREAD_MAX:
            self._line.resume()

    def _read(self, news: _News, unread: wire.UnreadViews, size: int) -> None:
        """Read views in a thread: a megabyte of them would keep the event loop from all others for 20 ms."""
        self._unread += 1
        if self._unread == UNREAD_MAX:
            self._line.pause()
        self._line.hold(size)
        reading = self._door.desk.begin(unread.read)
        job, now = news.jobs[unread.index], news.clock()
        reading.add_done_callback(functools.partial(self._have_read, news, job, now, size))

    def _have_read(
        self, news: _News, job: Job, came_at: float, size: int, reading: "asyncio.Future[wire.Views]"
    ) -> None:
        self._unread -= 1
        self._line.hold(-size)
        if self._unread == UNREAD_MAX - 1 and not self._later:
            self._line.resume()
        if reading.cancelled() or not self._line.talks:
            return
        try:
            views = reading.result()
            if news.jobs.get(views.index) is job:  # else another job has its number by now
                news.take_views(job, views, came_at)
        except WireError as error:
            self._refuse(f"agent on {news.link.host}: {error}", RefusedAt.NEWS)

    def starve(self, reason: str) -> None:
        """End the talk: it costs too much."""
        host = f"agent on {self._news.link.host}: " if self._news is not None else ""
        self._refuse(host + reason, RefusedAt.MEMORY)

    def unblocked(self) -> None:
        """Send what waits in the box."""
        if self._news is None:
            return
        outbox = self._news.link.outbox
        while outbox and not self._line.blocked:
            self._line.send(wire.encode(outbox.popleft()))

    def ended(self) -> None:
        """Note that no more will come."""
        self._stop_waiting()
        if self._ends is not None:
            self._ends.cancel()
        if self._news is not None:
            self._news.link.wake = nobody  # a job remembers its links for longer than their lines are there
            self._door.left(self._news.link)

    def look(self) -> None:
        """Ask for a sign of life where there was none, and give the connection up where there was no answer."""
        if self._line.heard:
            self._line.heard = self._pinged = False
        elif self._pinged:
            self._line.abort()
        else:
            self._pinged = True
            self._line.ping()

    def _take_hello(self, data: bytes) -> None:
        try:
            assert isinstance(self._caller, Caller)  # others were not listened to
            link = self._door.welcome(data, self._caller)
        except WireError as error:
            self._refuse(str(error), RefusedAt.HELLO)
            return
        if self._ends is not None:
            self._ends.cancel()
        link.wake = self._wake
        self._line.admit()
        self._news = _News(link=link, watch=self._door.watch)
        self._door.entered(link, self)
        self._ends = _refuse_at_the_end(self._caller, link)
        link.send(wire.Welcome(server="ncclwatch", version=VERSION))

    def _wake(self) -> None:
        self.unblocked()
        assert self._news is not None
        if self._news.link.closing:
            # Later: whoever sends may be in the middle of the tables that this changes.
            asyncio.get_running_loop().call_soon(self._let_go, self._news.link)

    def _let_go(self, link: Link) -> None:
        """Close a connection that the server itself wants to end, with its last words."""
        at = RefusedAt.NEWS if link.refusal else RefusedAt.READING
        self._refuse(link.refusal or f"the agent on {link.host} does not read", at)

    def _refuse(self, reason: str, at: RefusedAt) -> None:
        if not self._line.talks:
            return  # it was refused, or broke, meanwhile
        self._door.watch.counters.count_refused(at)
        log.warning("refused an agent: %s", reason)
        self._line.dismiss(wire.encode(wire.Refused(reason=reason)), _POLICY_VIOLATION)


class Door:
    """Lets agents in, and hands their news to the watch."""

    def __init__(
        self,
        watch: Watch,
        access: Access,
        hosts: frozenset[str] | None = None,
        trusted: tuple[Network, ...] = (),
    ) -> None:
        self.watch = watch
        self._access = access
        self._trusted = trusted  # proxies that are believed
        self.agents_max, self.limit_words = limits.AGENTS_MAX, "its own limit"  # fewer where descriptors are
        self._hosts = hosts  # names to which the server answers: see `boundary`
        self._numbers = 0
        self._sessions: dict[int, _Session] = {}
        self.desk = Desk(1, "ncclwatch-views")
        self._looking: asyncio.TimerHandle | None = None
        self.budget = LineBudget()
        watch.counters.lines_kept = lambda: self.budget.kept

    def problem(self, path: str, headers: Headers) -> tuple[int, str]:
        """Return the HTTP status and the sentence of a refusal, (0, "") if there is none."""
        if path != wire.AGENT_PATH:
            return 404, f"there is no WebSocket at {path[:100]!r}; agents connect to {wire.AGENT_PATH}"
        return problem(headers, self._hosts, changes=True)

    def meet(self, line: AgentLine, headers: Headers) -> _Session:
        """Return who talks on a line that is about to open."""
        request = HTTPConnection({"type": "websocket", "headers": headers.raw})
        address = origin(line.peer, headers.get("x-forwarded-for", ""), self._trusted)
        word = shown(request, self._access.sessions)
        caller, wait_s = self._access.judge_from(address, word, Scope.AGENT)
        return _Session(self, line, caller, _Wait(guesses=self._access.guesses, address=address, seconds=wait_s))

    def welcome(self, data: bytes, caller: Caller) -> Link:
        """Hear a hello. Raises `WireError` if this is no agent of ours."""
        if len(self._sessions) >= self.agents_max:
            raise WireError(
                f"this server already hears {len(self._sessions)} agents, as many as it may ({self.limit_words}); "
                "start another one"
            )
        hello = wire.decode_from_agent(data)
        if not isinstance(hello, wire.Hello):
            raise WireError("the first message of an agent must be its hello")
        if hello.protocol != config.PROTOCOL:
            raise WireError(
                f"the agent on {hello.host} speaks protocol {hello.protocol}, this server {config.PROTOCOL}; "
                "install the same version of ncclwatch on the nodes and on the server"
            )
        if not hello.agent:
            raise WireError(f"the agent on {hello.host} does not say which one it is")
        if not caller.bounds.allow_host(hello.host):
            raise WireError(
                f"the token of {caller.name} is bound to {caller.bounds}, and the agent says that it is on "
                f"{hello.host!r}; give this host another token"
            )
        self._numbers += 1
        ahead_s = hello.wall_s - time.time() if hello.wall_s else None
        return Link(
            number=self._numbers, agent=hello.agent, host=hello.host, version=hello.version, ahead_s=ahead_s,
            caller=caller,
        )  # fmt: skip

    def entered(self, link: Link, session: _Session) -> None:
        """Note an agent that was let in."""
        self._sessions[link.number] = session
        self.watch.agents = len(self._sessions)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(limits.PING_S, self._look)

    def left(self, link: Link) -> None:
        """Note that it has gone."""
        del self._sessions[link.number]
        self.watch.agents = len(self._sessions)
        self.watch.lost(link)

    def close(self) -> None:
        """Let the thread go."""
        self.desk.close()

    def _look(self) -> None:
        """Look after all lines: one timer for each would cost as much as what is said on them."""
        for session in list(self._sessions.values()):
            session.look()
        loop = asyncio.get_running_loop()
        self._looking = loop.call_later(limits.PING_S, self._look) if self._sessions else None


def _refuse_at_the_end(caller: Caller, link: Link) -> asyncio.TimerHandle | None:
    """Let an agent go when its token ends: a connection may last for months."""
    if caller.until is None:
        return None
    left_s = max(0.0, caller.until - time.time())
    return asyncio.get_running_loop().call_later(left_s, link.refuse, f"the token of {caller.name} has ended")
