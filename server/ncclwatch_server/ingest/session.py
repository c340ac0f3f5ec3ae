"""Talks with an agent on its line, from `Hello` to the last word, and lets agents in.

Whatever an agent sends, only its own connection can suffer from it.
"""

import asyncio
import functools
import logging
import time
from collections import Counter, deque
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from ncclwatch.contract import config, wire
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.network.tokens import UNBOUND
from ncclwatch.contract.version import VERSION
from ncclwatch_server import limits
from ncclwatch_server.evidence.agent_link import Link, nobody
from ncclwatch_server.ingest.agent_news import AgentNews
from ncclwatch_server.ingest.host_names import HostNames
from ncclwatch_server.ingest.line_budget import LineBudget
from ncclwatch_server.ingest.turns import Turns
from ncclwatch_server.ingest.websocket import AgentLine
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.runtime.sparing_log import SparingLog
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
UNREAD_MAX = 4  # messages with views of one agent that wait to be read; then nothing more is taken from it


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

    __slots__ = (
        "_address", "_caller", "_door", "_ends", "_later", "_left", "_line", "_news", "_pinged", "_refused", "_unread",
        "_wait",
    )  # fmt: skip

    def __init__(self, door: "Door", line: AgentLine, caller: Caller | Denial, wait: "_Wait") -> None:
        self._address = wait.address
        self._wait: _Wait | None = wait if wait.seconds else None  # where somebody guesses
        self._door = door
        self._line = line
        self._caller = caller
        self._news: AgentNews | None = None
        self._ends: asyncio.TimerHandle | None = None  # if there is no hello until then; later: if its token is no more
        self._pinged = False
        self._refused = False  # nothing counts that is read from now on
        self._left = False  # the line has ended, and all that came before is read
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

    def _take_now(self, news: AgentNews, data: bytes, *, text: bool) -> None:
        unread = None
        try:
            if text:
                unread = news.take_message(wire.open_from_agent(data), news.clock(), len(data))
            else:
                news.take_digest(data)
        except WireError as error:
            self._refuse(f"agent on {news.link.host}: {error}", RefusedAt.NEWS)
        if unread is not None:
            self._read(news, unread, len(data))

    def _put_off(self, news: AgentNews, late: "_Late") -> None:
        """Let a long message be read in a thread, and everything after it wait for that."""
        self._line.hold(len(late.data))
        if not self._line.talks:  # there was no memory for it
            self._line.hold(-len(late.data))
            return
        self._later.append(late)
        if len(self._later) == 1:
            self._line.pause()
            self._read_long(news, late)

    def _read_long(self, news: AgentNews, late: "_Late") -> None:
        reading = self._door.desk.begin(functools.partial(wire.read_long, late.data, news.world_sizes()))
        reading.add_done_callback(functools.partial(self._have_read_long, news))

    def _have_read_long(self, news: AgentNews, reading: "asyncio.Future[wire.AgentMessage]") -> None:
        late = self._later.popleft()
        self._line.hold(-len(late.data))
        if not reading.cancelled() and not self._refused:
            try:
                news.take_message(reading.result(), late.came_at, len(late.data))
            except WireError as error:
                self._refuse(f"agent on {news.link.host}: {error}", RefusedAt.NEWS)
        self._go_on(news)

    def _go_on(self, news: AgentNews) -> None:
        """Take what has waited for a long message, and give way to others where that takes long."""
        turns = self._door.turns
        began = turns.used()
        while self._later and not self._refused:
            took_s = turns.used() - began
            if took_s > limits.TURN_S:
                turns.pause(took_s, functools.partial(self._next_turn, news))
                return
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
        self._leave()

    def _next_turn(self, news: AgentNews) -> None:
        self._door.turns.over()
        self._go_on(news)

    def _read(self, news: AgentNews, unread: wire.UnreadViews, size: int) -> None:
        """Read views in a thread: a megabyte of them would keep the event loop from all others for 20 ms."""
        self._unread += 1
        if self._unread == UNREAD_MAX:
            self._line.pause()
        self._line.hold(size)
        job, now = news.jobs[unread.index], news.clock()
        reading = self._door.desk.begin(functools.partial(unread.read, job.world_size))
        reading.add_done_callback(functools.partial(self._have_read, news, job, now, size))

    def _have_read(
        self, news: AgentNews, job: Job, came_at: float, size: int, reading: "asyncio.Future[wire.Views]"
    ) -> None:
        self._unread -= 1
        self._line.hold(-size)
        if self._unread == UNREAD_MAX - 1 and not self._later:
            self._line.resume()
        if not reading.cancelled() and not self._refused:
            try:
                views = reading.result()
                if news.jobs.get(views.index) is job:  # else another job has its number by now
                    news.take_views(job, views, came_at)
            except WireError as error:
                self._refuse(f"agent on {news.link.host}: {error}", RefusedAt.NEWS)
        self._leave()

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
        self._leave()

    def _leave(self) -> None:
        """Let the agent go once its line has ended and all that it said before is read: often how its ranks ended."""
        reads = not self._refused and (self._unread or self._later)
        if self._news is not None and not (self._line.talks or reads or self._left):
            self._left = True
            self._door.left(self._news.link)

    def look(self) -> None:
        """Ask for a sign of life where there was none, and give the connection up where there was no answer."""
        if self._line.heard:
            self._line.heard = self._pinged = False
        elif self._pinged:
            self._line.give_up()
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
        link.wake, link.contact = self._wake, self._line.contact.now
        self._line.admit()
        door = self._door
        self._news = AgentNews(link=link, watch=door.watch, host_names=door.host_names, namespaces=door.namespaces)
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
        if self._refused:
            return
        self._refused = True
        if not self._line.talks:
            return  # it has ended meanwhile
        self._door.watch.counters.count_refused(at)
        self._door.refusals.warning("refused an agent: %s", reason)
        if self._news is not None:
            self._news.link.closing = True  # that it was closed shows nothing of the node
        self._door.watch.refusals.note(self._address if self._news is None else self._news.link.host, reason)
        self._line.dismiss(wire.encode(wire.Refused(reason=reason)), _POLICY_VIOLATION)


