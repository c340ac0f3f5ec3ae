"""The way to a server, tried against real ones: right, wrong, refusing, restarted, slow, and none."""

import asyncio
import contextlib
import http
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import msgspec
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from ncclwatch.contract import config, digests, wire
from ncclwatch.contract.model.rank import ProcessState, ProcessView, RankView
from ncclwatch_agent.uplink import connection as uplinks
from ncclwatch_agent.uplink.connection import Callbacks, Failure, News, Uplink
from ncclwatch_agent.uplink.local_server import Answer
from ncclwatch_agent.uplink.spool import SpooledViews
from tests.integration.agent_stub import Stub, url_of
from tests.ports import free_port

pytestmark = pytest.mark.integration

HELLO = wire.Hello(protocol=config.PROTOCOL, agent="a1", host="node1", version="1.2")
ANNOUNCE = wire.Announce(
    index=1, job="j", instance="i", attempt=0, world_size=2, ranks=(0, 1), terminal=True
)  # fmt: skip
DIGEST = digests.pack_digest(1, [], [])
Behaviour = Callable[[ServerConnection], Awaitable[None]]


def is_hello(message: object) -> bool:
    """Whether this is our hello, which says what time it is on this host now, on each connection anew."""
    if not isinstance(message, wire.Hello) or abs(message.wall_s - time.time()) > 60:
        return False
    return msgspec.structs.replace(message, wall_s=0.0) == HELLO


class Listener:
    """What an agent would be told."""

    def __init__(self) -> None:
        self.commands: asyncio.Queue[wire.Command] = asyncio.Queue()
        self.failures: asyncio.Queue[Failure] = asyncio.Queue()

    def picture(self) -> Iterable[News]:
        """Return the full picture."""
        return [ANNOUNCE, DIGEST]

    def callbacks(self) -> Callbacks:
        """Return what an uplink wants."""
        return Callbacks(
            picture=self.picture, command=self.commands.put_nowait, failed=self.failures.put_nowait
        )  # fmt: skip

    async def failure(self) -> Failure:
        """Return the next failure."""
        return await asyncio.wait_for(self.failures.get(), 10)


@contextlib.asynccontextmanager
async def running(url: str, token: str = "", naming: str = config.NAMED) -> AsyncIterator[tuple[Uplink, Listener]]:
    """Run an uplink."""
    uplink, listener = Uplink(url, HELLO, token, naming), Listener()
    task = asyncio.create_task(uplink.run(listener.callbacks()))
    try:
        yield uplink, listener
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def last_view(rank: int) -> SpooledViews:
    """Return the last view of a rank."""
    view = RankView(
        rank=rank, local_rank=0, host="h", pid=1, device="", world_size=2, local_world_size=2, attempt=0,
        process=ProcessView(state=ProcessState.GONE), pulse_age_s=0.0, initialised=True,
    )  # fmt: skip
    return SpooledViews(1, (view,), time.monotonic_ns())


def test_a_connection_begins_with_a_hello_and_a_full_picture_and_carries_commands_back() -> None:
    async def scenario() -> None:
        stub = Stub()
        async with serve(stub.welcome, "127.0.0.1", 0) as server, running(url_of(server), "secret") as (uplink, agent):
            assert is_hello(await stub.next())
            assert await stub.next() == ANNOUNCE
            assert await stub.next() == DIGEST
            assert stub.requests[0].path == "/ws/agent"
            assert stub.requests[0].headers["Authorization"] == "Bearer secret"
            assert "Sec-WebSocket-Extensions" not in stub.requests[0].headers
            command = wire.Command(id=7, kind=wire.CommandKind.INSPECT, index=1, ranks=(0,))
            await stub.sockets[0].send(wire.encode(command).decode())
            assert await asyncio.wait_for(agent.commands.get(), 10) == command
            uplink.send(wire.Views(index=1, ranks=(), reply_to=7))
            assert await stub.next() == wire.Views(index=1, ranks=(), reply_to=7)
            uplink.gone(1)
            assert await stub.next() == wire.Gone(index=1)
            assert (uplink.connected, uplink.reached, uplink.failing_s()) == (True, True, 0.0)

    asyncio.run(scenario())


