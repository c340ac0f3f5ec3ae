"""Which calls of init_process_group begin an exchange, and that none of them fails by it."""

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ncclwatch.contract.machine.private_dirs import open_private
from ncclwatch.rank import attach
from ncclwatch.rank.agents import store_exchange

CALL = {"init_method": "tcp://127.0.0.1:1"}


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Be rank 2 of 4, the first one on the second node, and record."""
    with open_private(str(tmp_path / "b"), make=True) as place:
        ring = SimpleNamespace(place=place, file_name="2-1.ring", set_word=lambda *_: None)
        monkeypatch.setattr(attach, "_recorder", SimpleNamespace(ring=ring))
        monkeypatch.setattr(attach, "_place", (2, 4))
        monkeypatch.setattr(attach, "_exchange", None)
        monkeypatch.setattr(attach, "_said", set())
        for name, value in {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
            monkeypatch.setenv(name, value)
        yield monkeypatch
        if attach._exchange is not None:
            attach._exchange.end()


def test_a_thread_that_cannot_be_started_is_no_failure_of_init_process_group(rank: pytest.MonkeyPatch):
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    rank.setattr(store_exchange.quiet_threads, "start", start)
    with pytest.warns(RuntimeWarning, match="can't start new thread"):
        attach._begin_if_rank(CALL)


def test_another_store_is_used_from_the_next_call_on(rank: pytest.MonkeyPatch):
    attach._begin_if_rank(CALL)
    first = attach._exchange
    attach._begin_if_rank({"init_method": "tcp://127.0.0.1:2"})
    assert first is not None and first._over.is_set()
    assert attach._exchange is not None and attach._exchange._endpoint == ("127.0.0.1", 2)


def test_a_call_without_such_a_store_leaves_the_one_before(rank: pytest.MonkeyPatch):
    attach._begin_if_rank(CALL)
    first = attach._exchange
    attach._begin_if_rank({"init_method": "file:///shared/x"})
    assert first is not None and attach._exchange is first and not first._over.is_set()


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(("number", "wanted"), [(0, True), (1, True), (2, False), (3, False), (4, True), (6, False)])
def test_the_first_two_ranks_of_each_node_look(rank: pytest.MonkeyPatch, number: int, *, wanted: bool, named: bool):
    rank.setenv("LOCAL_WORLD_SIZE", "4")
    if named:
        rank.setenv("LOCAL_RANK", str(number % 4))
    else:
        rank.delenv("LOCAL_RANK")
    rank.setattr(attach, "_place", (number, 8))
    attach._begin_if_rank(CALL)
    assert (attach._exchange is not None) is wanted
