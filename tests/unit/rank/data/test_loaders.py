"""Batches of a loop are counted, in all and by data bucket."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ncclwatch.contract import config
from ncclwatch.contract.ring import views
from ncclwatch.contract.ring.layout import LoaderFlag
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.rank.data.loaders import Loaders, Pass, bucket_of, bucket_words, length_of
from ncclwatch.rank.patches import guarded
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile
from ncclwatch.rank.where.call_sites import Sites


class Tensor:
    """What looks like a tensor."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[RingFile]:
    ring = RingFile(str(tmp_path / "0.ring"), rank=0, local_rank=0, world=(1, 1), attempt=0)
    yield ring
    ring.close()


def loaders(ring: RingFile) -> Loaders:
    """Return the loops of a ring."""
    return Loaders(ring, Sites(ring))


@pytest.mark.parametrize(
    ("batch", "bucket"),
    [
        (Tensor(8, 3), (8, 3)),
        ((Tensor(8, 3), Tensor(8)), (8, 3)),
        (["name", 3, Tensor(4)], (4,)),
        ({"id": 7, "image": Tensor(2, 2)}, (2, 2)),
        ({"inputs": {"ids": Tensor(1, 9)}}, (1, 9)),
        ([[], (), Tensor(5)], (5,)),
        ((Tensor(), 1), ()),
        (7, None),
        ("text", None),
        ([], None),
        ([1, 2], None),
    ],
)
def test_the_bucket_of_a_batch_is_the_shape_of_its_first_tensor(batch: object, bucket: object):
    assert bucket_of(batch) == bucket


def test_a_bucket_has_a_short_name():
    assert bucket_words((8, 3, 32, 64)) == "8x3x32x64"
    assert bucket_words(()) == "scalar"
    assert bucket_words("wide") == "wide"
    assert bucket_words(1.5) == "1.5"
    assert len(bucket_words("w" * 1000).encode()) == 60


def test_a_loader_without_a_length_has_none():
    assert [length_of(each) for each in ([1, 2], iter([1]), object())] == [2, 0, 0]


def test_batches_are_counted_by_bucket_and_pass(ring: RingFile):
    loops = loaders(ring)
    first = loops.begin([], 0)
    for bucket in ((8, 3), (8, 3), (8, 5), None):
        loops.count_bucket(first, bucket)
    second = Pass(first.row, 2)
    loops.count_bucket(second, (8, 3))

    with Ring(ring.path) as reader:
        assert [tuple(row)[:4] for row in reader.buckets()] == [(0, "8x3", 2, 1), (0, "8x5", 1, 1)]


def test_shapes_without_end_are_counted_together_and_nothing_counts_as_lost(ring: RingFile):
    loops = loaders(ring)
    this = loops.begin([], 0)
    for length in range(config.BUCKETS_PER_LOADER_MAX + 10):
        loops.count_bucket(this, (8, length))

    with Ring(ring.path) as reader:
        rows = reader.buckets()
        assert len(rows) == config.BUCKETS_PER_LOADER_MAX + 1
        assert (rows[-1].name, rows[-1].drawn) == ("other shapes", 10)
        assert ring.word(11) == 0  # Word.DROPPED


def test_a_pass_that_something_keeps_together_is_marked_and_the_next_one_is_not(ring: RingFile):
    loops = loaders(ring)
    flags = []
    for even, joined in ((True, 0), (False, 1), (False, 0)):
        loops.joined = joined
        loops.begin([], 0, even=even)
        with Ring(ring.path) as reader:
            flags.append(reader.newest_loader().flags)

    assert flags == [LoaderFlag.EVEN, LoaderFlag.EVEN, 0]


def test_the_newest_loader_is_the_one_that_gave_a_batch_last(ring: RingFile):
    loops = loaders(ring)
    outer = loops.begin([1], 0)
    inner = loops.begin([1, 2], 0)
    with Ring(ring.path) as reader:
        assert reader.newest_loader().number == inner.row
        loops.count(outer.row, 1)
        assert reader.newest_loader().number == outer.row


