"""Knows when each loop of a process last went round, begins an ended one anew, and ends a process that stands still.

A loop is a task or a thread that is to run as long as its process. It says so at each round, and `keep` and
`keep_thread` begin it anew when it ends or raises, with growing pauses. A loop that hangs cannot say anything: the
`Guard`, a thread, sees it by the age of its last round. All else depends on a vital loop: where one stands still for
long, or ends again and again, the process ends with a sentence and a code that is not 0, and whoever started it
starts it again. Of any other loop the age is told, and that is all.

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
PAUSES_S = (0.1, 1.0, 5.0, 15.0, 30.0)  # before a loop that has ended again and again is begun anew
WELL_S = 300.0  # a loop that ran for so long ended for a new reason
FRAMES_MAX = 12  # told of where a loop stands


class LoopLife:
    """The life of one loop. Its own thread writes it, any may read it."""

    def __init__(
        self,
        name: str,
        *,
        age_s_max: float,
        ends_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.age_s_max = age_s_max  # older, and it stands still
        self.ends_s = ends_s  # and for so long, and its process ends; never if it is not vital
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

    @property
    def vital(self) -> bool:
        """Whether a process without this loop is better ended."""
        return self.ends_s < math.inf

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
        before = time.monotonic()
        while not self._stop.wait(self._look_s):
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
            self._log.error(
                "the loop %r has not finished a round for %.0f s; it is at\n%s",
                life.name, self._still_s[life], where(life),
            )  # fmt: skip
        elif not still and life in self._told:
            self._told.discard(life)
            self._log.warning("the loop %r goes round again", life.name)

    def _give_up(self, why: str) -> None:
        self._log.critical("%s: %s ends with code %d, to be started again", why, self._who, EXIT_STOOD_STILL)
        sys.stderr.flush()
        self._end(EXIT_STOOD_STILL)


def where(life: LoopLife) -> str:
    """Return the lines at which a loop stands, the innermost last."""
    frames = _frames_of(life.task) if life.task is not None else []
    inside = sys._current_frames().get(life.thread)
    if frames:
        lines = traceback.format_list(
            [traceback.FrameSummary(f.f_code.co_filename, f.f_lineno or 0, f.f_code.co_name) for f in frames]
        )
    else:
        lines = traceback.format_stack(inside) if inside is not None else []
    return "".join(lines[-FRAMES_MAX:]).rstrip() or "  no frame of it can be seen"


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