def test_of_digests_that_wait_only_the_newest_is_sent() -> None:
    async def scenario() -> None:
        stub = Stub()
        async with serve(stub.welcome, "127.0.0.1", 0) as server, running(url_of(server)) as (uplink, _):
            for _ in range(3):
                await stub.next()
            uplink.send_digest(1, b"old")
            uplink.send_digest(1, b"new")
            assert await stub.next() == b"new"
            assert stub.heard.empty()

    asyncio.run(scenario())


def test_after_a_restart_of_the_server_the_picture_is_sent_again_with_the_ranks_that_ended() -> None:
    async def scenario() -> None:
        stub = Stub()
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        async with running(url) as (uplink, agent):
            uplink.keep(last_view(0))
            first = await agent.failure()
            assert first.answer is Answer.NOBODY and "start ncclwatch-server there" in first.sentence
            assert uplink.spool.undelivered(1)
            async with serve(stub.welcome, "127.0.0.1", port):
                assert is_hello(await stub.next())
                assert await stub.next() == ANNOUNCE
                await stub.next()
                ended = await stub.next()
                assert isinstance(ended, wire.Views) and ended.ranks[0].rank == 0
                assert not uplink.spool.undelivered(1)
            await asyncio.wait_for(_matching(agent, "hung up"), 10)
            uplink.keep(last_view(1))
            async with serve(stub.welcome, "127.0.0.1", port):
                assert is_hello(await stub.next())
                messages = [await stub.next() for _ in range(4)]
                assert messages[0] == ANNOUNCE
                found = [message.ranks[0].rank for message in messages if isinstance(message, wire.Views)]
                assert found == [0, 1]

    asyncio.run(scenario())


async def _matching(agent: Listener, word: str) -> Failure:
    while True:
        failure = await agent.failures.get()
        if word in failure.sentence:
            return failure


async def _refuse(connection: ServerConnection) -> None:
    await connection.recv()
    await connection.send(wire.encode(wire.Refused(reason="speak protocol 9")).decode())
    await connection.wait_closed()


async def _talk_nonsense(connection: ServerConnection) -> None:
    await connection.recv()
    await connection.send("hello there")
    await connection.wait_closed()


async def _say_nothing(connection: ServerConnection) -> None:
    await connection.wait_closed()


async def _send_bytes(connection: ServerConnection) -> None:
    await connection.recv()
    await connection.send(b"\x00" * 100)
    await connection.wait_closed()


WRONG: list[tuple[Behaviour, Answer, str]] = [
    (_refuse, Answer.REFUSAL, "refused this agent: speak protocol 9"),
    (_talk_nonsense, Answer.STRANGER, "is not an ncclwatch server"),
    (_send_bytes, Answer.STRANGER, "is not an ncclwatch server"),
    (_say_nothing, Answer.NOBODY, "does not answer in time"),
]


@pytest.mark.parametrize(("behaviour", "answer", "words"), WRONG)
def test_a_server_that_will_not_do_is_told_of_in_a_sentence(
    behaviour: Behaviour, answer: Answer, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uplinks, "OPEN_S_MAX", 0.5)

    async def scenario() -> None:
        async with serve(behaviour, "127.0.0.1", 0) as server, running(url_of(server)) as (uplink, agent):
            failure = await agent.failure()
            assert failure.answer is answer
            assert words in failure.sentence
            assert not uplink.reached

    asyncio.run(scenario())


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


def test_a_named_server_that_has_no_room_yet_is_no_stranger() -> None:
    """Agents of thousands of nodes come at one moment where another server takes over."""

    async def scenario() -> None:
        port = free_port()
        async with (
            await asyncio.start_server(hang_up, "127.0.0.1", port),
            running(f"http://127.0.0.1:{port}") as (uplink, agent),
        ):
            failure = await agent.failure()
            assert failure.answer is Answer.NOBODY
            assert "hung up before it answered: it has too many connections" in failure.sentence
            assert not uplink.reached

    asyncio.run(scenario())


