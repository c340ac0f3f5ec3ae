"""The kernel says who holds the other end of a connection, and says nothing where nobody does."""

import multiprocessing
import os
import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.network import peer_uid
from ncclwatch.contract.network.peer_uid import End, addresses, check, other_end
from tests.integration.machine import ALICE, MALLORY, needs_root

pytestmark = pytest.mark.integration

ADDRESSES = [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")]  # the last is a v4 address in v6


@pytest.fixture(params=["netlink", "proc"])
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Let the kernel be asked in both ways."""
    peer_uid._netlink_answers.cache_clear()
    if request.param == "proc":
        monkeypatch.setattr(peer_uid, "_NETLINK_SOCK_DIAG", 31)  # no such family
    else:
        monkeypatch.setattr(peer_uid, "_read_proc", lambda one, other: None)
    yield request.param
    peer_uid._netlink_answers.cache_clear()


def listening(host: str) -> socket.socket:
    """Return a listener on a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::")


@pytest.mark.parametrize(("listens", "dials"), ADDRESSES)
def test_both_ends_of_a_connection_know_of_each_other(source: str, listens: str, dials: str) -> None:
    with (
        listening(listens) as listener,
        socket.create_connection((dials, listener.getsockname()[1])) as client,
        listener.accept()[0] as accepted,
    ):
        ours = End(uid=os.geteuid(), held=True)
        assert other_end(*addresses(client)) == other_end(*addresses(accepted)) == ours


def test_a_connection_that_nobody_has_accepted_is_nobodys(source: str) -> None:
    with listening("127.0.0.1") as listener, socket.create_connection(listener.getsockname()) as client:
        end = other_end(*addresses(client))
        assert end is not None and not end.held
        with pytest.raises(NcclwatchError, match="accepts no connection"):
            check("http://x", end)
        with listener.accept()[0]:
            assert other_end(*addresses(client)) == End(uid=os.geteuid(), held=True)


def test_an_end_that_was_closed_is_nobodys(source: str) -> None:
    with listening("127.0.0.1") as listener:
        client = socket.create_connection(listener.getsockname())
        with listener.accept()[0] as accepted:
            ends = addresses(accepted)
            client.close()
            end = other_end(*ends)
            assert end is None or not end.held


def test_a_listener_is_not_taken_for_a_connection(source: str) -> None:
    with listening("127.0.0.1") as listener:
        assert other_end(("127.0.0.1", 1), listener.getsockname()) is None


def test_an_address_on_another_machine_is_nobodys_here(source: str) -> None:
    assert other_end(("127.0.0.1", 40_000), ("192.0.2.1", 8470)) is None
    with pytest.raises(NcclwatchError, match="nobody can tell"):
        check("http://x", None)


def test_another_user_is_known_by_number(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_root()
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    child = multiprocessing.get_context("fork").Process(target=_accept_as_another, args=(theirs,))
    child.start()
    try:
        with socket.create_connection(("127.0.0.1", ours.recv())) as client:
            assert ours.recv() == "accepted"
            end = other_end(*addresses(client))
            assert end == End(uid=MALLORY, held=True)
            with pytest.raises(NcclwatchError, match=f"belongs to another user \\(uid {MALLORY}"):
                check("http://x", end)
            with monkeypatch.context() as alice:
                alice.setattr(os, "geteuid", lambda: ALICE)
                check("http://x", End(uid=0, held=True))
                with pytest.raises(NcclwatchError, match=r"belongs to another user \(uid 0"):
                    check("http://x", End(uid=0, held=True), or_root=False)
    finally:
        child.kill()
        child.join()
        ours.close()
        theirs.close()


def _accept_as_another(pipe: Connection) -> None:
    with listening("127.0.0.1") as listener:
        os.setresuid(MALLORY, MALLORY, MALLORY)
        pipe.send(listener.getsockname()[1])
        with listener.accept()[0]:
            pipe.send("accepted")
            pipe.poll(60)
