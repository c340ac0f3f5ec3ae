"""To which server an agent goes that does not run one itself, and where it goes when that is lost."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ncclwatch.contract import config, wire
from ncclwatch.contract.machine.private_dirs import PrivateDir, open_private
from ncclwatch.contract.model.job import Contact
from ncclwatch_agent import following
from ncclwatch_agent.following import LOST_S, Following, _contact_to
from ncclwatch_agent.uplink import invitation
from ncclwatch_agent.uplink.invitation import Invitation
from ncclwatch_server.serving.certificate import make

RING = "1-1.ring"
NODES = (wire.KnownNode(agent="a", host="node0", machine="", ranks=(0,)),)


@pytest.fixture(scope="module")
def certificate() -> str:
    return make()[1]


def at(port: int, certificate: str) -> Invitation:
    return Invitation(hosts=("127.0.0.1",), port=port, certificate=certificate, token="t")


class Uplink:
    """The way to whichever server was named last."""

    def __init__(self) -> None:
        self.connected, self.failing, self.heard_at = False, 0.0, 0.0
        self.invited: list[int] = []

    def invite(self, to: Invitation) -> None:
        self.invited.append(to.port)
        self.failing = 0.0

    def failing_s(self) -> float:
        return self.failing


class Node:
    """An agent's rank and uplink. The first server is at port 1, the standby at port 2."""

    def __init__(self, place: PrivateDir, certificate: str) -> None:
        self.place, self.certificate = place, certificate
        rank = SimpleNamespace(ring=SimpleNamespace(file_name=RING), place=place)
        self.job = SimpleNamespace(key=SimpleNamespace(job="j"), index=7, ranks={1: rank})
        self.uplink, self.following = Uplink(), Following()

    def find(self, port: int) -> None:
        """Let the rank find an address in the store."""
        self.place.write(RING + config.FOUND_SUFFIX, invitation.encode(at(port, self.certificate)))

    def stands_by(self, *, nodes: tuple[wire.KnownNode, ...] = ()) -> None:
        offer = invitation.encode(at(2, self.certificate)).decode()
        said = wire.Successor(index=7, host="node1", offer=offer, instead_of="node0", nodes=nodes)
        self.following.note(said)

    async def goes_to_the_standby(self) -> str:
        """Find the first server, hear of the standby, and lose the first. Returns what the terminal is told."""
        self.find(1)
        self.tend()
        self.stands_by()
        return await self.loses_it()

    async def loses_it(self, failing_s: float = LOST_S) -> str:
        """Be without a connection for so long, and return what the terminal is told."""
        self.uplink.connected, self.uplink.failing = False, failing_s
        for _ in range(50):
            said = self.tend()
            if said or self.uplink.failing == 0.0:
                return said
            await asyncio.sleep(0.01)
        return ""

    def tend(self) -> str:
        return self.following.tend(self.job, self.uplink)  # type: ignore[arg-type]


@pytest.fixture
def node(tmp_path: Path, certificate: str) -> Iterator[Node]:
    with open_private(str(tmp_path / "b"), make=True) as place:
        yield Node(place, certificate)


