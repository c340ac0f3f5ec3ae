"""Our client of a TCPStore says the same as torch's."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
import torch.distributed as dist

from ncclwatch.rank.agents.store_client import StoreClient, StoreGone


@pytest.fixture(params=[True, False], ids=["libuv", "own"])
def store(request: pytest.FixtureRequest) -> Iterator[dist.TCPStore]:
    """Run a store, with each of torch's two servers."""
    yield dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=request.param)


def put(store: dist.TCPStore, key: str, value: str) -> None:
    """Set a key, and wait until it is set: the server answers to a get on the same connection after that."""
    store.set(key, value)
    store.get(key)


def test_what_it_sets_torch_gets_and_the_other_way(store: dist.TCPStore):
    with closing(StoreClient("127.0.0.1", store.port)) as client:
        assert client.get("ours", 100) is None
        client.set("ours", b"\0one")
        assert client.get("ours", 100) == b"\0one"
        assert bytes(store.get("ours")) == b"\0one"
        put(store, "theirs", "two")
        assert client.get("theirs", 100) == b"two"
        put(store, "theirs", "")
        assert client.get("theirs", 100) == b""


def test_of_a_long_value_it_takes_the_beginning(store: dist.TCPStore):
    put(store, "long", "x" * 1_000_000)
    with closing(StoreClient("127.0.0.1", store.port)) as client:
        assert client.get("long", 8192) == b"x" * 8192
        assert client.get("short", 8192) is None  # the rest is out of the way


def test_who_is_no_store_is_told_of():
    def answer(listener: socket.socket) -> None:
        with listener.accept()[0] as line:
            line.recv(100)
            line.sendall(b"HTTP/1.1 400")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        with closing(StoreClient("127.0.0.1", listener.getsockname()[1])) as client, pytest.raises(StoreGone):
            client.get("ours", 100)
        thread.join()


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 1), ("127.0.0.1", 70_000), ("a" * 300, 1), ("a\0b", 1)])
def test_where_nobody_listens_is_told_of(host: str, port: int):
    with pytest.raises(StoreGone):
        StoreClient(host, port)
