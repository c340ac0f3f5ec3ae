"""Loops that end are begun anew, loops that hang are seen, and a process without its vital loop ends."""

import asyncio
import logging
import threading
import time

import pytest

from ncclwatch.contract.machine import liveness
from ncclwatch.contract.machine.liveness import (
    EXIT_STOOD_STILL,
    PAUSES_S,
    WELL_S,
    Guard,
    LoopLife,
    keep,
    keep_thread,
    where,
)

LOG = logging.getLogger("ncclwatch.test")


def at(clock: list[float], **more: float) -> LoopLife:
    return LoopLife("part", age_s_max=15.0, clock=lambda: clock[0], **more)


@pytest.mark.parametrize(("age_s", "still"), [(14.9, False), (15.0, False), (15.1, True)])
def test_the_age_of_the_last_round_says_whether_a_loop_stands_still(age_s: float, still: bool) -> None:
    clock = [0.0]
    life = at(clock)
    life.went_round()
    clock[0] = age_s
    assert (life.age_s(), life.stands_still) == (age_s, still)


def test_a_loop_that_waits_for_something_to_do_does_not_age() -> None:
    clock = [0.0]
    life = at(clock)
    clock[0] = 100.0
    assert not life.stands_still  # not begun yet
    life.went_round()
    life.rests()
    clock[0] = 200.0
    assert life.age_s() == 0.0


def test_a_loop_that_is_begun_anew_is_as_old_as_its_last_round() -> None:
    clock = [0.0]
    life = at(clock)
    life.began()
    assert life.age_s() == 0.0
    for clock[0] in (5.0, 15.0, 15.1):
        life.began()
    assert (life.age_s(), life.stands_still) == (15.1, True)
    life.went_round()
    assert not life.stands_still


def test_a_task_that_raises_or_just_ends_is_begun_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(liveness, "PAUSES_S", (0.0,))
    ends = iter([ValueError("first"), None, SystemExit(0)])
    life = at([0.0])

    async def run() -> None:
        error = next(ends, "on")
        if error == "on":
            await asyncio.Event().wait()
        if error is not None:
            raise error

    async def main() -> None:
        task = asyncio.create_task(keep(life, LOG, run))
        while life.restarts < 3:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(main())
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "the loop 'part' has ended with ValueError('first'); it is begun anew",
        "the loop 'part' has ended though nobody told it to; it is begun anew",
        "the loop 'part' has ended with SystemExit(0); it is begun anew",
    ]


def test_the_same_end_again_is_told_without_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    life = at([0.0])
    for _ in range(3):
        life.pause_s(LOG, ValueError("same"))
    assert [bool(record.exc_info) for record in caplog.records] == [True, False, False]


def test_pauses_grow_and_a_vital_loop_is_given_up_at_last() -> None:
    life, other = at([0.0], ends_s=60.0, vital=True), at([0.0])
    pauses = [life.pause_s(LOG, None) for _ in range(len(PAUSES_S) + 1)]
    assert pauses == [*PAUSES_S, None]
    assert (life.given_up, life.stands_still, life.restarts) == (True, True, len(PAUSES_S))
    assert [other.pause_s(LOG, None) for _ in range(9)][-1] == PAUSES_S[-1]
    assert not other.given_up


def test_a_loop_that_ran_well_in_between_ended_for_the_first_time() -> None:
    clock = [0.0]
    life = at(clock, ends_s=60.0, vital=True)
    assert [life.pause_s(LOG, None), life.pause_s(LOG, None)] == [PAUSES_S[0], PAUSES_S[1]]
    life.began()
    clock[0] = WELL_S
    assert life.pause_s(LOG, None) == PAUSES_S[0]


def test_a_thread_that_raises_even_systemexit_is_begun_anew_until_it_is_told_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(liveness, "PAUSES_S", (0.0,))
    stopping, life, runs = threading.Event(), at([0.0]), []

    def run() -> None:
        runs.append(1)
        if len(runs) == 3:
            stopping.set()
            return
        raise SystemExit(len(runs))

    keep_thread(life, LOG, run, stopping)
    assert (len(runs), life.restarts) == (3, 2)


@pytest.fixture
def ended() -> list[int]:
    return []


def guarding(life: LoopLife, ended: list[int]) -> Guard:
    return Guard([life], LOG, who="ncclwatch-test", end=ended.append)


