"""An agent finds out whether another node answers, at addresses that processes here are connected to."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest

from ncclwatch.contract import config
from ncclwatch.contract.model.job import Contact
from ncclwatch_agent.process.connections import addresses as network
from ncclwatch_agent.process.connections.addresses import connected_to, own_addresses
from ncclwatch_agent.witnesses import other_nodes
from ncclwatch_agent.witnesses.other_nodes import answering

HERE = os.getpid()
THERE = "127.0.0.77"  # the kernel answers at all of 127.0.0.0/8


@contextlib.contextmanager
def connection(address: str) -> Iterator[None]:
    with socket.create_server((address, 0)) as listener, socket.create_connection(listener.getsockname()):
        yield


def ask(text: str, *pids: int) -> tuple[int, ...]:
    return asyncio.run(answering(text, pids))


def test_a_kernel_that_refuses_the_connection_answers() -> None:
    with connection(THERE):
        assert ask(f"10.9.8.7; 10.9.8.6 {THERE}", HERE) == (1,)


def test_a_connection_that_is_taken_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens there: a proxy beside this node takes all connections, also those to a node that is down."""
    with connection(THERE), socket.create_server((THERE, 0)) as listener:
        monkeypatch.setattr(config, "PROBE_PORT", listener.getsockname()[1])
        assert ask(THERE, HERE) == ()


def test_a_node_is_tried_once_for_all_the_times_that_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    async def refused(host: str, port: int, seconds: float) -> Contact:
        tried.append(host)
        return Contact.CLOSED

    monkeypatch.setattr(other_nodes, "knock", refused)
    with connection(THERE):
        assert ask("; ".join([f"{THERE} {THERE}"] * 3), HERE) == (0, 1, 2)
    assert tried == [THERE]


def test_an_address_that_no_process_here_is_connected_to_is_not_tried() -> None:
    assert ask(THERE, HERE) == ()
    with connection(THERE):
        assert ask(THERE) == ()


def test_an_address_of_this_node_is_no_other_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_nodes, "own_addresses", lambda: (THERE,))
    with connection(THERE):
        assert ask(THERE, HERE) == ()


def test_a_host_that_says_nothing_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_nodes, "ANSWERS_S", 0.05)
    with contextlib.ExitStack() as stack:
        stack.enter_context(connection(THERE))
        # A queue that is full takes no further connection, and says nothing to whoever asks for one.
        full = stack.enter_context(socket.socket())
        full.bind((THERE, 0))
        full.listen(0)
        for _ in range(4):
            each = stack.enter_context(socket.socket())
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        monkeypatch.setattr(config, "PROBE_PORT", full.getsockname()[1])
        assert ask(THERE, HERE) == ()


@pytest.mark.parametrize("text", ["", ";", " ; ;", "no address", "999.1.1.1; ::1%x", "\x00"])
def test_a_text_that_names_no_address_is_nobody(text: str) -> None:
    with connection(THERE):
        assert ask(text, HERE) == ()


def test_a_socket_for_both_kinds_of_addresses_is_connected_to_the_older_one() -> None:
    with contextlib.ExitStack() as stack:
        listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        port = stack.enter_context(listener).getsockname()[1]
        stack.enter_context(socket.create_connection((THERE, port), source_address=("127.0.0.78", 0)))
        taken, peer = listener.accept()
        stack.enter_context(taken)
        assert peer[0] == "::ffff:127.0.0.78"
        assert connected_to([HERE]) >= {THERE, "127.0.0.78"}


def test_a_process_that_has_ended_is_connected_to_nothing() -> None:
    assert connected_to([2**22 + 1]) == set()


def test_the_table_of_connections_is_read_once_for_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with 32 ranks of 300 connections each took 4 s for them otherwise."""
    read: list[str] = []

    def noting(name: str, **how: str) -> IO[str]:
        read.append(name)
        return Path(name).open(**how)

    monkeypatch.setattr(network, "open", noting, raising=False)
    with connection(THERE):
        assert THERE in connected_to([HERE] * 32)
    assert read == ["/proc/self/net/tcp", "/proc/self/net/tcp6"]


def test_lines_that_are_no_connections_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "tcp"
    with connection(THERE):
        inode = next(network.sockets_of(HERE))
        words = ["0:", "", "zz:1", "01", "0", "0", "0", "0", "0", inode]
        rows = [["0:"], words, [*words[:2], "0A0B:1", *words[3:]], [*words[:2], "4D00007F:1", *words[3:]]]
        table.write_text("\n".join(" ".join(word or "x" for word in row) for row in rows))
        monkeypatch.setattr(network, "_TABLES", (str(tmp_path / "none"), str(table)))
        assert connected_to([HERE]) == {"77.0.0.127" if sys.byteorder == "big" else THERE}


def test_a_node_that_may_not_see_its_interfaces_has_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a seccomp filter without netlink: its agent reports all the same."""

    def refuses() -> None:
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr(psutil, "net_if_addrs", refuses)
    assert own_addresses() == ()


def test_the_addresses_of_this_node_are_none_of_the_loopback() -> None:
    assert not any(address.startswith("127.") for address in own_addresses())
