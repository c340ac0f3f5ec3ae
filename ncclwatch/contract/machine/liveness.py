"""Knows when each loop of a process last went round, begins an ended one anew, and ends a process that stands still.

A loop is a task or a thread that is to run as long as its process. It says so at each round, and `keep` and
`keep_thread` begin it anew when it ends or raises, with growing pauses. A loop that hangs, or whose task was cancelled
or lost, cannot say anything: the `Guard`, a thread, sees it by the age of its last round, and logs where it stands.
Where it does not come back the process ends with a sentence and a code that is not 0, and whoever started it starts it
again. A loop that waits for a disk or a database is only reported: a new process would wait for the same.

All else depends on a vital loop: it has less time, and one that ends again and again ends the process, too.

Time in which the whole process was halted (SIGSTOP, a machine that was frozen) is nobody's fault: the guard counts its
own rounds, and never more than two seconds for one.
"""

import asyncio
import logging
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable
from types import FrameType, TracebackType

EXIT_STOOD_STILL = 4
LOOK_S = 1.0
GUARD_STILL_S = 30.0
PAUSES_S = (0.1, 1.0, 5.0, 15.0, 30.0)  # before a loop that has ended again and again is begun anew
WELL_S = 300.0  # a loop that ran for so long ended for a new reason
FRAMES_MAX = 12  # told of where a loop stands
LOG_S_MAX = 2.0  # the log is waited for: the thread that blocks may hold its lock, or nobody reads the pipe behind it