def test_each_place_that_draws_from_one_pass_is_named(ring: RingFile):
    recorder = Recorder(ring)
    this = recorder.loaders.begin([], 0)
    seen = []
    for draw in (_warm_up, _train, _train, _warm_up):
        outer = draw(recorder, this)
        with Ring(ring.path) as reader:
            (thread,) = reader.threads()
            assert thread.wait is not None
            seen.append(views.parse_site(reader.string(thread.wait.site)).function)
        guarded.leave(recorder, outer)

    assert seen == ["_warm_up", "_train", "_train", "_warm_up"]


def _warm_up(recorder: Recorder, this: Pass) -> bytes | None:
    return guarded.enter_draw(recorder, this, 1)


def _train(recorder: Recorder, this: Pass) -> bytes | None:
    return guarded.enter_draw(recorder, this, 1)


def begun_at_one_line(
    known: Loaders, one: object, other: object, then: Callable[[Pass], None] = lambda _: None
) -> list[Pass]:
    """Begin passes at one line, and do something with each."""
    found = []
    for each in (one, other):
        found.append(known.begin(each, 1))
        then(found[-1])
    return found


def test_loaders_that_a_loop_draws_from_together_are_one_pass_as_long_as_the_shortest(ring: RingFile):
    known = loaders(ring)
    first, second = begun_at_one_line(known, range(9), range(7))

    assert (first.number, second.number, second.row) == (1, 1, first.row)
    with Ring(ring.path) as read:
        (row,) = read.loaders()
    assert (row.passes, row.length) == (1, 7)


def test_a_pass_that_has_given_a_batch_is_not_drawn_from_together_with_the_next(ring: RingFile):
    known = loaders(ring)
    first, second = begun_at_one_line(known, range(9), range(7), then=lambda this: known.count(this.row, draw(this)))

    assert (first.number, second.number) == (1, 2)


def test_a_pass_that_ended_without_a_batch_is_not_drawn_from_together_with_the_next(ring: RingFile):
    known = loaders(ring)
    first, second = begun_at_one_line(known, (), range(7), then=known.end)

    assert (first.number, second.number) == (1, 2)


def test_a_pass_that_nobody_holds_any_more_is_not_drawn_from_together_with_the_next(ring: RingFile):
    known = loaders(ring)
    numbers = [known.begin(range(length), 1).number for length in (9, 7)]

    assert numbers == [1, 2]


def test_iterators_of_one_line_that_are_not_drawn_from_in_turn_are_passes_of_their_own(ring: RingFile):
    recorder = Recorder(ring)
    first, second = begun_at_one_line(recorder.loaders, range(9), range(7))
    for _ in range(2):
        recorder.count_drawn(second, None)

    assert (first.row, second.number) == (-1, 2)
    with Ring(ring.path) as read:
        (row,) = read.loaders()
    assert (row.passes, row.drawn, row.length, row.flags) == (2, 2, 0, 0)


def test_iterators_of_one_line_that_are_drawn_from_in_turn_stay_together(ring: RingFile):
    recorder = Recorder(ring)
    both = begun_at_one_line(recorder.loaders, range(9), range(7))
    for this in both * 5:
        recorder.count_drawn(this, None)

    assert [(this.row, this.number) for this in both] == [(both[0].row, 1)] * 2
    with Ring(ring.path) as read:
        (row,) = read.loaders()
    assert (row.passes, row.drawn, row.length) == (1, 5, 7)


def test_a_pass_after_iterators_that_were_taken_apart_has_a_number_that_none_of_them_has(ring: RingFile):
    recorder = Recorder(ring)
    numbers = []
    for loaders_of_it in ((range(9), range(7)), (range(9), range(7))):
        both = begun_at_one_line(recorder.loaders, *loaders_of_it)
        for _ in range(2):
            recorder.count_drawn(both[0], None)
        numbers.append(both[0].number)

    assert numbers == [1, 3]


def draw(this: Pass) -> int:
    """Count a batch of a pass."""
    this.drawn += 1
    return this.drawn
