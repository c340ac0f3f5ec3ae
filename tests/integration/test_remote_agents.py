"""A server that an agent starts for one job: agents of other nodes need its certificate and its token."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from ssl import SSLCertVerificationError, SSLContext

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from ncclwatch.contract import config, wire
from ncclwatch.contract.network.pinned_tls import trusting
from ncclwatch_server.serving.certificate import make

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

TOKEN = "a-token-for-this-job-alone-0123456789"


@dataclass(frozen=True)
class Shared:
    """A server with an entrance for other nodes."""

    url: str
    remote: str
    certificate: str


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    """Run a server as an agent starts it."""
    read, write = os.pipe()
    environ = {k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "ncclwatch_server", "--port", "0", "--ephemeral", "--remote", "127.0.0.1",
         "--ready-fd", str(write), "--parent", str(os.getpid())],
        pass_fds=(write,), env=environ | {"NCCLWATCH_AGENT_TOKEN": f"{TOKEN} name=llm job=llm"},
    )  # fmt: skip
    os.close(write)
    try:
        with os.fdopen(read) as ready:
            port, other = int(ready.readline()), json.loads(ready.readline())
        yield Shared(f"http://127.0.0.1:{port}", f"127.0.0.1:{other['port']}", other["certificate"])
    finally:
        process.kill()
        process.wait()


async def said(shared: Shared, trust: SSLContext, token: str, job: str = "llm") -> list[wire.ServerMessage]:
    """Return what the server says to an agent that announces a job."""
    async with connect(
        f"wss://{shared.remote}{wire.AGENT_PATH}", ssl=trust, additional_headers={"Authorization": f"Bearer {token}"},
        server_hostname="node0", proxy=None,
    ) as line:  # fmt: skip
        hello = wire.Hello(protocol=config.PROTOCOL, agent="a1", host="node1", version="0", machine="m")
        await line.send(wire.encode(hello).decode())
        found = [wire.decode_from_server(await line.recv())]
        announced = wire.Announce(index=0, job=job, instance="i", attempt=0, world_size=2, ranks=(0,), terminal=False)
        await line.send(wire.encode(announced).decode())
        while True:
            try:
                found.append(wire.decode_from_server(await asyncio.wait_for(line.recv(), 0.5)))
            except asyncio.TimeoutError:
                return found


def test_an_agent_with_the_certificate_and_the_token_is_let_in(shared: Shared) -> None:
    messages = asyncio.run(said(shared, trusting(shared.certificate), TOKEN))
    assert isinstance(messages[0], wire.Welcome)
    assert not [message for message in messages if isinstance(message, wire.JobRefused)]


def test_the_token_opens_that_job_only(shared: Shared) -> None:
    messages = asyncio.run(said(shared, trusting(shared.certificate), TOKEN, job="other"))
    assert [message for message in messages if isinstance(message, wire.JobRefused)]


def test_a_wrong_token_is_refused(shared: Shared) -> None:
    with pytest.raises(ConnectionClosedError, match="1008"):
        asyncio.run(said(shared, trusting(shared.certificate), "not-" + TOKEN))


def test_an_agent_sends_nothing_to_whoever_has_another_certificate(shared: Shared) -> None:
    with pytest.raises(SSLCertVerificationError, match="another certificate"):
        asyncio.run(said(shared, trusting(make()[1]), TOKEN))
    with pytest.raises(httpx2.ConnectError, match="another certificate"):
        httpx2.get(f"https://{shared.remote}/", verify=trusting(make()[1]))


def test_nothing_but_agents_is_served_there(shared: Shared) -> None:
    for path in ("/", "/jobs", "/healthz", "/metrics", "/api/v1/incidents", "/ws/other"):
        answer = httpx2.get(
            f"https://{shared.remote}{path}", verify=trusting(shared.certificate),
            headers={"Authorization": f"Bearer {TOKEN}"},
        )  # fmt: skip
        assert answer.status_code == 404, path

    async def elsewhere() -> None:
        async with connect(f"wss://{shared.remote}/ws/other", ssl=trusting(shared.certificate), proxy=None):
            pass

    with pytest.raises(InvalidStatus, match="404"):
        asyncio.run(elsewhere())


def test_on_its_own_node_it_serves_its_user_without_a_token(shared: Shared) -> None:
    assert httpx2.get(f"{shared.url}/api/v1/incidents").json() == []


@pytest.mark.parametrize(
    ("more", "environ"), [((), {"NCCLWATCH_AGENT_TOKEN": TOKEN}), (("--ephemeral",), {})], ids=["kept", "no token"]
)
def test_it_is_for_jobs_alone_and_never_without_a_token(more: tuple[str, ...], environ: dict[str, str]) -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH_")}
    done = subprocess.run(
        [sys.executable, "-m", "ncclwatch_server", "--port", "0", "--remote", "127.0.0.1", *more],
        env=kept | environ, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--remote is for a server that an agent starts" in done.stderr
