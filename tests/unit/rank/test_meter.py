"""How long a rank is blocked is cut at the same operations on all ranks, whoever reads it and when."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import Op
from ncclwatch.contract.ring.layout import METER_SLOTS, OPS, Flag, Word
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.rank.operations import Group
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile

SUM = (-1, 1, 1)
CODE = {op: OPS.index(op) for op in Op}


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    ring = RingFile(str(tmp_path / "0-1.ring"), rank=0, local_rank=0, world=(4, 4), attempt=0)
    yield Recorder(ring)
    ring.close()


def total_ns(recorder: Recorder, word: int = Word.WAITED_NS) -> int:
    return recorder.ring.word(word)


def blocked_in(recorder: Recorder, group: Group, op: Op, blocked_ns: int, *, on_host: bool = True) -> None:
    issued = recorder.issue(group, CODE[op], 8, SUM, 0)
    issued.on_host = on_host
    recorder.meter(issued, blocked_ns)


@pytest.mark.parametrize("level", [0, 1, 3, 6, METER_SLOTS - 1])
def test_a_reader_of_any_rhythm_finds_the_total_before_the_newest_boundary(recorder: Recorder, level: int) -> None:
    choose, reader = random.Random(level), Ring(recorder.ring.path)
    seq, waits = 0, []
    for _ in range(300):
        seq += choose.choice((1, 1, 1, 2, 5, 40))
        blocked_ns = choose.randrange(1000)
        recorder.ring.meter(0, seq, blocked_ns)
        waits.append((seq, blocked_ns))
        boundary = seq >> level << level
        found = reader.meter(0, level)
        if boundary == 0:
            assert found is None
            continue
        assert found is not None
        assert found.boundary % (1 << level) == 0
        assert found.boundary <= boundary
        assert found.waited_ns == sum(ns for each, ns in waits if each < boundary)
    reader.close()


def slot_and_boundary(before: int, seq: int) -> tuple[int, int]:
    """Return the highest power of two of which a step crosses a multiple, and that multiple; tried one by one."""
    crossed = [(level, seq >> level << level) for level in range(METER_SLOTS) if seq >> level << level > before]
    return crossed[-1]


@pytest.mark.parametrize("step", [(0, 1), (1, 2), (2, 3), (3, 4), (4, 9), (5, 5 + (1 << METER_SLOTS)), (1023, 1024)])
def test_a_step_is_kept_at_the_highest_power_that_it_crosses(recorder: Recorder, step: tuple[int, int]) -> None:
    before, seq = step
    recorder.ring.meter(0, before, 3)
    recorder.ring.meter(0, seq, 4)
    slot, boundary = slot_and_boundary(before, seq)
    with Ring(recorder.ring.path) as reader:
        found = reader.meter(0, slot)
    assert found is not None
    assert (found.boundary, found.waited_ns) == (boundary, 3)


def test_the_total_is_of_all_groups_and_the_boundary_of_one(recorder: Recorder) -> None:
    wide, narrow = recorder.add_group("0", "", [0, 1, 2, 3], 0), recorder.add_group("1", "", [0, 1], 0)
    blocked_in(recorder, wide, Op.ALL_REDUCE, 5)
    blocked_in(recorder, narrow, Op.ALL_GATHER, 70)
    blocked_in(recorder, wide, Op.ALL_REDUCE, 900)
    with Ring(recorder.ring.path) as reader:
        meter = reader.meter(wide.number, 1)
    assert meter is not None
    assert (meter.boundary, meter.waited_ns) == (2, 75)
    assert total_ns(recorder) == 975


@pytest.mark.parametrize("op", [Op.BROADCAST, Op.REDUCE, Op.SCATTER, Op.GATHER, Op.MONITORED_BARRIER])
def test_who_waits_where_not_all_have_to_says_nothing(recorder: Recorder, op: Op) -> None:
    blocked_in(recorder, recorder.add_group("0", "", [0, 1], 0), op, 50)
    assert total_ns(recorder) == 0


def test_a_wait_that_blocks_no_host_is_not_counted(recorder: Recorder) -> None:
    group = recorder.add_group("0", "", [0, 1], 0)
    blocked_in(recorder, group, Op.ALL_REDUCE, 50, on_host=False)
    assert total_ns(recorder) == 0
    blocked_in(recorder, group, Op.BARRIER, 50, on_host=False)  # it has no tensor
    assert total_ns(recorder) == 50
    group.host_waits = False
    blocked_in(recorder, group, Op.ALL_REDUCE, 50)
    assert total_ns(recorder) == 50


def test_messages_are_counted_apart(recorder: Recorder) -> None:
    blocked_in(recorder, recorder.add_group("0", "", [0, 1], 0), Op.RECV, 50)
    assert (total_ns(recorder), total_ns(recorder, Word.PEERS_WAITED_NS)) == (0, 50)


def test_the_end_of_a_backward_waits_from_the_last_bucket_on(recorder: Recorder) -> None:
    group = recorder.add_group("0", "", [0, 1], 0)
    begun = recorder.begin_backward(7)
    began_ns = time.monotonic_ns()
    recorder.issue(group, CODE[Op.ALL_REDUCE], 8, SUM, 0)
    recorder.end_backward(begun)
    assert 0 < total_ns(recorder) <= time.monotonic_ns() - began_ns
    waited_ns = total_ns(recorder)
    recorder.end_backward(begun)  # what is counted is not counted again
    assert total_ns(recorder) == waited_ns


def test_a_backward_that_issues_nothing_waits_for_nothing(recorder: Recorder) -> None:
    group = recorder.add_group("0", "", [0, 1], 0)
    recorder.issue(group, CODE[Op.ALL_REDUCE], 8, SUM, 0)
    recorder.end_backward(recorder.begin_backward(7))
    assert total_ns(recorder) == 0


def test_a_backward_on_a_device_returns_before_its_collectives_are_through(recorder: Recorder) -> None:
    group = recorder.add_group("0", "", [0, 1], 0)
    recorder.flag(group, Flag.ASYNC)
    begun = recorder.begin_backward(7)
    recorder.issue(group, CODE[Op.ALL_REDUCE], 8, SUM, 0)
    recorder.end_backward(begun)
    assert total_ns(recorder) == 0


def test_groups_beyond_the_meters_count_in_the_total_only(recorder: Recorder) -> None:
    recorder.ring.meter(config.METERS_MAX, 1, 50)
    assert total_ns(recorder) == 50
    with Ring(recorder.ring.path) as reader:
        assert reader.meter(config.METERS_MAX, 0) is None


def test_what_a_batch_costs_is_counted_by_its_bucket_without_waits(recorder: Recorder) -> None:
    this = recorder.loaders.begin([0] * 9, 0)
    for shape in ((8, 3), (8, 5), (8, 3), (8, 3)):
        recorder.count_drawn(this, shape, lambda bucket: bucket)
        recorder.ring.add_time(Word.DATA_NS, 10**15)  # longer than anything that can have passed
    with Ring(recorder.ring.path) as reader:
        rows = reader.buckets()
    assert [(row.name, row.timed, row.worked_ns) for row in rows] == [("8x3", 2, 0), ("8x5", 1, 0)]


def test_after_the_end_of_a_pass_nothing_is_its_last_batch_s(recorder: Recorder) -> None:
    this = recorder.loaders.begin([0], 0)
    recorder.count_drawn(this, (8, 3), lambda bucket: bucket)
    recorder.loaders.end(this)
    recorder.count_drawn(recorder.loaders.begin([0], 0), (8, 5), lambda bucket: bucket)
    with Ring(recorder.ring.path) as reader:
        assert [row.timed for row in reader.buckets()] == [0, 0]
