"""The server of a job on several nodes, as the agent beside rank 0 starts it."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from ncclwatch.contract import config
from ncclwatch.contract.machine.private_dirs import open_private
from ncclwatch_agent import shared_servers
from ncclwatch_agent.ranks.jobs import JobKey
from ncclwatch_agent.shared_servers import SharedServers


class SlowAtFirst:
    """A server that is not ready in time when it is started first."""

    starts = 0
    alive = False
    remote_port, certificate = 1234, "a certificate"

    async def start(self, port: int, *, remote: str, token: str, stand_by: bool) -> str:
        """Be started."""
        self.starts += 1
        self.alive = self.starts > 1
        return "" if self.alive else "no server could be started here"

    async def stop(self) -> None:
        """End."""


def test_a_server_that_could_not_be_started_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared_servers, "LocalServer", SlowAtFirst)
    key = JobKey(job="j", instance="127.0.0.1:1/", attempt=0, world_size=2)

    async def told() -> list[str]:
        with open_private(str(tmp_path / "b"), make=True) as place:
            ranks = {n: SimpleNamespace(ring=SimpleNamespace(file_name=f"{n}-1.ring"), place=place) for n in (2, 1, 0)}
            job = SimpleNamespace(key=key, store_host="127.0.0.1", ranks=ranks)
            uplink = SimpleNamespace(invite=lambda _: None)
            servers = SharedServers()
            found: list[str] = []
            for _ in range(20):
                found.append(servers.tend(job, uplink))  # type: ignore[arg-type]
                await asyncio.sleep(0.02)
            offers = [place.read(f"{n}-1.ring{config.OFFER_SUFFIX}", config.OFFER_BYTES_MAX) for n in range(3)]
            assert [b"1234" in (offer or b"") for offer in offers] == [True, True, False]
            await servers.close()
            return found

    sentences = asyncio.run(told())
    assert "no server could be started here" in sentences
    assert sentences[-1] == ""


class Ready(SlowAtFirst):
    """One that is ready at once."""

    starts = 1


def test_a_restart_finds_the_server_of_its_launch_still_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared_servers, "LocalServer", Ready)
    invited: list[tuple[int, str]] = []

    async def told() -> None:
        servers = SharedServers()
        with open_private(str(tmp_path / "b"), make=True) as place:
            for run, attempt in ((1, 0), (2, 0), (3, 1)):
                key = JobKey(job="j", instance="127.0.0.1:1/", attempt=attempt, world_size=2, run=run)
                rank = SimpleNamespace(ring=SimpleNamespace(file_name=f"0-{run}.ring"), place=place)
                job = SimpleNamespace(key=key, store_host="127.0.0.1", ranks={0: rank})
                uplink = SimpleNamespace(invite=lambda offer, run=run: invited.append((run, offer.token)))
                for _ in range(10):
                    servers.tend(job, uplink)  # type: ignore[arg-type]
                    await asyncio.sleep(0.02)
                servers.forget(())
            offers = [place.read(f"0-{run}.ring{config.OFFER_SUFFIX}", config.OFFER_BYTES_MAX) for run in (1, 2, 3)]
            assert offers[0] == offers[1] == offers[2]
        await servers.close()

    asyncio.run(told())
    assert {run for run, _ in invited} == {1, 2, 3}
    assert len({token for _, token in invited}) == 1


def test_a_server_that_is_being_started_is_not_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The ranks that it was started for have ended before it was ready: those of the next attempt have it."""
    ready = asyncio.Event()
    starts: list[int] = []

    class Slow(Ready):
        async def start(self, port: int, **_: object) -> str:
            starts.append(port)
            await ready.wait()
            self.alive = True
            return ""

    monkeypatch.setattr(shared_servers, "LocalServer", Slow)

    async def told() -> None:
        servers = SharedServers()
        with open_private(str(tmp_path / "b"), make=True) as place:
            for run in (1, 2):
                key = JobKey(job="j", instance="127.0.0.1:1/", attempt=0, world_size=2, run=run)
                rank = SimpleNamespace(ring=SimpleNamespace(file_name=f"0-{run}.ring"), place=place)
                job = SimpleNamespace(key=key, store_host="127.0.0.1", ranks={0: rank})
                servers.tend(job, SimpleNamespace(invite=lambda _: None))  # type: ignore[arg-type]
                await asyncio.sleep(0.02)
                servers.forget(())
            ready.set()
            await asyncio.sleep(0.02)
        assert servers.serving
        await servers.close()

    asyncio.run(told())
    assert len(starts) == 1