class LoopLife:
    """The life of one loop. Its own thread writes it, any may read it."""

    def __init__(
        self,
        name: str,
        *,
        age_s_max: float,
        ends_s: float = math.inf,
        vital: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.age_s_max = age_s_max  # older, and it stands still
        self.ends_s = ends_s  # and for so long, and its process ends
        self.vital = vital  # a process without it is better ended
        self.restarts = 0
        self.rounds = 0
        self.given_up = False  # it ended again and again, and is not begun any more
        self.task: asyncio.Task[None] | None = None
        self.thread = 0  # its number
        self._clock = clock
        self._resting = True  # not begun yet, or waiting for something to do
        self._at = self._began_at = clock()
        self._in_a_row = 0
        self._said = ""

    def went_round(self) -> None:
        """Note a round, or the beginning of one."""
        self._at = self._clock()
        self.rounds += 1
        self._resting = False

    def rests(self) -> None:
        """Note that it waits for something to do: from now on its age says nothing."""
        self._resting = True
        self.rounds += 1

    def age_s(self) -> float:
        """Return for how long it has not finished a round."""
        return 0.0 if self._resting else max(0.0, self._clock() - self._at)

    @property
    def stands_still(self) -> bool:
        """Whether it has not finished a round for too long."""
        return self.given_up or self.age_s() > self.age_s_max

    def began(self) -> None:
        """Note that it was begun, in this thread.

        Only the first time is that a sign of life: one that is begun anew again and again, in vain, does no work.
        """
        self.thread = threading.get_ident()
        self._began_at = self._clock()
        if self._resting:
            self.went_round()

    def pause_s(self, log: logging.Logger, error: BaseException | None) -> float | None:
        """Tell of its end, and return how long to wait until it is begun anew; None: never, it is given up."""
        if self._clock() - self._began_at >= WELL_S:
            self._in_a_row, self._said = 0, ""
        self._in_a_row += 1
        last = self.vital and self._in_a_row > len(PAUSES_S)
        then = "it is given up" if last else "it is begun anew"
        said = repr(error)
        known = said == self._said  # the same again: its traceback is in the log already
        why = f"with {said}" if error is not None else "though nobody told it to"
        log.error("the loop %r has ended %s; %s", self.name, why, then, exc_info=None if known else error)
        self._said = said
        if last:
            self.given_up = True
            return None
        self.restarts += 1
        return PAUSES_S[min(self._in_a_row, len(PAUSES_S)) - 1]


async def keep(life: LoopLife, log: logging.Logger, run: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run a loop as long as it is not cancelled, and begin it anew whenever it ends."""
    life.task = asyncio.current_task()
    while True:
        life.began()
        error: BaseException | None = None
        try:
            await run()
        except (Exception, SystemExit) as raised:  # noqa: BLE001  whatever it was: it is told, and the loop begun anew
            error = raised
        pause_s = life.pause_s(log, error)
        if pause_s is None:
            return
        await asyncio.sleep(pause_s)


def keep_thread(life: LoopLife, log: logging.Logger, run: Callable[[], None], stopping: threading.Event) -> None:
    """Run a loop in this thread until it is told to stop, and begin it anew whenever it ends before."""
    while True:
        life.began()
        error: BaseException | None = None
        try:
            run()
        except BaseException as raised:  # noqa: BLE001  a thread that ends by SystemExit ends without a word
            error = raised
        if stopping.is_set():
            life.rests()
            if error is not None:
                log.error("the loop %r has ended with %r at the end", life.name, error, exc_info=error)
            return
        pause_s = life.pause_s(log, error)
        if pause_s is None or stopping.wait(pause_s):
            return


class Guard:
    """A thread that tells of loops that stand still, and ends the process when that is a vital one."""

    def __init__(
        self,
        lives: Iterable[LoopLife],
        log: logging.Logger,
        *,
        who: str,
        look_s: float = LOOK_S,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._lives = tuple(lives)
        self._log = log
        self._who = who
        self._look_s = look_s
        self._end = end
        self._still_s = dict.fromkeys(self._lives, 0.0)
        self._rounds = {life: life.rounds for life in self._lives}
        self._told: set[LoopLife] = set()
        # It cannot look at itself: /healthz does.
        self.life = LoopLife("guard", age_s_max=GUARD_STILL_S, vital=True)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ncclwatch-guard", daemon=True)

    def __enter__(self) -> "Guard":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()

    def _run(self) -> None:
        keep_thread(self.life, self._log, self._watch, self._stop)
        if self.life.given_up:
            self._give_up(f"the loop {self.life.name!r} has ended again and again")

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._stop.wait(self._look_s):
            self.life.went_round()
            now = time.monotonic()
            self.look(now - before)
            before = now

    def look(self, passed_s: float) -> None:
        """Look at all loops; so much time has passed since the last look."""
        counted_s = min(passed_s, 2 * self._look_s)
        for life in self._lives:
            goes = life.rounds != self._rounds[life] or life.age_s() == 0
            self._rounds[life] = life.rounds
            self._still_s[life] = 0.0 if goes else self._still_s[life] + counted_s
            if life.given_up and life.vital:
                self._give_up(f"the loop {life.name!r} has ended again and again")
            elif self._still_s[life] > life.ends_s:
                self._give_up(f"the loop {life.name!r} has not finished a round for {self._still_s[life]:.0f} s")
            else:
                self._tell(life)

    def _tell(self, life: LoopLife) -> None:
        still = self._still_s[life] > life.age_s_max
        if still and life not in self._told:
            self._told.add(life)
            text = "the loop %r has not finished a round for %.0f s; it is at\n%s"
            self._say(logging.ERROR, text, life.name, self._still_s[life], where(life))
        elif not still and life in self._told:
            self._told.discard(life)
            self._say(logging.WARNING, "the loop %r goes round again", life.name)

    def _give_up(self, why: str) -> None:
        try:
            text = "%s: %s ends with code %d, to be started again"
            self._say(logging.CRITICAL, text, why, self._who, EXIT_STOOD_STILL)
        finally:  # whatever the log does
            self._end(EXIT_STOOD_STILL)

    def _say(self, level: int, text: str, *values: object) -> None:
        """Write a line to the log, and wait for it only so long."""

        def write() -> None:
            self._log.log(level, text, *values)
            sys.stderr.flush()

        writing = threading.Thread(target=write, name="ncclwatch-guard-log", daemon=True)
        writing.start()
        writing.join(LOG_S_MAX)


def where(life: LoopLife) -> str:
    """Return the lines at which a loop stands, the innermost last, and then those of its thread.

    A task may wait for nothing wrong, while something else blocks the event loop: the thread shows what.
    """
    if life.task is not None and life.task.done():
        return "  no line: its task was cancelled" if life.task.cancelled() else "  no line: its task has ended"
    frames = _frames_of(life.task) if life.task is not None else []
    waits = traceback.format_list(
        [traceback.FrameSummary(f.f_code.co_filename, f.f_lineno or 0, f.f_code.co_name) for f in frames]
    )
    inside = sys._current_frames().get(life.thread)
    runs = traceback.format_stack(inside) if inside is not None else []
    if waits and runs:
        return "".join([*waits[-FRAMES_MAX:], "and its thread is at\n", *runs[-FRAMES_MAX:]]).rstrip()
    return "".join((waits or runs)[-FRAMES_MAX:]).rstrip() or "  no frame of it can be seen"


def _frames_of(task: "asyncio.Task[None]") -> list[FrameType]:
    """Return the frames of a task that waits, the outermost first; none of one that runs: its thread tells more."""
    frames: list[FrameType] = []
    inner: object = task.get_coro()
    while inner is not None and len(frames) < 100:
        if getattr(inner, "cr_running", False):
            return []
        frame = getattr(inner, "cr_frame", None)
        if frame is None:
            break
        frames.append(frame)
        inner = getattr(inner, "cr_await", None)
    return frames
