"""Notes verdicts in the experiment trackers that the script uses, if the owner of the job asked for it.

Each call of a tracker runs in a thread of its own, because it may wait for a network. Only the end of the program
waits for it, for a moment. A tracker whose last call has not returned is not called again.
"""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ncclwatch.contract.machine import quiet_threads
from ncclwatch.contract.on_hang.notice import HangVerdict, Notice

LATE_S = 30.0  # a tracker that takes longer gets a warning
EXIT_S = 2.0  # the longest that the end of the program waits
NOTED_MAX = 100  # verdicts


class Tracker(Protocol):
    """See `ncclwatch.integrations.notes.trackers`."""

    @property
    def name(self) -> str:
        """What people call it."""

    def note(self, verdict: HangVerdict, step: int) -> None:
        """Note a verdict in the runs that are open."""


def known_trackers() -> Sequence[Tracker]:
    """Return the trackers of which some package may be in use."""
    from ncclwatch.integrations.notes.trackers import all_trackers  # a job that does not hang needs none of it

    return all_trackers()


class Noting:
    """The notes of one rank. Call `update` with each pulse."""

    def __init__(
        self,
        warn: Callable[[str, str], None],
        trackers: Callable[[], Sequence[Tracker]] = known_trackers,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._warn = warn
        self._trackers = trackers
        self._clock = clock
        self._noted: set[str] = set()  # incidents
        self._threads: dict[str, tuple[threading.Thread, float]] = {}  # by tracker: the newest, and since when

    def update(self, notice: Notice | None, step: int) -> None:
        """Start noting verdicts that are new."""
        for name, (thread, since_s) in self._threads.items():
            if thread.is_alive() and self._clock() - since_s > LATE_S:
                self._warn(f"{name} has not taken a note of a verdict within {LATE_S:.0f} s. Training goes on.", name)
        for verdict in notice.hangs if notice is not None else ():
            if verdict.incident not in self._noted and len(self._noted) < NOTED_MAX:
                self._noted.add(verdict.incident)
                for tracker in self._trackers():
                    self._begin(tracker, verdict, step)

    def _begin(self, tracker: Tracker, verdict: HangVerdict, step: int) -> None:
        known = self._threads.get(tracker.name)
        if known is not None and known[0].is_alive():
            return
        thread = threading.Thread(target=self._note, args=(tracker, verdict, step), name="ncclwatch-note", daemon=True)
        self._threads[tracker.name] = (thread, self._clock())
        quiet_threads.start(thread)

    def _note(self, tracker: Tracker, verdict: HangVerdict, step: int) -> None:
        try:
            tracker.note(verdict, step)
        except Exception as error:  # another version of its package, or a network that is away
            if not sys.is_finalizing():
                why = f"{type(error).__name__}: {error}"
                self._warn(f"cannot note a verdict in {tracker.name} ({why}). Training goes on.", tracker.name)

    def close(self) -> None:
        """Wait a moment for notes under way: the program may be ending because of this very hang."""
        until = time.monotonic() + EXIT_S
        for thread, _ in list(self._threads.values()):
            thread.join(timeout=max(0.0, until - time.monotonic()))
