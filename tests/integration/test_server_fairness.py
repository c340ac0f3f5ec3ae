"""A bound token's holder must not keep the server from telling of another team's hang, nor from living."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from ncclwatch.contract import config, digests, wire
from ncclwatch.contract.model.rank import (
    GroupView,
    Op,
    ProcessState,
    ProcessView,
    RankView,
    ThreadView,
    WaitKind,
    WaitView,
)
from tests.integration.fake_agent import FakeAgent, until
from tests.integration.hostile_lines import (
    BOUND,
    READER,
    TEAM_A,
    TEAM_B,
    admitted,
    announce,
    flood,
    frame,
)
from tests.integration.server_process import ServerProcess
from tests.integration.test_server_ownership import forged_view

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


STARVED_S = 45.0  # untold for so long: the server does nothing for others


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[ServerProcess, FakeAgent]]:
    """Run a server and a job of team A on it."""
    with (
        ServerProcess(tmp_path, token=READER, environ=BOUND) as server,
        FakeAgent(server.url, job="team-a/run", host="node-a", token=TEAM_A, agent="victim") as victim,
    ):
        until(lambda: victim.progress > 2 and server.job("team-a%2Frun"))
        yield server, victim


def hang_is_told(server: ServerProcess, victim: FakeAgent) -> None:
    """Let a job hang, and wait until its incident is open."""
    victim.hang(1)
    address, headers = f"{server.url}/api/v1/incidents?job=team-a/run", {"Authorization": f"Bearer {READER}"}
    began = time.monotonic()
    while time.monotonic() - began < STARVED_S:
        assert server.process.poll() is None, server.log.read_text()[-200:]
        with suppress(httpx2.HTTPError):
            if httpx2.get(address, headers=headers, timeout=STARVED_S).json():
                return
        time.sleep(0.1)
    pytest.fail("nobody was told of the hang")


DIGEST = digests.pack_digest(0, [(0, 0, 0, 1, 0, 0.1, 0.0, 5, 5, 5, *digests.NO_WAIT, *digests.NO_FACTS)], [])
SHORT = {
    "loops": frame(b'{"type":"loops","index":0,"ranks":[]}'),
    "announcements": frame(announce("team-b/run", world_size=200_000, ranks=(0,)).encode()),
    "ends": frame(b'{"type":"gone","index":0}'),
    "digests": frame(DIGEST, 2),
}


@pytest.mark.parametrize("kind", SHORT)
def test_short_messages_as_fast_as_they_go_keep_no_other_job_unwatched(
    watched: tuple[ServerProcess, FakeAgent], kind: str
) -> None:
    server, victim = watched
    with ExitStack() as stack:
        lines = [stack.enter_context(admitted(server, TEAM_B, f"b{number}")) for number in range(12)]
        for number, line in enumerate(lines):
            line.send(announce("team-b/run", world_size=200_000, ranks=(number,)))
        with flood(lines, SHORT[kind] * 2000):
            hang_is_told(server, victim)


def test_long_views_of_one_token_keep_no_other_job_unwatched(watched: tuple[ServerProcess, FakeAgent]) -> None:
    server, victim = watched
    view = crowded(0, 500, 2)
    data = frame(wire.encode(wire.Views(index=0, ranks=(view,) * 50)))
    assert len(data) > 4_000_000
    with ExitStack() as stack:
        lines = [stack.enter_context(admitted(server, TEAM_B, f"b{number}")) for number in range(30)]
        for number, line in enumerate(lines):
            line.send(announce(f"team-b/run{number}"))
        with flood(lines, data):
            hang_is_told(server, victim)
    assert "refused an agent" not in server.log.read_text()


def crowded(rank: int, groups: int, ranks: int) -> RankView:
    """Return a view with as many waiting threads and groups as a view may have."""
    names = [f"g{number}" for number in range(groups)]
    waits = (
        ThreadView(
            tid=number + 1,
            main=number == 0,
            issued=1,
            wait=WaitView(kind=WaitKind.COLLECTIVE, age_s=900.0, group=names[0], seq=number + 2, op=Op.ALL_REDUCE),
        )
        for number in range(config.THREADS_MAX)
    )
    known = (
        GroupView(name=name, desc="", ranks=(), runs=((0, 1, ranks),), enqueued=1, completed=1, prefix_hash=1)
        for name in names
    )
    return replace(
        forged_view(rank),
        ending=None,
        process=ProcessView(state=ProcessState.SLEEPING),
        pulse_age_s=0.1,
        world_size=ranks,
        threads=tuple(waits),
        groups=tuple(known),
    )
