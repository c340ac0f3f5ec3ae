"""Where a rank's worker server listens, and that what is tried before it starts leaves nothing behind."""

import os
import socket
import threading
from pathlib import Path

import pytest

from ncclwatch.contract import config
from ncclwatch.contract.network import sockets
from ncclwatch.rank import torch_versions, worker_server


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(config.ENV_WITNESS, raising=False)
    monkeypatch.delenv(torch_versions.USERS_WORKER_SOCKET, raising=False)


def test_each_process_has_a_socket_of_its_own_beside_the_rings() -> None:
    mine = worker_server.socket_of_this_rank("/run/ncclwatch-7")
    assert Path(mine).parent == Path("/run/ncclwatch-7")
    assert Path(mine).name.startswith(f"{os.getpid()}-")
    assert sockets.worker_socket("/d", 5, 0x1F) == "/d/5-1f.sock"


def test_the_users_own_worker_server_is_asked_and_none_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = str(tmp_path / "mine.sock")
    monkeypatch.setenv(torch_versions.USERS_WORKER_SOCKET, own)
    monkeypatch.setattr(torch_versions, "worker_server", lambda: _must_not_start)
    assert worker_server.socket_of_this_rank("/run") == own
    worker_server.start(own)


def _must_not_start(path: str) -> object:
    raise AssertionError(path)


def test_there_is_none_where_it_is_not_wanted_or_torch_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_versions, "worker_server", lambda: None)
    assert worker_server.socket_of_this_rank("/run") == ""
    monkeypatch.setattr(torch_versions, "worker_server", lambda: _must_not_start)
    monkeypatch.setenv(config.ENV_WITNESS, "0")
    assert worker_server.socket_of_this_rank("/run") == ""
    worker_server.start("")


def test_where_no_thread_can_be_made_torch_is_never_asked_to_make_eight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(torch_versions, "worker_server", lambda: _must_not_start)
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="new thread"):
        worker_server.start(str(tmp_path / "a.sock"))
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_bound_torch_is_never_asked_to_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_versions, "worker_server", lambda: _must_not_start)
    with pytest.raises(OSError):
        worker_server.start(str(tmp_path / "no_such_directory" / "a.sock"))


@pytest.mark.parametrize("depth", [1, 12])
def test_a_socket_is_reached_however_long_its_path_is(tmp_path: Path, depth: int) -> None:
    place = tmp_path.joinpath(*["a_long_name"] * depth)
    place.mkdir(parents=True)
    path = f"{place}/7-1.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        with sockets.short_path(path) as short:
            assert len(short.encode()) <= sockets.PATH_BYTES_MAX
            listener.bind(short)
        listener.listen(1)
        assert Path(path).is_socket()
        with sockets.short_path(path) as short:
            client.connect(short)


def test_a_thread_that_is_inside_of_a_call_on_a_descriptor_is_seen() -> None:
    reading, writing = os.pipe()
    thread = threading.Thread(target=os.read, args=(reading, 1))
    assert not worker_server._is_called_on(reading)
    thread.start()
    worker_server._await_accept(reading)
    assert worker_server._is_called_on(reading)
    os.write(writing, b"x")
    thread.join()
    assert not worker_server._is_called_on(reading)
    os.close(reading)
    os.close(writing)
