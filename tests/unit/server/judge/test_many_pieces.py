"""The judge's work grows with a job of many small groups as the job does, and not with its square."""

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from ncclwatch_server.judge import judge
from tests.scenarios.texts import situation

GROWTH_MAX = 2.4  # calls for twice as many pairs: twice as many, and what sorting adds; a square would be four
STILL = "at {a} train.py:30 still 9\nin {b} {g}#4 all_reduce train.py:44 for 9"
STILL_ELSEWHERE = "at {a} train.py:{b} still 9\nin {b} {g}#4 all_reduce train.py:44 for 9"
LATE = "at {a} train.py:30 still 0\nin {b} {g}#4 all_reduce train.py:44 for 9"
LATE_FOR_LONG = "at {a} train.py:{b} still 0\nin {b} {g}#4 all_reduce train.py:44 for 900"
INSIDE = "in {a}-{b} {g}#4 all_reduce train.py:44 for 90"
MISMATCH = "in {a} {g}#4 all_reduce train.py:44 for 9\nin {b} {g}#4 all_gather train.py:45 for 9"
LEFT = "ended {a} exit 0\nin {b} {g}#4 all_reduce train.py:44 for 9"
CRASHED = "ended {a} signal 11\nin {b} {g}#4 all_reduce train.py:44 for 9"
SILENT = "silent {a} for 20\nin {b} {g}#4 all_reduce train.py:44 for 9"
OUT_OF_DATA = "loader {a} data.py:9 pass 1 drawn 3 exhausted\nloader {b} data.py:9 pass 1 drawn 5\n" + STILL


@pytest.mark.parametrize(
    "pair",
    [
        STILL, STILL_ELSEWHERE, LATE, LATE_FOR_LONG, INSIDE, MISMATCH, LEFT, CRASHED, SILENT, OUT_OF_DATA,
    ],
)  # fmt: skip
def test_twice_as_many_pairs_are_twice_the_work(pair: str):
    once, twice = pairs(pair, 60), pairs(pair, 120)
    assert calls_in(lambda: judge(twice)) <= GROWTH_MAX * calls_in(lambda: judge(once))


def pairs(text: str, count: int):
    """Return a job of so many groups of two, each in one situation."""
    groups = [f"group g{a} {a}-{a + 1}" for a in range(0, 2 * count, 2)]
    each = [text.format(g=f"g{a}", a=a, b=a + 1) for a in range(0, 2 * count, 2)]
    return situation("\n".join((f"world {2 * count}", *groups, *each))).snapshot()


def calls_in(work: Callable[[], object]) -> int:
    """Return how many functions of Python were called or resumed."""
    count = 0

    def note(_frame: FrameType, event: str, _what: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
