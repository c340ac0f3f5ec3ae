"""Which sends and receives on a device come before all that their thread issues later."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ncclwatch.contract.model.rank import Op
from ncclwatch.contract.ring.layout import OPS
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.rank.operations import Issued
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile

ALL_REDUCE, SEND, RECV = (OPS.index(op) for op in (Op.ALL_REDUCE, Op.SEND, Op.RECV))


class Work:
    """One that is never asked."""

    def is_completed(self) -> bool:
        raise AssertionError("asked")


class Rank:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.ring = RingFile(str(path), rank=1, local_rank=0, world=(3, 3), attempt=0)
        self.recorder = Recorder(self.ring)
        self.group = self.recorder.add_group("pp", "", [0, 1, 2], 0)
        self.group.by_account = self.group.on_device = True

    def issue(self, op: int, peer: int) -> tuple[Issued, Work]:
        issued, work = self.recorder.issue(self.group, op, 4, (peer, 1, 0), 0), Work()
        self.recorder.track(issued, work)
        return issued, work

    def wait(self, work: object) -> None:
        self.recorder.meter(self.recorder.open_works[id(work)], 1)

    def waited(self) -> list[tuple[int, int, int]]:
        with Ring(str(self.path)) as ring:
            return [(row.peer, row.sends_waited, row.recvs_waited) for row in ring.peers()]


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    found = Rank(tmp_path / "1-1.ring")
    yield found
    found.ring.close()


def test_a_message_counts_that_was_waited_for_before_any_collective_came(rank: Rank) -> None:
    _, first = rank.issue(RECV, 0)
    rank.wait(first)
    _, second = rank.issue(RECV, 0)
    rank.issue(SEND, 2)
    rank.wait(second)
    _, third = rank.issue(SEND, 2)
    rank.issue(ALL_REDUCE, -1)
    rank.wait(third)
    assert rank.waited() == [(0, 0, 2), (2, 0, 0)]


def test_all_messages_of_a_batch_count_whose_work_was_waited_for(rank: Rank) -> None:
    rank.recorder.begin_batch()
    for op, peer in ((RECV, 0), (SEND, 2), (SEND, 2)):
        rank.recorder.issue(rank.group, op, 4, (peer, 1, 0), 0)
    work = Work()
    rank.recorder.end_batch(work)
    rank.issue(SEND, 0)
    rank.wait(work)
    assert rank.waited() == [(0, 0, 1), (2, 2, 0)]


def test_a_batch_without_a_work_or_without_messages_is_none(rank: Rank) -> None:
    for work in (None, Work()):
        rank.recorder.begin_batch()
        rank.recorder.end_batch(work)
    rank.recorder.begin_batch()
    rank.recorder.issue(rank.group, SEND, 4, (2, 1, 0), 0)
    rank.recorder.end_batch(None)
    assert rank.recorder.open_works == {}
    issued, work = rank.issue(SEND, 2)
    assert (issued.batch, rank.recorder.open_works[id(work)]) == (None, issued)


@pytest.mark.parametrize(("current", "waited"), [("default", 1), ("another", 0)])
def test_wait_in_another_stream_orders_nothing_outside_of_that(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, current: str, waited: int
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda _: "default")
    _, work = rank.issue(RECV, 0)
    rank.wait(work)
    assert rank.waited() == [(0, 0, waited)]
