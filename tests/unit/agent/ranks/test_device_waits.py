"""When an unfinished operation of a device is old enough for a server to look at the job."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclwatch.contract.model.rank import Op, WaitKind
from ncclwatch.contract.ring.layout import OPS, Flag, PeerFlag, PeerWord
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile
from ncclwatch_agent.ranks.device_waits import DeviceHabit, MessageAges

S = 1_000_000_000


def told(*ages_s: float) -> list[float]:
    habit = DeviceHabit()
    return [habit.unusual_s(age_s) for age_s in ages_s]


def test_the_first_wait_is_unusual_whatever_its_age():
    assert told(0.0, 1.0, 2.0) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(("age_s", "unusual"), [(7.9, False), (8.0, True)])
def test_a_job_whose_steps_take_four_seconds_is_looked_at_after_eight(age_s: float, unusual: bool):
    steps = [1.0, 2.0, 3.0, 4.0] * 5
    assert bool(told(*steps, 0.1, age_s)[-1]) is unusual


def test_one_long_wait_does_not_make_a_job_wait_long():
    steps = [1.0, 60.0, *[0.9, 0.1] * 20]
    assert told(*steps, 2.0)[-1] == 2.0


@pytest.mark.parametrize(("age_s", "unusual"), [(19.9, False), (20.0, True)])
def test_patience_has_a_bound(age_s: float, unusual: bool):
    assert bool(told(*[300.0, 1.0] * 9, age_s)[-1]) is unusual


class Stage:
    """A rank of a pipeline, and what its pulse has told of its messages."""

    def __init__(self, path: Path) -> None:
        self.ring = RingFile(str(path), rank=1, local_rank=0, world=(3, 3), attempt=0)
        self.ring.clock = lambda: self.now_ns
        self.now_ns = S
        self.recorder = Recorder(self.ring)
        self.group = self.recorder.add_group("pp", "", [0, 1, 2], 0)
        self.recorder.flag(self.group, Flag.ASYNC)
        self.ages = MessageAges()

    def issue(self, op: Op, peer: int, at_s: float) -> None:
        self.now_ns = int(at_s * S)
        self.recorder.issue(self.group, OPS.index(op), 4, (peer, 1, 0), 0)

    def tell(self, row: int, word: int, value: int) -> None:
        self.ring.set_peer(row, (value,), word)

    def flags(self, row: int, flags: int) -> None:
        self.tell(row, PeerWord.GROUP_AND_FLAGS, self.group.number | flags << 16)

    def oldest(self, at_s: float) -> tuple[int, WaitKind, float] | None:
        with Ring(self.ring.path) as ring:
            found = self.ages.oldest(ring, ring.groups(), int(at_s * S))
        return None if found is None else (found.peer, found.kind, found.age_s)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    found = Stage(tmp_path / "1-1.ring")
    yield found
    found.ring.close()


def test_the_oldest_message_that_the_device_is_in_is_the_one_it_waits_in(stage: Stage):
    for at_s in (1, 2, 3):
        stage.issue(Op.RECV, 0, at_s)
        stage.issue(Op.SEND, 2, at_s + 0.5)
    stage.tell(0, PeerWord.RECVS_COMPLETED, 1)
    stage.tell(1, PeerWord.SENDS_COMPLETED, 1)
    stage.flags(0, PeerFlag.TOLD | PeerFlag.RECEIVING)
    stage.flags(1, PeerFlag.TOLD | PeerFlag.SENDING)
    assert stage.oldest(10) == (0, WaitKind.RECV, 8.0)
    stage.tell(0, PeerWord.RECVS_COMPLETED, 3)
    stage.flags(0, PeerFlag.TOLD)
    assert stage.oldest(10) == (2, WaitKind.SEND, 7.5)
    stage.tell(1, PeerWord.SENDS_COMPLETED, 2)
    assert stage.oldest(10) == (2, WaitKind.SEND, 6.5)


def test_while_a_group_goes_on_issuing_nobody_tells_which_message_its_device_is_in(stage: Stage):
    stage.issue(Op.RECV, 0, 1)
    stage.flags(0, PeerFlag.TOLD | PeerFlag.RECEIVING)
    stage.recorder.flag(stage.group, Flag.BLIND)
    assert stage.oldest(10) is None
