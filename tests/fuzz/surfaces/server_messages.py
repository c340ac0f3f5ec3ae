"""What a server says to an agent: a welcome, a refusal, or commands about ranks."""

import asyncio
from collections.abc import Hashable
from pathlib import Path
from types import SimpleNamespace

from ncclwatch.contract import wire
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.model.verdict import Culprit
from ncclwatch.contract.on_hang.decision import Hang
from ncclwatch.contract.on_hang.hangs import Hangs, HookFacts, Hooks, OpenHang, encode
from ncclwatch_agent.commands import CommandDesk
from ncclwatch_agent.uplink.connection import explain
from tests.fuzz import mutation
from tests.fuzz.engine import Broken, Surface

FROZEN = Hang(cause="process_frozen", certainty="PROVEN", ranks=frozenset({1}), places=frozenset({"a.py:3"}))
HOOKS = Hooks(
    granted=(HookFacts(incident="1a", culprits=(Culprit(rank=1, host="h"),), capture="h:/a.zip"),),
    taken=("1b",),
    over=("1b",),
)
HANGS = Hangs(open=(OpenHang(incident="1a", hang=FROZEN, stands_s=1.0),), before=(FROZEN,), attempts=1, hooks=HOOKS)
POLICY = Path(__file__).with_name("policy_with_hook.toml")  # whose hook is missing: nothing is started


class _Job:
    """A job without ranks, as the desk sees it. Its owner wants it to be restarted where it hangs."""

    index, server, ranks, wants_terminal = 1, "http://h:1", dict[int, object](), False
    on_hang, hang_policy, under_torchrun, restarts_left = "restart", str(POLICY), True, 2
    key = SimpleNamespace(job="job", instance="i", attempt=0, world_size=2)

    def __init__(self) -> None:
        self.told: set[str] = set()
        self.hooks: dict[str, bool] = {}

    def everyone(self) -> list[object]:
        """Return its ranks."""
        return []

    def spans_nodes(self) -> bool:
        """Whether others may run a hook."""
        return True


class _Uplink:
    """An uplink that keeps what is sent."""

    name = url = "http://h:1"
    connections = 1

    def __init__(self) -> None:
        self.sent: list[wire.AgentMessage] = []

    def send(self, message: wire.AgentMessage) -> None:
        """Keep it."""
        self.sent.append(message)


def check(data: bytes) -> Hashable:
    """Hear it: a sentence for people, or a command that is carried out without harm."""
    try:
        message = wire.decode_from_server(data)
    except WireError as error:
        return "unreadable", explain("http://h:1", error).answer
    if not isinstance(message, wire.Command):
        return type(message).__name__
    sent = asyncio.run(_carried_out(message))
    for each in sent:
        if wire.decode_from_agent(wire.encode(each)) != each:
            raise Broken(f"{each} does not arrive as it is")
    return message.kind, len(message.ranks), tuple(type(each).__name__ for each in sent)


async def _carried_out(command: wire.Command) -> list[wire.AgentMessage]:
    job, uplink = _Job(), _Uplink()
    desk = CommandDesk(lambda: [job])  # type: ignore[list-item]
    desk.take(uplink, command)  # type: ignore[arg-type]
    for _ in range(2):
        desk.actor.tend(job, connected=True)  # type: ignore[arg-type]
    tasks = tuple(desk._tasks)
    await asyncio.gather(*tasks)
    await desk.close()
    return uplink.sent


SURFACE = Surface(
    name="server_messages",
    seeds=tuple(
        wire.encode(message)
        for message in (
            wire.Welcome(server="ncclwatch", version="1"),
            wire.Refused(reason="no"),
            *(
                wire.Command(id=number, kind=kind, index=1, ranks=(0, 1), text="ddp 0-3", deeply=True)
                for number, kind in enumerate(wire.CommandKind)
            ),
            wire.Command(id=9, kind=wire.CommandKind.HANGS, index=1, text=encode(HANGS)),
        )
    ),
    mutate=mutation.of_json,
    check=check,
)
