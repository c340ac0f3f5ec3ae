"""The time of Python's garbage collector is measured, and nothing of ours is Python while it runs."""

import gc
import time
import types
from collections.abc import Iterator

import pytest

from ncclwatch.contract.ring.layout import Word
from ncclwatch.rank.patches import collector


@pytest.fixture
def words() -> Iterator[memoryview]:
    """The words of a ring, in which the collector's time is added up."""
    words = memoryview(bytearray(8 * 64)).cast("Q")
    collector.begin(words)
    yield words
    collector.end()


def test_the_time_of_each_collection_is_added_up(words: memoryview):
    began = time.monotonic_ns()
    gc.collect()
    once = words[Word.GC_NS]
    gc.collect()
    took = time.monotonic_ns() - began
    assert took / 2 < words[Word.GC_NS] < took
    assert 0 < once < words[Word.GC_NS]
    assert sum(words) == words[Word.GC_NS]


def test_what_the_collector_calls_is_not_python(words: memoryview):
    called = gc.callbacks[-1]
    assert not [each for each in gc.get_referents(called) if isinstance(each, types.FunctionType)]
    phases = called.args[0]
    assert isinstance(phases.begin, types.MethodWrapperType)
    assert isinstance(phases.end, types.MethodWrapperType)


def test_after_the_end_the_collector_calls_nothing_of_ours(words: memoryview):
    collector.end()
    before = words[Word.GC_NS]
    gc.collect()
    assert words[Word.GC_NS] == before


def test_a_second_ring_takes_the_place_of_the_first(words: memoryview):
    other = memoryview(bytearray(8 * 64)).cast("Q")
    collector.begin(other)
    before = words[Word.GC_NS]
    gc.collect()
    assert words[Word.GC_NS] == before
    assert other[Word.GC_NS] > 0
