"""Whatever comes in over the WebSocket, only its own connection suffers, and it is told why."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from ncclwatch.contract import config, digests, wire
from tests.integration.fake_agent import FakeAgent, hello, open_line, reply, until
from tests.integration.server_process import ServerProcess

pytestmark = pytest.mark.integration

RANK = (0, 0, 0, 1, 0, 0.1, 0.0, 1, 1, 1, *digests.NO_WAIT, *digests.NO_FACTS)
GROUP = (0, 0.0, 1, 1, 1, 0, 2)
ANNOUNCE = wire.Announce(index=0, job="victim", instance="i", attempt=0, world_size=2, ranks=(0, 1), terminal=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("hostile")) as process:
        yield process


def announced(server: ServerProcess, announce: wire.Announce = ANNOUNCE) -> ClientConnection:
    line = open_line(server.url)
    hello(line)
    assert isinstance(reply(line), wire.Welcome)
    line.send(wire.encode(announce).decode())
    return line


def refusal(line: ClientConnection) -> str:
    """Return why the server hung up; fail if it does not."""
    said = reply(line)
    assert isinstance(said, wire.Refused)
    with pytest.raises(ConnectionClosed):
        line.recv(timeout=10)
    return said.reason


HOSTILE: dict[str, tuple[bytes | str, str]] = {
    "empty binary": (b"", "shorter than its head"),
    "no digest": (b"\x00" * 64, "no digest"),
    "truncated": (digests.pack_digest(0, [RANK], [GROUP])[:-3], "truncated"),
    "too many announced rows": (digests.DIGEST_HEAD.pack(b"NWDG", config.PROTOCOL, 0, 0, 2**31, 2**31), "truncated"),
    "other protocol": (digests.DIGEST_HEAD.pack(b"NWDG", 9, 0, 0, 0, 0), "same version"),
    "unknown job": (digests.pack_digest(7, [RANK], []), "not announced"),
    "rank out of range": (digests.pack_digest(0, [(2, *RANK[1:])], []), "impossible ranks"),
    "negative rank": (digests.pack_digest(0, [(-1, *RANK[1:])], []), "impossible ranks"),
    "rank twice": (digests.pack_digest(0, [RANK, RANK], []), "impossible ranks"),
    "group of another rank": (digests.pack_digest(0, [RANK], [(1, *GROUP[1:])]), "impossible ranks"),
    "too many groups": (digests.pack_digest(0, [RANK], [GROUP] * 513), "too many groups"),
    "no json": ("{", "no message of protocol"),
    "deep json": ("[" * 60_000, "no message of protocol"),
    "deep json, long": ("[" * 100_000, "does not begin with its kind"),
    "deep json in a long message": (
        '{"type":"stacks","index":0,"dumps":[' + "[" * 100_000,
        "no message of protocol",
    ),
    "long message of a short kind": ('{"type":"gone","index":0' + " " * 100_000 + "}", "of kind gone has 100025 bytes"),
    "more ranks than any job has": (
        '{"type":"stacks","index":0,"dumps":[' + ",".join(['{"rank":0}'] * 9000) + "]}",
        "a list of 9000 in a long message",
    ),
    "unknown type": ('{"type":"root"}', "no message of protocol"),
    "lone surrogate": ('{"type":"gone","index":"\\ud800"}', "no message of protocol"),
    "second hello": (
        wire.encode(wire.Hello(protocol=1, agent="x", host="h", version="1")).decode(),
        "a second hello",
    ),
    "views of an unknown job": ('{"type":"views","index":3,"ranks":[]}', "not announced"),
    "loop of a strange rank": ('{"type":"loops","index":0,"ranks":[[9,"",1,1,1,true,true]]}', "outside of 0..1"),
    "setup of a strange rank": ('{"type":"facts","index":0,"alike":[[[9],[[],[]]]]}', "outside of 0..1"),
    "setup that is none": ('{"type":"facts","index":0,"alike":[[[0],[[7],[]]]]}', "no message of protocol"),
    "huge number": ('{"type":"gone","index":1' + "0" * 400 + "}", "not announced"),
    "number that no one can print": ('{"type":"gone","index":1' + "0" * 9000 + "}", "no message of protocol"),
}


REFUSED_JOBS: dict[str, tuple[str, str]] = {
    "huge job": (
        '{"type":"announce","index":1,"job":"x","instance":"","attempt":0,"world_size":2000000000,"ranks":[],'
        '"terminal":false}',
        "can be watched",
    ),
    "announced rank out of range": (
        '{"type":"announce","index":1,"job":"x","instance":"","attempt":0,"world_size":2,"ranks":[5],"terminal":false}',
        "no rank 5",
    ),
    "other world size, and a rank outside of it": (
        '{"type":"announce","index":1,"job":"victim","instance":"i","attempt":0,"world_size":3,"ranks":[5],'
        '"terminal":false}',
        "no rank 5",
    ),
    "impossible attempt": (
        '{"type":"announce","index":1,"job":"x","instance":"","attempt":9223372036854775808,"world_size":2,'
        '"ranks":[],"terminal":false}',
        "impossible rank or attempt",
    ),
    "job name with an escape": (
        '{"type":"announce","index":1,"job":"\\u001b[2J","instance":"","attempt":0,"world_size":2,'
        '"ranks":[],"terminal":false}',
        "not printable",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_message_ends_its_connection_with_a_sentence(server: ServerProcess, name: str) -> None:
    message, why = HOSTILE[name]
    with FakeAgent(server.url, job="bystander") as bystander:
        line = announced(server)
        line.send(message)
        assert why in refusal(line)
        before = bystander.progress
        until(lambda: bystander.progress > before + 1)
        assert not bystander.refused
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("name", REFUSED_JOBS)
def test_a_job_that_cannot_be_is_refused_alone_with_a_sentence(server: ServerProcess, name: str) -> None:
    message, why = REFUSED_JOBS[name]
    line = announced(server)
    line.send(message)
    said = reply(line)
    assert isinstance(said, wire.JobRefused)
    assert (said.index, why in said.reason) == (1, True)
    line.send(digests.pack_digest(1, [], []))  # on its way before the answer came
    line.send(digests.pack_digest(0, [RANK], [GROUP]))
    line.send(b"")
    assert "shorter than its head" in refusal(line)  # the first that ended it
    assert why in server.log.read_text()


def test_refused_connections_are_counted(server: ServerProcess) -> None:
    assert server.get("/readyz").status_code == 200
    line = announced(server)
    line.send(b"")
    refusal(line)
    until(lambda: 'ncclwatch_agents_refused_total{at="news"} 0.0' not in server.get("/metrics").text)


def test_an_agent_of_another_protocol_is_told_what_to_install(server: ServerProcess) -> None:
    line = open_line(server.url)
    hello(line, protocol=config.PROTOCOL + 1)
    said = f"protocol {config.PROTOCOL + 1}, this server {config.PROTOCOL}; install the same version"
    assert said in refusal(line)


def test_an_agent_that_does_not_introduce_itself_is_refused(server: ServerProcess) -> None:
    line = open_line(server.url)
    line.send(wire.encode(ANNOUNCE).decode())
    assert "must be its hello" in refusal(line)


def test_an_agent_that_says_nothing_is_let_go(server: ServerProcess) -> None:
    line = open_line(server.url)
    assert "no hello within 5 s" in refusal(line)


def test_a_message_beyond_the_limit_ends_the_connection(server: ServerProcess) -> None:
    line = announced(server)
    with pytest.raises(ConnectionClosed):
        line.send(b"x" * (17 * 1024 * 1024))
        line.recv(timeout=10)
    assert server.get("/healthz").status_code == 200


def test_agents_and_readers_need_the_token(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, token="sesame") as server:
        line = open_line(server.url)
        assert "NCCLWATCH_TOKEN" in refusal(line)
        line = open_line(server.url, token="sesam")
        assert "NCCLWATCH_TOKEN" in refusal(line)
        with FakeAgent(server.url, token="sesame") as agent:
            until(lambda: agent.progress > 1 and server.job())
        server._headers = {}
        for path in ("/api/v1/jobs", "/api/v1/incidents", "/api/v1/jobs/job/report", "/metrics"):
            assert server.get(path).status_code == 401
        assert server.get("/healthz").status_code == 200
