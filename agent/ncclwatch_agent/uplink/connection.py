"""Brings news to one server and its commands back: one WebSocket, dialled from here, for ever again.

State on the server is soft: every new connection begins with a full picture. What is sent while
there is no connection is therefore dropped, except the last views of ranks that ended.
"""

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus, InvalidURI
from websockets.http11 import Response

from ncclwatch.contract import config, wire
from ncclwatch.contract.errors import ConfigError, NcclwatchError, WireError
from ncclwatch.contract.network import tls
from ncclwatch.contract.network.direct_websocket import DirectWebSocket
from ncclwatch.contract.network.peer_uid import NotOurs
from ncclwatch.contract.network.pinned_tls import trusting
from ncclwatch.contract.words.printable import one_line
from ncclwatch_agent.deadline import within
from ncclwatch_agent.log import log
from ncclwatch_agent.uplink.addresses import Addresses
from ncclwatch_agent.uplink.invitation import Invitation
from ncclwatch_agent.uplink.local_server import Answer
from ncclwatch_agent.uplink.long_messages import in_parts, with_short_views
from ncclwatch_agent.uplink.proof import HOW_TO_SHARE, Elsewhere, connect_to_ours
from ncclwatch_agent.uplink.refusals import Refusals
from ncclwatch_agent.uplink.spool import Spool, SpooledViews

OPEN_S_MAX = 3.0
PING_S, PONG_S = 5.0, 10.0
SHARED_PING_S, SHARED_PONG_S = 2.0, 5.0  # of a server that another one replaces soon
BACKOFF_S = (0.2, 5.0)  # first, most
STRANGER_BACKOFF_S = 30.0
LEADER_CHARS_MAX = 300
UNNAMED_ROUNDS = 10  # in vain, after which a leader that nobody has named is told of
NEXT_S = 0.1  # before the next of several servers is dialled
ROUND_S_MAX = 2.0  # after all of them: one takes over within seconds
TOLD_MAX = 32  # reasons in the log until a connection is made: a server with several addresses fails in several ways
OUTBOX_MAX = 1024  # messages that wait for a slow server; then the connection starts over

News = wire.AgentMessage | bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why there is no connection."""

    answer: Answer
    sentence: str
    leader: str = ""  # the server to dial instead


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """What an uplink asks of the agent."""

    picture: Callable[[], Iterable[News]]  # announcements and digests of this server's jobs
    command: Callable[[wire.Command], None]
    failed: Callable[[Failure], None]
    job_refused: Callable[[wire.JobRefused], None] = lambda _: None  # the first time with this reason
    successor: Callable[[wire.Successor], None] = lambda _: None


def websocket_url(url: str) -> str:
    """Return the address of the agents' WebSocket of a server: ws://host:port/ws/agent."""
    base = url if "://" in url else f"http://{url}"
    scheme, _, rest = base.partition("://")
    secure = scheme in ("https", "wss")
    return f"{'wss' if secure else 'ws'}://{rest.rstrip('/')}{wire.AGENT_PATH}"


def backoff_s(failures: int, answer: Answer, chance: float) -> float:
    """Return how long to wait after so many failures in a row; `chance` in 0..1 spreads many agents."""
    if answer is not Answer.NOBODY:
        return STRANGER_BACKOFF_S * (0.75 + 0.5 * chance)
    first, most = BACKOFF_S
    return min(most, first * 1.7 ** min(failures - 1, 20)) * (0.75 + 0.5 * chance)


def explain(url: str, error: Exception) -> Failure:
    """Return what a failed attempt says about the server, and what to do."""
    if isinstance(error, InvalidStatus):
        return _explain_answer(url, error.response)
    if isinstance(error, ConfigError) or (distrusted := tls.distrust_words(url, error)):
        # Another server in its place would be no better: somebody has to look at it.
        sentence = str(error) if isinstance(error, ConfigError) else distrusted
        return Failure(answer=Answer.REFUSAL, sentence=f"{sentence}. Training goes on unwatched")
    if isinstance(error, NotOurs):
        sentence = (
            f"{error}, so that it was told nothing; name the right one in {config.ENV_SERVER}, and put its token into "
            f"{config.ENV_TOKEN}"
        )
        return Failure(answer=Answer.FOREIGN, sentence=sentence)
    if isinstance(error, NotInvited):
        sentence = (
            "this job runs on several nodes, and the address of the server that the agent beside rank 0 starts for it "
            f"has not come through the job's store yet. If it never does, {HOW_TO_SHARE}"
        )
        return Failure(answer=Answer.NOBODY, sentence=sentence)
    if isinstance(error, Elsewhere):
        return Failure(answer=Answer.REFUSAL, sentence=f"{error}. Training goes on unwatched")
    if isinstance(error, InvalidURI):
        sentence = f"{url} is no address of a server; set {config.ENV_SERVER} to http://HOST:{config.DEFAULT_PORT}"
        return Failure(answer=Answer.REFUSAL, sentence=sentence)
    if isinstance(error, InvalidHandshake | WireError):
        return Failure(answer=Answer.STRANGER, sentence=_stranger(url, str(error)[:200]))
    what = "it does not answer in time" if isinstance(error, TimeoutError | asyncio.TimeoutError) else str(error)
    sentence = (
        f"no server at {url} ({what[:200]}); start ncclwatch-server there, or name another in {config.ENV_SERVER}. "
        "Training goes on, and this is tried again"
    )
    return Failure(answer=Answer.NOBODY, sentence=sentence)