class Door:
    """Lets agents in, and hands their news to the watch."""

    def __init__(
        self,
        watch: Watch,
        access: Access,
        hosts: frozenset[str] | None = None,
        trusted: tuple[Network, ...] = (),
        remote: Access | None = None,
    ) -> None:
        self.watch = watch
        self._access = access
        self._trusted = trusted  # proxies that are believed
        self.agents_max, self.limit_words = limits.AGENTS_MAX, "its own limit"  # fewer where descriptors are
        self._hosts = hosts  # names to which the server answers: see `boundary`
        self._numbers = 0
        self._by_holder: Counter[str] = Counter()  # agents that are heard, by whose token they have
        bounds = (*access.bounds, *(remote.bounds if remote is not None else ()))
        self._for_one_job = remote is not None and len(bounds) == len(remote.bounds) == 1
        self.host_names = HostNames(bounds)
        self.namespaces = frozenset(each for _, bound in bounds for each in bound.namespaces)
        self._sessions: dict[int, _Session] = {}
        self.desk = Desk("ncclwatch-views", ends_s=limits.WATCH_ENDS_S, vital=True)  # no verdict without it
        self._looking: asyncio.TimerHandle | None = None
        self.budget = LineBudget()
        self.turns = Turns()
        self.refusals = SparingLog(log)
        watch.counters.lines_kept = lambda: self.budget.kept

    def problem(self, path: str, headers: Headers) -> tuple[int, str]:
        """Return the HTTP status and the sentence of a refusal, (0, "") if there is none."""
        if path != wire.AGENT_PATH:
            return 404, f"there is no WebSocket at {path[:100]!r}; agents connect to {wire.AGENT_PATH}"
        return problem(headers, self._hosts, changes=True)

    def meet(self, line: AgentLine, headers: Headers, access: Access | None = None) -> _Session:
        """Return who talks on a line that is about to open. `access` says who may, if it is not this door's own."""
        access = access or self._access
        request = HTTPConnection({"type": "websocket", "headers": headers.raw})
        address = origin(line.peer, headers.get("x-forwarded-for", ""), self._trusted)
        word = shown(request, access.sessions)
        found, wait_s = access.recognise(address, word, Scope.AGENT)
        caller = access.permit(found, Scope.AGENT)
        return _Session(self, line, caller, _Wait(guesses=access.guesses, address=address, seconds=wait_s))

    def welcome(self, data: bytes, caller: Caller) -> Link:
        """Hear a hello. Raises `WireError` if this is no agent of ours."""
        if len(self._sessions) >= self.agents_max:
            raise WireError(
                f"this server already hears {len(self._sessions)} agents, as many as it may ({self.limit_words}); "
                "start another one"
            )
        # A server that was started for one job has one token, and nobody whom that could crowd out.
        share = int(self.agents_max * (1 if self._for_one_job else limits.AGENTS_SHARE_MAX))
        if caller.bounds != UNBOUND and self._by_holder[caller.holder] >= share:
            raise WireError(
                f"this server already hears {share} agents with the token of {caller.name}, as many as one bound token "
                "may have; give other hosts another token"
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
            number=self._numbers, agent=f"{hello.agent} {caller.holder}", version=hello.version, caller=caller,
            host=self.host_names.shown(caller, hello.host, hello.machine), said_host=hello.host,
            machine=hello.machine, ahead_s=ahead_s,
        )  # fmt: skip

    def entered(self, link: Link, session: _Session) -> None:
        """Note an agent that was let in."""
        self._sessions[link.number] = session
        self._by_holder[link.caller.holder] += 1
        self.host_names.enter(link)
        self.watch.agents = len(self._sessions)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(limits.PING_S, self._look)

    def left(self, link: Link) -> None:
        """Note that it has gone."""
        del self._sessions[link.number]
        self._by_holder[link.caller.holder] -= 1
        self.host_names.leave(link)
        self.watch.agents = len(self._sessions)
        self.watch.lost(link)

    def close(self) -> None:
        """Let the thread go."""
        self.desk.close()

    def _look(self) -> None:
        """Look after all lines: one timer for each would cost as much as what is said on them."""
        for session in list(self._sessions.values()):
            try:
                session.look()
            except Exception:  # of one line, and all others are looked after as well
                log.exception("looking after the line of an agent failed")
        loop = asyncio.get_running_loop()
        self._looking = loop.call_later(limits.PING_S, self._look) if self._sessions else None


class RemoteEntrance:
    """The same door for agents of other nodes: under any name of this host, and by a token of its own."""

    def __init__(self, door: Door, access: Access) -> None:
        self._door = door
        self._access = access
        self.budget, self.turns = door.budget, door.turns

    def problem(self, path: str, headers: Headers) -> tuple[int, str]:
        """Return the HTTP status and the sentence of a refusal, (0, "") if there is none."""
        if path != wire.AGENT_PATH:
            return 404, f"here agents connect to {wire.AGENT_PATH}, and nothing else is served"
        return problem(headers, None, changes=True)

    def meet(self, line: AgentLine, headers: Headers) -> _Session:
        """Return who talks on a line that is about to open."""
        return self._door.meet(line, headers, self._access)


def _refuse_at_the_end(caller: Caller, link: Link) -> asyncio.TimerHandle | None:
    """Let an agent go when its token ends: a connection may last for months."""
    if caller.until is None:
        return None
    left_s = max(0.0, caller.until - time.time())
    return asyncio.get_running_loop().call_later(left_s, link.refuse, f"the token of {caller.name} has ended")