def test_a_proxy_whose_server_is_away_is_no_stranger_where_there_was_one() -> None:
    async def scenario() -> None:
        stub, port = Stub(), free_port()
        async with running(f"http://127.0.0.1:{port}") as (_, agent):
            async with serve(stub.welcome, "127.0.0.1", port):
                assert is_hello(await stub.next())
                assert await stub.next() == ANNOUNCE
            async with await asyncio.start_server(hang_up, "127.0.0.1", port):
                failure = await asyncio.wait_for(_matching(agent, "hung up before it answered"), 10)
                assert failure.answer is Answer.NOBODY
            async with serve(stub.welcome, "127.0.0.1", port):
                while await stub.next() != ANNOUNCE:
                    pass

    asyncio.run(scenario())


@pytest.mark.parametrize("naming", [config.NAMED, config.UNNAMED])
@pytest.mark.parametrize("url", ["http://[::1", "http://[zz]:1", "http://127.0.0.1:-1", "http://[127.0.0.1:80]:8470"])
def test_what_is_no_address_is_told_of_in_a_sentence(url: str, naming: str) -> None:
    async def scenario() -> None:
        async with running(url, naming=naming) as (_, agent):
            failure = await agent.failure()
            assert failure.answer is Answer.REFUSAL
            assert f"{url} is no address of a server" in failure.sentence

    asyncio.run(scenario())


@pytest.mark.parametrize("url", ["http://h:99999", "http://h:84x0", "http://a..b", "http://\0"])
def test_a_mistyped_name_of_a_server_is_told_of_in_a_sentence(url: str) -> None:
    async def scenario() -> None:
        async with running(url) as (_, agent):
            assert "is no address of a server" in (await agent.failure()).sentence

    asyncio.run(scenario())


STATUSES = [(404, Answer.STRANGER), (200, Answer.STRANGER), (403, Answer.REFUSAL), (503, Answer.NOBODY)]


@pytest.mark.parametrize(("status", "answer"), STATUSES)
def test_a_web_page_is_no_server(status: int, answer: Answer) -> None:
    def answer_page(connection: ServerConnection, _: Request) -> Response:
        return connection.respond(http.HTTPStatus(status), "a page\n")

    async def scenario() -> None:
        async with (
            serve(_say_nothing, "127.0.0.1", 0, process_request=answer_page) as server,
            running(url_of(server)) as (_, agent),
        ):
            assert (await agent.failure()).answer is answer

    asyncio.run(scenario())


@pytest.mark.parametrize("naming", [config.NAMED, config.UNNAMED])
@pytest.mark.parametrize("status", [302, 307, 308])
def test_an_answer_that_names_another_address_sends_nothing_there(status: int, naming: str) -> None:
    async def scenario() -> None:
        stub = Stub()
        async with serve(stub.welcome, "127.0.0.1", 0) as other:

            def send_on(connection: ServerConnection, _: Request) -> Response:
                answer = connection.respond(http.HTTPStatus(status), "")
                answer.headers["Location"] = f"{url_of(other).replace('http', 'ws')}/ws/agent"
                return answer

            async with (
                serve(_say_nothing, "127.0.0.1", 0, process_request=send_on) as server,
                running(url_of(server), "secret", naming) as (_, agent),
            ):
                failure = await agent.failure()
                assert failure.answer is Answer.STRANGER
                assert "names another address, to which nothing is sent" in failure.sentence
                assert (stub.requests, stub.heard.empty()) == ([], True)

    asyncio.run(scenario())


def test_a_token_is_shown_to_no_server_that_nobody_named() -> None:
    async def scenario() -> None:
        stub = Stub()
        async with serve(stub.welcome, "127.0.0.1", 0) as server, running(url_of(server), "secret", config.UNNAMED):
            assert is_hello(await stub.next())
            assert "Authorization" not in stub.requests[0].headers

    asyncio.run(scenario())


