"""An offer goes from one node's ring through the job's store to the other node's ring."""

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from ncclwatch.contract import config
from ncclwatch.contract.machine.private_dirs import open_private
from ncclwatch.rank.agents.store_client import StoreGone
from ncclwatch.rank.agents.store_exchange import KEY, LATER_S, SOON_S, Exchange, endpoint_of, is_wanted, look_s


@pytest.fixture
def store() -> Iterator[dist.TCPStore]:
    """Run the store of a job."""
    yield dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5))


_MADE: list[Exchange] = []


@pytest.fixture(autouse=True)
def _hung_up() -> Iterator[None]:
    yield
    while _MADE:
        _MADE.pop().hang_up()


def node(directory: Path, port: int) -> tuple[Exchange, Path, Path]:
    place = open_private(str(directory), make=True)
    exchange = Exchange(place, "0-1.ring", ("127.0.0.1", port), nodes=2)
    _MADE.append(exchange)
    ring = str(directory / "0-1.ring")
    return exchange, Path(ring + config.OFFER_SUFFIX), Path(ring + config.FOUND_SUFFIX)


def put(store: dist.TCPStore, said: bytes) -> None:
    """Wait until the store has an offer: it does not answer to whoever sets a key."""
    deadline = time.monotonic() + 20
    while not store.check([KEY]) or bytes(store.get(KEY)) != said:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_one_agent_offers_the_other_finds(tmp_path: Path, store: dist.TCPStore):
    host, offer, _ = node(tmp_path / "a", store.port)
    guest, _, found = node(tmp_path / "b", store.port)
    guest.look()
    assert not found.exists()
    offer.write_bytes(b"one")
    host.look()
    put(store, b"one")
    guest.look()
    assert found.read_bytes() == b"one"


def test_a_new_offer_is_found_once_the_agent_asks_for_it(tmp_path: Path, store: dist.TCPStore):
    host, offer, _ = node(tmp_path / "a", store.port)
    guest, _, found = node(tmp_path / "b", store.port)
    for said in (b"one", b"two"):
        offer.write_bytes(said)
        host.look()
        put(store, said)
        guest.look()
    assert found.read_bytes() == b"one"
    found.unlink()
    guest.look()
    assert found.read_bytes() == b"two"


def test_what_is_found_of_the_run_before_a_restart_is_corrected(
    tmp_path: Path, store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch
):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    guest, _, found = node(tmp_path / "b", store.port)
    looks: list[float] = []
    store.set(KEY, "of the run before")
    while now < 1000.0:
        before = found.read_bytes() if found.exists() else b""
        if guest.look() is None and now > 300.0:
            store.set(KEY, "one")
        if found.exists() and found.read_bytes() != before:
            looks.append(now)
        now += 1.0
    assert looks[0] == 100.0
    assert found.read_bytes() == b"one"
    assert 300.0 < looks[1] <= 500.0, "it looks less and less often, but goes on"


def test_no_key_of_training_is_touched_and_no_worker_counted(tmp_path: Path, store: dist.TCPStore):
    before = store.num_keys()
    guest, _, _ = node(tmp_path / "b", store.port)
    guest.look()
    assert store.num_keys() == before


def test_a_store_that_is_not_there_yet_is_asked_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    guest, _, found = node(tmp_path / "b", port)
    with pytest.raises(StoreGone):
        guest.look()
    later = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    later.set(KEY, "one")
    later.get(KEY)  # answered when that is set, which the set is not
    guest.look()
    assert found.read_bytes() == b"one"
    assert capfd.readouterr().err == ""


def test_a_store_that_goes_away_leaves_nothing_on_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        guest, _, _ = node(tmp_path / "b", listener.getsockname()[1])
        guest.begin()
        for _ in range(3):
            listener.accept()[0].close()
        guest.end()
    assert capfd.readouterr().err == ""


_ENDS_INSIDE = """
import os, sys, time
from ncclwatch.contract.machine.private_dirs import open_private
from ncclwatch.rank.agents.store_client import StoreGone
from ncclwatch.rank.agents.store_exchange import Exchange

class Late:
    def __del__(self, write=os.write, sleep=time.sleep, told=int(sys.argv[3])):
        write(told, b".")
        sleep(0.5)  # without the GIL, which the thread would take as soon as the store has answered

Exchange(open_private(sys.argv[1]), "0-1.ring", ("127.0.0.1", int(sys.argv[2])), nodes=2).begin()
sys.modules["late"] = Late()
sys.stdin.readline()
"""


def test_an_interpreter_that_ends_while_the_thread_waits_for_the_store_ends_as_ever(tmp_path: Path):
    open_private(str(tmp_path / "b"), make=True).close()
    read, write = os.pipe()
    with contextlib.ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        port = str(listener.getsockname()[1])
        rank = subprocess.Popen(
            [sys.executable, "-c", _ENDS_INSIDE, str(tmp_path / "b"), port, str(write)], pass_fds=(write,),
            stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        os.close(write)
        lines = [stack.enter_context(listener.accept()[0])]
        if not lines[0].recv(1):  # only to see whether somebody listens
            lines.append(stack.enter_context(listener.accept()[0]))
        assert rank.stdin is not None
        rank.stdin.write("\n")
        rank.stdin.flush()
        assert select.select([read], [], [], 30)[0]
        os.close(read)
        for line in lines:
            line.close()
        assert rank.communicate(timeout=30)[1] == ""
    assert rank.returncode == 0


def test_the_thread_carries_it_and_ends(tmp_path: Path, store: dist.TCPStore):
    host, offer, _ = node(tmp_path / "a", store.port)
    guest, _, found = node(tmp_path / "b", store.port)
    offer.write_bytes(b"one")
    host.begin()
    guest.begin()
    deadline = time.monotonic() + 20
    while not found.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    host.end()
    guest.end()


def test_where_the_store_is_comes_from_the_call(store: dist.TCPStore):
    environ = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    assert endpoint_of({}, environ) == ("node0", 29500)
    assert endpoint_of({"init_method": "env://"}, environ) == ("node0", 29500)
    assert endpoint_of({"init_method": "tcp://node1:1234"}, environ) == ("node1", 1234)
    assert endpoint_of({"init_method": "file:///shared/x"}, environ) is None
    assert endpoint_of({"store": dist.PrefixStore("a", dist.PrefixStore("b", store))}, environ) == (
        "127.0.0.1", store.port,
    )  # fmt: skip
    assert endpoint_of({"store": dist.HashStore()}, environ) is None
    assert endpoint_of({}, {}) is None


def test_only_a_job_without_a_named_server_wants_it():
    assert is_wanted({})
    assert not is_wanted({config.ENV_SHARE: "0"})
    assert not is_wanted({config.ENV_SERVER: "http://head:8470"})


def test_many_nodes_together_ask_the_store_no_more_often():
    assert (look_s(0, 2), look_s(1000, 2)) == (SOON_S, LATER_S)
    assert look_s(0, 12_500) == pytest.approx(25.0)
