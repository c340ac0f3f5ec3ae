"""How a rank stands still, and what it is taken for. Whoever went on after an exception is told of that."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import ProcessState
from ncclwatch_server.judge.rules.frames.standstill import what_words
from ncclwatch_server.judge.theory.case import open_case
from ncclwatch_server.judge.theory.stillness import (
    Stillness,
    Trouble,
    may_wait_for_another,
    signs_of,
    still_s_of,
    stillness,
    works,
)
from tests.scenarios.situation import Situation


def situation(*lines: str) -> Situation:
    found = Situation()
    for line in (
        "world 2", "group dp 0-1", "history 0 dp#1-3 all_reduce train.py:44", "at 0 train.py:90 still 9",
        "in 1 dp#4 barrier train.py:60 for 9", *lines,
    ):  # fmt: skip
        found.run(line)
    return found


def judged(found: Situation) -> Stillness:
    snapshot = found.snapshot()
    still = stillness(open_case(snapshot), snapshot.ranks[0])
    assert still is not None
    return still


def told(found: Situation) -> str:
    return what_words(found.snapshot().ranks[0], judged(found))


@pytest.mark.parametrize(
    ("exception", "ago_s", "trouble"),
    [
        ("ValueError: bad label", 59.0, Trouble.EXCEPTION),
        ("ValueError: bad label", 60.0, Trouble.EXCEPTION),
        ("ValueError: bad label", 61.0, Trouble.ELSEWHERE),  # it has issued something since
        ("", 0.0, Trouble.ELSEWHERE),
    ],
)
def test_a_rank_that_went_on_after_an_exception_is_told_of_it(exception: str, ago_s: float, trouble: Trouble):
    """Its newest operation was issued a minute ago."""
    found = situation()
    found.ranks[0] = replace(found.ranks[0], last_exception=exception, last_exception_s=ago_s)
    assert judged(found).trouble is trouble


def test_an_exception_before_any_operation_is_not_taken_for_one_that_it_went_on_after():
    found = situation()
    found.ranks[0] = replace(found.ranks[0], history=(), last_exception="KeyError: 'x'", last_exception_s=900.0)
    assert judged(found).trouble is Trouble.ELSEWHERE


@pytest.mark.parametrize(
    ("lines", "trouble"),
    [
        (("at 0 train.py:90 still 9 in data",), Trouble.DATA),
        (("at 0 train.py:90 still 9 in save",), Trouble.SAVE),
        (("work 0 CHECKPOINT",), Trouble.SAVE),
        (("work 0 COMPILE",), Trouble.ELSEWHERE),
        (('source 0 train.py:90 loop "while not os.path.exists(path)" lines 89-91',), Trouble.FILES),
        (('source 0 train.py:90 loop "while not ready" lines 89-91',), Trouble.ELSEWHERE),
        (("gil 0 for 9",), Trouble.ELSEWHERE),
        (("at 0 train.py:90 still 9 in data", "gil 0 for 9"), Trouble.DATA),
        (("at 0 train.py:90 still 9 in save", "gil 0 for 9"), Trouble.SAVE),
        (("stopped 0 for 9",), Trouble.STOPPED),
    ],
)
def test_what_a_rank_that_stands_still_is_taken_for(lines: tuple[str, ...], trouble: Trouble):
    assert judged(situation(*lines)).trouble is trouble


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("at 0 train.py:90 still 9 in data",), "it is blocked in its data loader"),
        (("gil 0 for 9",), "native code holds the GIL and uses no CPU"),
        (
            ("at 0 train.py:90 still 9 in data", "gil 0 for 9"),
            "native code holds the GIL and uses no CPU, in its data loader",
        ),
        (("disk 0 train.py:90 for 9",), "it is in uninterruptible sleep (state D)"),
        (("disk 0 train.py:90 for 9", "gil 0 for 9"), "it is in uninterruptible sleep (state D)"),
        (("lock 0 pid /tmp/x train.py:90 for 9",), "it waits for the lock on /tmp/x, held by pid 999"),
        (("unattached 0",), "it has not called ncclwatch.attach() yet and shows no activity"),
        ((), "it is outside every collective and shows no activity"),
        (('handling 0 "KeyError: x"',), "it is handling KeyError: x"),
    ],
)
def test_how_a_rank_stands_still_is_told(lines: tuple[str, ...], words: str):
    assert told(situation(*lines)) == words


def test_a_debugger_is_told_from_a_stop():
    found = situation("stopped 0 for 9")
    assert told(found) == "stopped by SIGSTOP"
    found.process(0, state=ProcessState.TRACED)
    assert told(found) == "stopped by a debugger"


@pytest.mark.parametrize(
    ("lines", "signs"),
    [
        ((), (9.0, 9.0, 9.0)),
        (("refused 0",), (9.0, 9.0)),
        (("gil 0 for 2.9 cpu=8 io=7",), (8.0, 7.0, 9.0)),
        (("gil 0 for 3 cpu=8 io=7",), (8.0, 7.0, 3.0)),
        (("unattached 0",), (9.0, 9.0)),
    ],
)
def test_each_sign_is_seen_in_another_way(lines: tuple[str, ...], signs: tuple[float, ...]):
    found = situation(*lines)
    assert signs_of(found.ranks[0]) == signs
    assert still_s_of(found.ranks[0]) == min(signs)


@pytest.mark.parametrize(("enqueued", "at_work"), [(3, False), (0, True)])
def test_a_host_that_reads_from_a_device_of_which_nobody_knows_more_shows_no_sign_of_work(enqueued: int, at_work: bool):
    """It may spin there for what another rank does not send."""
    found = situation("at 0 train.py:90 still 0 cpu 0", "host 0 train.py:90 for 9 calling item spins")
    groups = tuple(replace(each, blind=True, enqueued=enqueued) for each in found.ranks[0].groups)
    assert works(replace(found.ranks[0], groups=groups)) is at_work


@pytest.mark.parametrize(("calling", "trouble"), [("sleep", Trouble.LOCK_FILE), ("read", Trouble.EXCEPTION)])
def test_who_sleeps_beside_a_lock_file_waits_for_that(calling: str, trouble: Trouble):
    found = situation("lock_file 0 /tmp/build/lock")
    (thread,) = found.ranks[0].threads
    found.ranks[0] = replace(found.ranks[0], threads=(replace(thread, calling=calling),))
    assert judged(found).trouble is trouble


def test_one_sign_alone_is_not_enough():
    found = situation("refused 0", "unattached 0")
    assert still_s_of(found.ranks[0]) == 0.0
    assert not works(found.ranks[0])


@pytest.mark.parametrize(
    ("lines", "may"),
    [
        ((), True),
        (("disk 0 train.py:90 for 9",), False),
        (("gil 0 for 9",), False),
        (("at 0 train.py:90 still 9 in data",), False),
    ],
)
def test_only_who_stands_still_for_no_trouble_of_its_own_may_wait_for_another(lines: tuple[str, ...], may: bool):
    found = situation(*lines)
    assert may_wait_for_another(found.ranks[0], judged(found)) is may