def answers(contact: Contact, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host of the lost server answer so."""

    async def found(_: Invitation) -> Contact:
        return contact

    monkeypatch.setattr(following, "_contact_to", found)


def test_it_goes_where_the_store_says_and_to_the_standby_when_that_is_lost(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(Contact.MUTE, monkeypatch)

    async def play() -> None:
        node.find(1)
        node.tend()
        node.uplink.connected = True
        node.stands_by(nodes=NODES)
        node.tend()
        assert node.following.predecessor(7) is None
        node.uplink.heard_at = time.monotonic() - 9
        assert "on node0, has not answered for 9 s: the one that stood by on node1 takes over" in await node.loses_it()
        assert node.uplink.invited == [1, 2]

    asyncio.run(play())
    before = node.following.predecessor(7)
    assert before is not None
    assert (before.nodes, before.host, before.contact) == (NODES, "node0", Contact.MUTE)
    assert 9 <= before.silent_s < 12


def test_the_others_go_there_without_a_word(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(Contact.MUTE, monkeypatch)

    async def play() -> None:
        assert await node.goes_to_the_standby() == ""

    asyncio.run(play())
    assert node.uplink.invited == [1, 2]
    assert node.following.predecessor(7) is None


def test_where_neither_answers_it_tries_one_after_the_other(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(Contact.MUTE, monkeypatch)

    async def play() -> None:
        await node.goes_to_the_standby()
        for _ in range(3):
            await node.loses_it()

    asyncio.run(play())
    assert node.uplink.invited == [1, 2, 1, 2, 1]


def test_a_short_loss_changes_nothing(node: Node) -> None:
    async def play() -> None:
        node.find(1)
        node.tend()
        node.stands_by()
        await node.loses_it(LOST_S / 2)

    asyncio.run(play())
    assert node.uplink.invited == [1]
    assert not node.following.elsewhere


def test_another_server_in_the_store_is_better_than_the_standby(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(Contact.CLOSED, monkeypatch)

    async def play() -> None:
        await node.goes_to_the_standby()
        node.uplink.connected = True
        node.find(3)
        node.tend()

    asyncio.run(play())
    assert node.uplink.invited == [1, 2, 3]
    assert not node.following.elsewhere


def test_it_goes_back_when_the_first_one_proves_to_be_there(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(Contact.MUTE, monkeypatch)
    monkeypatch.setattr(following, "PROBE_S", 0.0)
    there: list[bool] = [False, True]

    async def is_there(server: Invitation) -> bool:
        assert server.port == 1
        return there.pop(0)

    monkeypatch.setattr(following, "_is_there", is_there)

    async def play() -> None:
        await node.goes_to_the_standby()
        node.uplink.connected = True
        for _ in range(10):
            node.tend()
            await asyncio.sleep(0.01)

    asyncio.run(play())
    assert node.uplink.invited == [1, 2, 1]
    assert not there


def test_a_standby_that_cannot_be_reached_is_none(node: Node) -> None:
    node.following.note(wire.Successor(index=7, host="node1", offer="garbage", instead_of="node0", nodes=NODES))

    async def play() -> None:
        node.find(1)
        node.tend()
        await node.loses_it()

    asyncio.run(play())
    assert node.uplink.invited == [1]


def test_a_kernel_that_takes_or_refuses_a_connection_is_there(certificate: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert asyncio.run(_contact_to(at(port, certificate))) is Contact.ACKNOWLEDGES
    assert asyncio.run(_contact_to(at(port, certificate))) is Contact.CLOSED


def test_a_kernel_that_says_nothing_is_mute_and_a_name_tells_nothing(
    certificate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "OPEN_S_MAX", 0.05)
    named = Invitation(hosts=("node0",), port=1, certificate=certificate, token="t")
    assert asyncio.run(_contact_to(named)) is Contact.UNKNOWN
    with contextlib.ExitStack() as stack:
        # A queue that is full takes no further connection, and says nothing to whoever asks for one.
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            each = stack.enter_context(socket.socket())
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        assert asyncio.run(_contact_to(at(full.getsockname()[1], certificate))) is Contact.MUTE


def test_it_goes_to_the_newest_address_also_while_it_is_connected(node: Node) -> None:
    """After a restart the store may still have the address of the run before, which another rank reads no more."""
    stopped = SimpleNamespace(ring=SimpleNamespace(file_name="0-1.ring"), place=node.place)
    node.job.ranks = {0: stopped, **node.job.ranks}
    node.place.write("0-1.ring" + config.FOUND_SUFFIX, invitation.encode(at(3, node.certificate)))
    node.uplink.connected = True
    node.tend()
    node.find(4)
    for _ in range(3):
        node.tend()
    assert node.uplink.invited == [3, 4]