@pytest.mark.parametrize(("looks", "codes"), [(60, []), (61, [EXIT_STOOD_STILL])])
def test_a_process_whose_vital_loop_stands_still_ends_after_its_time(
    looks: int, codes: list[int], ended: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    clock = [0.0]
    life = at(clock, ends_s=60.0, vital=True)
    life.went_round()
    guard = guarding(life, ended)
    clock[0] = 1e6
    for _ in range(looks):
        guard.look(1.0)
    assert ended == codes
    assert caplog.text.count("the loop 'part' has not finished a round for 16 s; it is at") == 1


def test_time_in_which_the_whole_process_was_halted_does_not_count(ended: list[int]) -> None:
    clock = [0.0]
    life = at(clock, ends_s=60.0, vital=True)
    life.went_round()
    guard = guarding(life, ended)
    guard.look(1.0)
    clock[0] = 3600.0
    guard.look(3600.0)
    assert ended == []


def test_a_loop_that_is_not_vital_is_told_of_once_and_when_it_goes_round_again(
    ended: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    clock = [0.0]
    life = at(clock)
    life.went_round()
    guard = guarding(life, ended)
    clock[0] = 1e6
    for _ in range(1000):
        guard.look(1.0)
    life.went_round()
    guard.look(1.0)
    assert ended == []
    assert len(caplog.records) == 2
    assert "goes round again" in caplog.text


def test_a_vital_loop_that_is_given_up_ends_the_process_at_the_next_look(ended: list[int]) -> None:
    life = at([0.0], ends_s=60.0, vital=True)
    guard = guarding(life, ended)
    life.given_up = True
    guard.look(1.0)
    assert ended == [EXIT_STOOD_STILL]


def test_where_a_task_waits_is_told_to_the_innermost_line() -> None:
    life = at([0.0])

    async def inner_wait() -> None:
        await asyncio.Event().wait()

    async def main() -> str:
        task = asyncio.create_task(keep(life, LOG, inner_wait))
        while life.task is None:
            await asyncio.sleep(0)
        found = where(life)
        task.cancel()
        return found

    assert "in inner_wait" in asyncio.run(main())


def test_where_a_thread_stands_is_told_too() -> None:
    life, halt = at([0.0]), threading.Event()

    def stand_here() -> None:
        halt.wait(20)

    thread = threading.Thread(target=keep_thread, args=(life, LOG, stand_here, halt))
    thread.start()
    deadline = time.monotonic() + 20
    while "stand_here" not in where(life):
        assert time.monotonic() < deadline
    halt.set()
    thread.join(20)


def test_what_else_blocks_the_event_loop_is_told_beside_where_the_task_waits() -> None:
    life, blocked, halt = at([0.0]), threading.Event(), threading.Event()

    async def waits_for_its_turn() -> None:
        await asyncio.Event().wait()

    def blocks_all() -> None:
        blocked.set()
        halt.wait(20)

    async def main() -> None:
        task = asyncio.create_task(keep(life, LOG, waits_for_its_turn))
        await asyncio.sleep(0)
        blocks_all()
        task.cancel()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert blocked.wait(20)
    found = where(life)
    halt.set()
    thread.join(20)
    assert "in waits_for_its_turn" in found
    assert "in blocks_all" in found


def test_a_loop_whose_task_was_cancelled_ends_the_process(ended: list[int], caplog: pytest.LogCaptureFixture) -> None:
    clock = [0.0]
    life = at(clock, ends_s=60.0)

    async def run() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(keep(life, LOG, run))
        await asyncio.sleep(0)
        task.cancel()  # by whatever: nobody said that the loop was to end
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    guard = guarding(life, ended)
    clock[0] = 1e6
    for _ in range(61):
        guard.look(1.0)
    assert "its task was cancelled" in caplog.text
    assert ended == [EXIT_STOOD_STILL]


class Locked(logging.Handler):
    """A handler whose lock the blocked thread holds: it writes to a pipe that nobody reads."""

    def emit(self, record: logging.LogRecord) -> None:
        raise AssertionError("nothing can be written")


def test_a_log_that_is_blocked_keeps_no_process_from_ending(monkeypatch: pytest.MonkeyPatch, ended: list[int]) -> None:
    monkeypatch.setattr(liveness, "LOG_S_MAX", 0.01)
    log, handler = logging.Logger("blocked"), Locked()
    log.addHandler(handler)
    clock, done = [0.0], threading.Event()
    life = at(clock, ends_s=60.0)
    life.went_round()
    clock[0] = 1e6
    guard = Guard([life], log, who="ncclwatch-test", end=ended.append)

    def look_on() -> None:
        for _ in range(61):
            guard.look(1.0)
        done.set()

    handler.acquire()
    try:
        threading.Thread(target=look_on, daemon=True).start()
        assert done.wait(20)
    finally:
        handler.createLock()  # those that wait for the old one are daemons
    assert ended == [EXIT_STOOD_STILL]


@pytest.mark.parametrize(("failures", "codes"), [(2, []), (3, [EXIT_STOOD_STILL])])
def test_a_guard_that_fails_is_begun_anew_and_ends_the_process_if_that_is_in_vain(
    monkeypatch: pytest.MonkeyPatch, ended: list[int], failures: int, codes: list[int]
) -> None:
    monkeypatch.setattr(liveness, "PAUSES_S", (0.0, 0.0))
    guard = Guard([], LOG, who="ncclwatch-test", look_s=0.001, end=ended.append)
    looks: list[float] = []
    through = threading.Event()

    def look(passed_s: float) -> None:
        looks.append(passed_s)
        if len(looks) <= failures:
            raise MemoryError
        through.set()

    monkeypatch.setattr(guard, "look", look)
    with guard:
        while not through.wait(0.01) and not ended:
            pass
    assert ended == codes
    assert (guard.life.restarts, guard.life.vital) == (2, True)