def _explain_answer(url: str, response: Response) -> Failure:
    """Return what an HTTP answer says about the server, where a WebSocket was asked for."""
    status = response.status_code
    if status == 403 and config.FOREIGN_HEADER in response.headers:
        said = one_line((response.body or b"").decode(errors="replace"))[:500]
        return Failure(answer=Answer.FOREIGN, sentence=f"{url} refused this agent: {said}")
    if status in (401, 403):
        sentence = (
            f"{url} wants a token: set {config.ENV_TOKEN} or {config.ENV_TOKEN_FILE} in the job's environment, "
            f"or name another server in {config.ENV_SERVER}"
        )
        return Failure(answer=Answer.REFUSAL, sentence=sentence)
    if config.LEADER_HEADER in response.headers:
        leader = one_line(response.headers[config.LEADER_HEADER])[:LEADER_CHARS_MAX].rstrip("/")
        return Failure(answer=Answer.NOBODY, sentence=f"{url} follows the server at {leader}", leader=leader)
    if status >= 500:
        return Failure(answer=Answer.NOBODY, sentence=f"{url} answers HTTP {status}; trying again")
    where = "it names another address, to which nothing is sent: " if 300 <= status < 400 else ""
    return Failure(answer=Answer.STRANGER, sentence=_stranger(url, f"{where}HTTP {status} on {wire.AGENT_PATH}"))


def _hung_up(error: Exception) -> bool:
    """Whether nothing came at all: a proxy does so whose server is away, and a server that is full or being ended."""
    return isinstance(error, InvalidMessage) and isinstance(error.__cause__, EOFError)


def _stranger(url: str, what: str) -> str:
    return (
        f"{url} is not an ncclwatch server ({what}); name the right one in {config.ENV_SERVER}. "
        "Training goes on unwatched"
    )


class NotInvited(NcclwatchError):
    """The address of a job's own server has not come through its store yet."""


class _Connection(ClientConnection):
    """One that knows when it was heard last: a server that is lost is missed by its pongs only some seconds later."""

    heard_at = 0.0  # monotonic

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        self.heard_at = time.monotonic()
        super().data_received(data)


class _Refusal(Exception):
    """The server said that it does not take this agent's news."""


