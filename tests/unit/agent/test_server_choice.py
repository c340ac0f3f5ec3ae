"""Who may have this node start a server."""

import asyncio
from types import SimpleNamespace

import pytest

from ncclwatch.contract import config, wire
from ncclwatch_agent.server_choice import Servers
from ncclwatch_agent.shared_servers import SharedServers


@pytest.mark.parametrize("naming", [config.NAMED, config.OWN, config.UNNAMED, config.SHARED])
def test_a_server_that_was_named_starts_none_here(naming: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    async def stand_by(_: SharedServers, job: object) -> str:
        asked.append(job)
        return "an offer"

    monkeypatch.setattr(SharedServers, "stand_by", stand_by)
    job = SimpleNamespace(index=4, naming=naming, server="http://head:1")
    sent: list[wire.AgentMessage] = []
    uplink = SimpleNamespace(name="http://head:1", naming=naming, connections=1, send=sent.append)
    servers = Servers(None, None, lambda: [job], None)  # type: ignore[arg-type, list-item]

    async def play() -> None:
        servers._command(uplink, wire.Command(id=9, kind=wire.CommandKind.STAND_BY, index=4))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)

    asyncio.run(play())
    wanted = naming == config.SHARED
    assert asked == ([job] if wanted else [])
    assert sent == ([wire.Standby(index=4, offer="an offer", reply_to=9)] if wanted else [])
