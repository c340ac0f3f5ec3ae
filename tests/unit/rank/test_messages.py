"""Which sends and receives on a device come before all that their thread issues later."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ncclwatch.contract.model.rank import Op
from ncclwatch.contract.ring.layout import OPS, WAITED_RUN_MAX, waited_span, waited_word
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

    def waited(self) -> list[tuple[int, list[int], list[int]]]:
        with Ring(str(self.path)) as ring:
            return [
                (row.peer, _span(row.sends_waited, row.sends), _span(row.recvs_waited, row.recvs))
                for row in ring.peers()
            ]  # fmt: skip


def _span(word: int, issued: int) -> list[int]:
    first, last = waited_span(word, issued)
    return list(range(first, last + 1))


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
    assert rank.waited() == [(0, [], [1, 2]), (2, [], [])]


def test_all_messages_of_a_batch_count_whose_work_was_waited_for(rank: Rank) -> None:
    rank.recorder.begin_batch()
    for op, peer in ((RECV, 0), (SEND, 2), (SEND, 2)):
        rank.recorder.issue(rank.group, op, 4, (peer, 1, 0), 0)
    work = Work()
    rank.recorder.end_batch(work)
    rank.issue(SEND, 0)
    rank.wait(work)
    assert rank.waited() == [(0, [], [1]), (2, [1, 2], [])]


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


@pytest.mark.parametrize(("current", "waited"), [("default", [1]), ("another", [])])
def test_wait_in_another_stream_orders_nothing_outside_of_that(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, current: str, waited: list[int]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda _: "default")
    _, work = rank.issue(RECV, 0)
    rank.wait(work)
    assert rank.waited() == [(0, [], waited)]


def test_a_message_that_was_waited_for_after_a_collective_does_not_count_because_a_later_one_does(rank: Rank) -> None:
    _, first = rank.issue(RECV, 0)
    rank.wait(first)
    _, beside = rank.issue(RECV, 0)
    rank.issue(ALL_REDUCE, -1)  # under way beside it
    rank.wait(beside)
    assert rank.waited() == [(0, [], [])]
    for expected in ([3], [3, 4]):
        _, work = rank.issue(RECV, 0)
        rank.wait(work)
        rank.wait(work)
        assert rank.waited() == [(0, [], expected)]
    rank.issue(RECV, 0)
    _, newest = rank.issue(RECV, 0)
    rank.wait(newest)
    assert rank.waited() == [(0, [], [6])]


@pytest.mark.parametrize("newest", [1, 5, (1 << 20) - 1, 1 << 20, (1 << 20) + 7, 3 << 20])
def test_a_word_tells_the_messages_up_to_the_newest(newest: int) -> None:
    for ahead in (0, 1, 4000):
        assert waited_span(waited_word(newest, 1), newest + ahead) == (newest, newest)
        assert waited_span(waited_word(newest, 0), newest + ahead) == (1, 0)
    first, last = waited_span(waited_word(10_000, 9_999), 10_000)
    assert (last - first + 1, last) == (WAITED_RUN_MAX, 10_000)