def test_something_that_speaks_no_http_is_no_server() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        await writer.drain()
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, running(url) as (_, agent):
            failure = await agent.failure()
            assert failure.answer is Answer.STRANGER
            assert "is not an ncclwatch server" in failure.sentence

    asyncio.run(scenario())


def test_a_refusal_in_the_middle_is_believed_too() -> None:
    async def scenario() -> None:
        stub = Stub()
        async with serve(stub.welcome, "127.0.0.1", 0) as server, running(url_of(server)) as (_, agent):
            for _ in range(3):
                await stub.next()
            await stub.sockets[0].send(wire.encode(wire.Refused(reason="too many groups")).decode())
            failure = await agent.failure()
            assert failure.answer is Answer.REFUSAL and "too many groups" in failure.sentence

    asyncio.run(scenario())


def test_the_same_sentence_is_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("ncclwatch.agent")
    monkeypatch.setattr(logger, "propagate", True)

    async def scenario() -> None:
        async with running(f"http://127.0.0.1:{free_port()}") as (_, agent):
            for _ in range(4):
                await agent.failure()

    with caplog.at_level(logging.WARNING, "ncclwatch.agent"):
        asyncio.run(scenario())
    assert len([entry for entry in caplog.records if "no server at" in entry.getMessage()]) == 1


def test_another_address_is_dialled_at_once() -> None:
    async def scenario() -> None:
        stub = Stub()
        async with (
            serve(_refuse, "127.0.0.1", 0) as wrong,
            serve(stub.welcome, "127.0.0.1", 0) as right,
            running(url_of(wrong), naming=config.UNNAMED) as (uplink, agent),
        ):
            await agent.failure()  # now it would wait for half a minute
            uplink.redirect(url_of(right))
            assert is_hello(await stub.next())
            assert uplink.name == url_of(wrong)

    asyncio.run(scenario())


def test_a_server_that_does_not_read_loses_its_connection_and_not_our_memory() -> None:
    async def scenario() -> None:
        stub = Stub()
        async with serve(stub.welcome, "127.0.0.1", 0) as server, running(url_of(server)) as (uplink, agent):
            for _ in range(3):
                await stub.next()
            for _ in range(uplinks.OUTBOX_MAX + 1):
                uplink.send(wire.Gone(index=1))
            assert "lost the server" in (await agent.failure()).sentence
            assert is_hello(await asyncio.wait_for(_hello(stub), 10))

    asyncio.run(scenario())


async def _hello(stub: Stub) -> wire.AgentMessage | bytes:
    while True:
        message = await stub.next()
        if isinstance(message, wire.Hello):
            return message


def test_views_larger_than_a_message_are_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    one = wire.Views(index=1, ranks=last_view(0).ranks, reply_to=3)
    monkeypatch.setitem(config.KIND_BYTES_MAX, "views", len(wire.encode(one)) + 10)

    async def scenario() -> None:
        stub = Stub()
        async with serve(stub.welcome, "127.0.0.1", 0) as server, running(url_of(server)) as (uplink, _):
            for _ in range(3):
                await stub.next()
            uplink.send(wire.Views(index=1, ranks=one.ranks * 3, reply_to=3))
            assert [await stub.next() for _ in range(3)] == [one] * 3

    asyncio.run(scenario())


def test_what_is_left_is_sent_before_the_end() -> None:
    async def scenario() -> None:
        stub = Stub()
        async with serve(stub.welcome, "127.0.0.1", 0) as server:
            async with running(url_of(server)) as (uplink, _):
                for _ in range(3):
                    await stub.next()
                for _ in range(100):
                    uplink.send(ANNOUNCE)
                uplink.gone(1)
                await uplink.flush(5.0)
            assert [await stub.next() for _ in range(101)] == [*[ANNOUNCE] * 100, wire.Gone(index=1)]

    asyncio.run(scenario())
