"""What the ring says of sends and receives on a GPU, while their group issues nothing."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import Op, WaitKind
from ncclwatch.contract.ring.layout import OPS, Flag, PeerFlag
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.contract.ring.rows import PeerRow
from ncclwatch.rank.device import messages
from ncclwatch.rank.device.progress import DeviceProgress
from ncclwatch.rank.operations import RECV_WAIT, Group, Issued
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile
from tests.unit.rank.device.test_entries import Log

ALL_REDUCE, SEND, RECV = (OPS.index(op) for op in (Op.ALL_REDUCE, Op.SEND, Op.RECV))


class Rank:
    """A recorder, and a flight recorder whose entries the test writes, of one group of ranks 4, 6 and 9."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ring = RingFile(str(path), rank=6, local_rank=0, world=(12, 2), attempt=0)
        self.recorder = Recorder(self.ring)
        self.group: Group = self.recorder.add_group("0", "", [4, 6, 9], 0)
        self.group.by_account = self.group.on_device = True
        self.recorder.flag(self.group, Flag.ASYNC | Flag.BLIND)
        self.log = Log()
        self.dumps = 0
        self.progress = DeviceProgress(self.recorder, self._dump)

    def _dump(self, entries: bool) -> str:
        self.dumps += entries
        of_group = {"pg_id": 0, "process_group": ["0", "default_pg"]}
        return json.dumps({"entries": [entry | of_group for entry in self.log.entries]} if entries else {})

    def send(self, peer: int) -> Issued:
        return self.recorder.issue(self.group, SEND, 4, (peer, 1, 0), 0)

    def recv(self, peer: int) -> Issued:
        return self.recorder.issue(self.group, RECV, 4, (peer, 1, 0), 0)

    def all_reduce(self) -> Issued:
        return self.recorder.issue(self.group, ALL_REDUCE, 4, (-1, 1, 1), 0)

    def look(self, times: int = 2) -> None:
        """Let the pulse look; a group is quiet when it has issued nothing since the look before."""
        for _ in range(times):
            self.progress.look()

    @property
    def blind(self) -> bool:
        return bool(self.group.flags & Flag.BLIND)

    def rows(self) -> list[PeerRow]:
        with Ring(str(self.path)) as ring:
            return ring.peers()


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    monkeypatch.setattr(messages, "PAUSE", 0)
    found = Rank(tmp_path / "6-1.ring")
    yield found
    found.ring.close()


def test_the_ring_says_what_is_through_and_what_the_device_is_in(rank: Rank) -> None:
    for _ in range(3):
        rank.send(9)
        rank.recv(4)
    rank.all_reduce()
    for done in (True, True, False):
        rank.log.alone("nccl:send 1->2").alone("nccl:recv 1<-0", done=done)
    rank.log.alone("nccl:all_reduce", done=False)
    rank.look()
    assert not rank.blind
    assert (rank.group.enqueued, rank.group.completed) == (1, 0)
    assert rank.rows() == [
        PeerRow(0, 9, 3, 3, 0, 0, PeerFlag.TOLD),
        PeerRow(0, 4, 0, 0, 3, 2, PeerFlag.TOLD | PeerFlag.RECEIVING),
    ]


def test_nobody_knows_while_the_group_goes_on_issuing_and_nothing_is_asked(rank: Rank) -> None:
    for _ in range(4):
        rank.send(9)
        rank.log.alone("nccl:send 1->2")
        rank.look(1)
        assert rank.blind
    assert rank.dumps == 0
    rank.look(1)
    assert not rank.blind
    rank.recv(9)
    rank.look(1)
    assert rank.blind


def test_no_entries_are_asked_for_while_a_cuda_graph_is_captured(rank: Rank) -> None:
    rank.send(9)
    rank.log.alone("nccl:send 1->2")
    rank.recorder.captures = 1
    rank.look()
    assert (rank.blind, rank.dumps) == (True, 0)


def test_what_the_entries_cost_bounds_how_often_they_are_asked_for(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "PAUSE", 1e9)
    rank.send(9)
    rank.log.alone("nccl:send 1->2", done=False)
    rank.look(9)
    assert rank.dumps == 1


@pytest.mark.parametrize(("known", "outstanding"), [(False, 1), (True, 2)])
def test_a_call_that_has_not_returned_is_outstanding_whether_nccl_has_it_or_not(
    rank: Rank, known: bool, outstanding: int
) -> None:
    """The host stays in the call where the launch queue is full, and where NCCL connects two ranks."""
    rank.send(9)
    rank.log.alone("nccl:send 1->2")
    rank.look()
    if known:
        rank.recv(9)
        rank.log.alone("nccl:recv 1<-2", done=False)
    rank.recorder.enter(WaitKind.RECV, 0, rank.recv(9))
    rank.look()
    assert not rank.blind
    (row,) = rank.rows()
    assert row.recvs - row.recvs_completed == outstanding
    rank.log.alone("nccl:recv 1<-2", done=False)  # now NCCL has it: the same thread waits for it
    rank.look()
    (row,) = rank.rows()
    assert row.recvs - row.recvs_completed == outstanding


def test_an_entry_that_passes_for_complete_before_its_call_returns_is_not(rank: Rank) -> None:
    rank.send(9)
    rank.log.alone("nccl:send 1->2").alone("nccl:all_reduce").alone("nccl:recv 1<-2")
    rank.recorder.enter(WaitKind.COLLECTIVE, 0, rank.all_reduce())
    at_once = rank.ring.add_thread(77, main=False)
    rank.ring.set_wait(at_once, rank.ring.wait(0, rank.recv(9).seq, rank.group.number, RECV_WAIT, RECV, 9))
    rank.look()
    (row,) = rank.rows()
    assert (rank.blind, rank.group.enqueued, rank.group.completed) == (False, 1, 0)
    assert (row.sends_completed, row.recvs, row.recvs_completed) == (1, 1, 0)


def test_two_calls_of_which_nccl_has_one_tell_nothing(rank: Rank) -> None:
    rank.send(9)
    rank.log.alone("nccl:send 1->2")
    rank.look()
    rank.recorder.enter(WaitKind.RECV, 0, rank.recv(9))
    at_once = rank.ring.add_thread(77, main=False)
    rank.ring.set_wait(at_once, rank.ring.wait(0, 1, rank.group.number, 1, ALL_REDUCE, -1))
    rank.all_reduce()
    rank.log.alone("nccl:recv 1<-2", done=False)
    rank.look()
    assert rank.blind


def test_an_account_of_more_messages_than_were_issued_tells_nothing(rank: Rank) -> None:
    rank.send(9)
    rank.log.alone("nccl:send 1->2", done=False).alone("nccl:send 1->2", done=False)
    rank.look()
    assert rank.blind


def test_where_the_table_of_peers_is_full_nobody_knows(rank: Rank) -> None:
    rank.send(9)
    rank.log.alone("nccl:send 1->2")
    for peer in range(config.PEERS_MAX):
        rank.ring.add_peer(11, peer)
    rank.look()
    assert rank.blind