class Uplink:
    """The way to one server. `run` is its life; everything else may be called at any time and never waits.

    How its address came about (`config.NAMED` and so on) is fixed with it: jobs that say the same address otherwise
    have another uplink, and what is named stays so when its jobs are gone.
    """

    def __init__(self, url: str, hello: wire.Hello, token: str, naming: str) -> None:
        self.name = url  # as jobs call it
        self.naming = naming
        self.addresses = Addresses(url if naming == config.NAMED else "")
        self.url = self.addresses.current or url  # where it is, which a server of our own may change
        self.reached = False  # a server has welcomed us at least once
        self.spool = Spool()
        self.failures = 0
        self.heard_at = 0.0  # monotonic, when the newest connection that broke was heard last
        self.connections = 0  # made so far; an answer to a command of an earlier one is no use to anybody
        self._hello = hello
        self._token = token if naming == config.NAMED else ""  # no other server is shown one
        self._failing_since = 0.0
        self._socket: ClientConnection | None = None
        self._outbox: deque[News] = deque()
        self._digests: dict[int, bytes] = {}
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._retry = asyncio.Event()
        self._told: set[str] = set()  # sentences on why there is no connection, since the last one
        self._invitation: Invitation | None = None
        self.refusals = Refusals()

    @property
    def connected(self) -> bool:
        """Whether a server listens now."""
        return self._socket is not None

    def send(self, message: wire.AgentMessage) -> None:
        """Send a message, if there is a connection and the job is not refused. A server that does not read loses it."""
        if isinstance(message, wire.Announce):
            self.refusals.lift(message.index)
        refused = not isinstance(message, wire.Hello) and self.refusals.holds(message.index)
        if self._socket is None or refused:
            return
        if len(self._outbox) >= OUTBOX_MAX:
            self._socket.transport.abort()
            return
        self._outbox.append(message)
        self._wake()

    def send_digest(self, index: int, digest: bytes) -> None:
        """Send the newest digest of a job; one that still waits is replaced."""
        if self._socket is not None and not self.refusals.holds(index):
            self._digests[index] = digest
            self._wake()

    def keep(self, entry: SpooledViews) -> None:
        """Send the last views of ranks, now or as soon as there is a server."""
        if not self.refusals.holds(entry.index):
            self.spool.put(entry)
            self._wake()

    def gone(self, index: int) -> None:
        """Say that a job has ended, and forget it."""
        self._digests.pop(index, None)
        self.send(wire.Gone(index=index))
        self.spool.forget(index)
        self.refusals.forget(index)

    def redirect(self, url: str) -> None:
        """Dial another address from now on, at once. Never done to a server that somebody named."""
        assert self.naming == config.UNNAMED
        url = config.without_credentials(url)
        if url != self.url:
            log.info("using the server at %s instead of %s", url, self.url)
        self.url = url
        self.failures = 0
        self._retry.set()

    def invite(self, invitation: Invitation) -> None:
        """Dial the server that was started for this job, from now on, at once."""
        assert self.naming == config.SHARED
        if invitation != self._invitation:
            self._invitation, self._token = invitation, invitation.token
            self.failures, self._failing_since = 0, 0.0
            self._retry.set()
            if self._socket is not None:  # of another server
                self._socket.transport.abort()

    async def flush(self, wait_s: float) -> None:
        """Wait until everything is sent, at most so long."""
        if self._socket is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await within(wait_s, self._idle.wait())

    def failing_s(self) -> float:
        """Return for how long no server was reached; 0 while one listens."""
        return time.monotonic() - self._failing_since if self._failing_since else 0.0

    async def run(self, callbacks: Callbacks) -> None:
        """Connect, talk, and connect again, until cancelled."""
        while True:
            failure = await self._attempt(callbacks)
            self.failures += 1
            self._failing_since = self._failing_since or time.monotonic()
            if failure.sentence not in self._told and len(self._told) < TOLD_MAX:
                self._told.add(failure.sentence)
                (log.info if failure.leader else log.warning)("%s", failure.sentence)
            self._retry.clear()
            callbacks.failed(failure)
            delay = self._delay_s(failure)
            with contextlib.suppress(asyncio.TimeoutError):
                await within(delay, self._retry.wait())

    def _delay_s(self, failure: Failure) -> float:
        """Choose the server to dial next. Returns how long to wait before."""
        if not self.addresses.named or not (self.addresses.elected or failure.leader):
            return backoff_s(self.failures, failure.answer, random.random())
        again = self.addresses.next(failure.leader)
        self.url = self.addresses.current
        if not again:
            return NEXT_S
        if failure.leader not in ("", *self.addresses.named) and self.addresses.rounds == UNNAMED_ROUNDS:
            advice = f"name it as well: {config.ENV_SERVER}={self.name},{failure.leader}"
            log.warning("%s, which nobody has named, so that no token is shown to it; %s", failure.sentence, advice)
        delay = backoff_s(self.addresses.rounds, failure.answer, random.random())
        return min(delay, ROUND_S_MAX) if failure.answer is Answer.NOBODY else delay

    async def _attempt(self, callbacks: Callbacks) -> Failure:
        before = self.connections
        try:
            async with await self._dial() as socket:
                await self._welcome(socket)
                await self._talk(socket, callbacks)
        except _Refusal as error:
            sentence = f"{self.url} refused this agent: {error}"
            if self.naming not in (config.NAMED, config.SHARED):
                sentence += f" (no token was shown to it, for {config.ENV_SERVER} does not name it)"
            return Failure(answer=Answer.REFUSAL, sentence=sentence)
        except ConnectionClosed as error:
            if self.connections == before:
                return explain(self.url, OSError(f"the connection was closed: {error}"))
            return Failure(answer=Answer.NOBODY, sentence=f"lost the server at {self.url}; connecting again")
        except (OSError, asyncio.TimeoutError, InvalidHandshake, InvalidURI, NcclwatchError) as error:
            if _hung_up(error) and (self.reached or self.naming == config.NAMED):
                why = "" if self.reached else ": it has too many connections, is about to start, or is another program"
                return Failure(
                    answer=Answer.NOBODY, sentence=f"{self.url} hung up before it answered{why}; trying again"
                )
            return explain(self.url, error)
        except ValueError as error:  # of a port or a name in the address that is none; UnicodeError is one
            return explain(self.url, InvalidURI(self.url, str(error)))
        return Failure(answer=Answer.NOBODY, sentence=f"the server at {self.url} hung up; connecting again")

    async def _dial(self) -> DirectWebSocket:
        """Return the connection to make: on a socket that was proven, unless somebody named the server."""
        sock, trust = None, tls.trust() if tls.is_secure(self.url) else None
        shared = self.naming == config.SHARED
        soon = shared or self.addresses.elected
        if shared:
            if self._invitation is None:
                raise NotInvited
            self.url = self._invitation.url(self.failures)
            trust = trusting(self._invitation.certificate)
        elif self.naming != config.NAMED:
            sock = await connect_to_ours(self.url, OPEN_S_MAX)
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        return DirectWebSocket(
            websocket_url(self.url), ssl=trust, compression=None,
            open_timeout=OPEN_S_MAX, additional_headers=headers,
            proxy=None, ping_interval=SHARED_PING_S if soon else PING_S,
            ping_timeout=SHARED_PONG_S if soon else PONG_S, close_timeout=1.0,
            max_size=config.MESSAGE_BYTES_MAX, create_connection=_Connection, sock=sock,
            user_agent_header=f"ncclwatch-agent/{self._hello.version}",
        )  # fmt: skip

    async def _welcome(self, socket: ClientConnection) -> None:
        await socket.send(wire.encode(msgspec.structs.replace(self._hello, wall_s=time.time())).decode())
        answer = wire.decode_from_server(await within(OPEN_S_MAX, socket.recv()))
        if isinstance(answer, wire.Refused):
            raise _Refusal(answer.reason)
        if not isinstance(answer, wire.Welcome):
            raise WireError("its first message is no welcome")
        if not self.reached or self._told:
            log.info("connected to %s (%s %s)", self.url, answer.server, answer.version)
        self.reached, self.failures, self._failing_since = True, 0, 0.0
        self.addresses.reached()
        self._told.clear()

    async def _talk(self, socket: ClientConnection, callbacks: Callbacks) -> None:
        self._socket = socket
        self.connections += 1
        self._outbox.clear()
        self._digests.clear()
        self.spool.start_over()
        self.refusals.start_over()
        self._outbox.extend(callbacks.picture())
        self._wake()
        sending = asyncio.create_task(self._send_all(socket))
        listening = asyncio.create_task(self._listen(socket, callbacks))
        try:
            await asyncio.wait({sending, listening}, return_when=asyncio.FIRST_COMPLETED)
            for task in (listening, sending):
                if task.done():
                    task.result()
        finally:
            self._socket = None
            if isinstance(socket, _Connection):
                self.heard_at = socket.heard_at
            for task in (sending, listening):
                task.cancel()
            await asyncio.gather(sending, listening, return_exceptions=True)

    async def _listen(self, socket: ClientConnection, callbacks: Callbacks) -> None:
        async for data in socket:
            message = wire.decode_from_server(data)
            if isinstance(message, wire.Refused):
                raise _Refusal(message.reason)
            if isinstance(message, wire.Command):
                callbacks.command(message)
            if isinstance(message, wire.Successor):
                callbacks.successor(message)
            if isinstance(message, wire.JobRefused):
                self._digests.pop(message.index, None)
                self.spool.forget(message.index)
                if self.refusals.note(message.index, message.reason, time.monotonic()):
                    callbacks.job_refused(message)

    async def _send_all(self, socket: ClientConnection) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._outbox:
                await _send(socket, self._outbox.popleft())
            for entry in self.spool.unsent():
                await _send(socket, entry.message(time.monotonic_ns()))
                entry.sent = True
                entry.delivered_at = entry.delivered_at or time.monotonic()
            while self._digests:
                _, digest = self._digests.popitem()
                await socket.send(digest)
            if not self._news.is_set():
                self._idle.set()

    def _wake(self) -> None:
        self._idle.clear()
        self._news.set()


async def _send(socket: ClientConnection, news: News) -> None:
    """Send one message: words as text, digests as bytes, and views in parts that a server takes."""
    if isinstance(news, bytes):
        await socket.send(news)
        return
    data = wire.encode(news)
    if isinstance(news, wire.Views) and len(data) > config.VIEW_BYTES_MAX:
        data = wire.encode(news := with_short_views(news))
    limit = wire.bytes_max(wire.kind_of(data))
    if len(data) <= limit:
        await socket.send(data.decode())
        return
    shorter = in_parts(news)
    for part in shorter:
        await _send(socket, part)
    if not shorter:
        log.warning("a message of %d bytes was not sent; the limit is %d", len(data), limit)
