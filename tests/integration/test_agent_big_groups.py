"""Groups of real size on their whole way: written by ranks, read by the agent's process, sent, and decoded."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from websockets.asyncio.server import serve

from ncclwatch.contract import config, wire
from ncclwatch.contract.model.rank import GroupView, RankView
from tests.integration.agent_node import Node
from tests.integration.agent_stub import Stub, url_of

pytestmark = pytest.mark.integration

AGENT_MB_MAX = 60  # of a node with eight ranks


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "run")
    yield node
    node.close()


def with_agent(node: Node, ranks: int, then: Callable[[Stub, int], Awaitable[None]], **more: str) -> None:
    """Start ranks and an agent, and do something once all ranks are announced; it gets the agent's pid."""

    async def scenario() -> None:
        stub = Stub()
        async with serve(stub.welcome, "127.0.0.1", 0, max_size=None) as server:
            for rank in range(ranks):
                node.rank(rank, url_of(server), local_world=str(ranks), **more)
            pid = node.spawn_agent()
            async with asyncio.timeout(60):
                while len(getattr(await stub.next(), "ranks", ())) < ranks:
                    pass
                await then(stub, pid)

    asyncio.run(scenario())


async def views(stub: Stub, ranks: int) -> tuple[RankView, ...]:
    """Return the views of all ranks, asked for."""
    asked = wire.Command(id=5, kind=wire.CommandKind.INSPECT, index=1, ranks=tuple(range(ranks)))
    await stub.sockets[-1].send(wire.encode(asked).decode())
    found: list[RankView] = []
    while len(found) < ranks:
        message = await stub.next()
        found += message.ranks if isinstance(message, wire.Views) else ()
    return tuple(found)


def group_named(view: RankView, name: str) -> GroupView:
    return next(group for group in view.groups if group.name == name)


@pytest.mark.parametrize("world_size", [12_773, 12_774, 12_775, 16_384, 98_304])
def test_the_members_that_a_rank_has_are_those_that_the_server_gets(node: Node, world_size: int):
    async def compare(stub: Stub, _: int) -> None:
        first, second = await views(stub, 2)
        assert group_named(first, "0").ranks == tuple(range(world_size))
        assert group_named(first, "0").unnamed == 0
        assert [group.ranks for group in first.groups] == [group.ranks for group in second.groups]
        assert first.groups[8].ranks == tuple(range(7, world_size, 8))
        assert first.dropped == 0

    node.world_size = world_size
    with_agent(node, 2, compare, more_groups="8")


def test_a_list_without_room_arrives_as_unknown_with_its_size_and_counted(node: Node):
    async def compare(stub: Stub, _: int) -> None:
        (view,) = await views(stub, 1)
        lost = group_named(view, "scattered")
        assert (lost.ranks, lost.size, lost.unnamed) == ((), 98_000, 98_000)
        assert lost.members_digest != 0
        assert view.dropped == 1

    node.world_size = 98_304
    with_agent(node, 1, compare, scattered="98000")


def test_of_512_groups_with_names_of_ten_kilobytes_each_has_its_own_and_all_its_members(node: Node):
    async def compare(stub: Stub, _: int) -> None:
        (view,) = await views(stub, 1)
        assert len({group.name for group in view.groups}) == config.GROUPS_MAX
        assert [group.ranks for group in view.groups[1:]] == [
            tuple(range(number % 8, 16_384, 8)) for number in range(config.GROUPS_MAX - 1)
        ]
        assert view.dropped == 1

    node.world_size = 16_384
    with_agent(node, 1, compare, more_groups=str(config.GROUPS_MAX))


def test_an_agent_of_eight_ranks_in_groups_of_98304_keeps_to_its_memory(node: Node):
    async def measure(stub: Stub, pid: int) -> None:
        for _ in range(3):
            found = await views(stub, 8)
            assert all(len(view.groups) == 18 for view in found)
        status = Path(f"/proc/{pid}/status").read_text()
        peak_kb = int(re.search(r"VmHWM:\s+(\d+)", status)[1])  # type: ignore[index]
        print(f"peak of the agent: {peak_kb / 1024:.1f} MB")
        assert peak_kb / 1024 < AGENT_MB_MAX

    node.world_size = 98_304
    with_agent(node, 8, measure, more_groups="16", scattered="30000")
