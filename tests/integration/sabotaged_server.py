"""A real server with the stub judge, one of whose loops dies or hangs as soon as a file appears.

python -m tests.integration.sabotaged_server PORT [STORE], with SABOTAGE=NAME and SABOTAGE_WHEN=FILE. Loops are given up
within tenths of seconds.
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ncclwatch.contract.machine import liveness
from ncclwatch_server import limits

limits.WATCH_STILL_S, limits.WATCH_ENDS_S, limits.PART_STILL_S = 2.5, 6.0, 2.5
liveness.LOOK_S = 0.1
liveness.PAUSES_S = (0.01, 0.02, 0.05)
liveness.Guard.__init__.__kwdefaults__["look_s"] = 0.1

from ncclwatch_server.http import queries  # noqa: E402
from ncclwatch_server.notify import records  # noqa: E402
from ncclwatch_server.notify.courier import Courier  # noqa: E402
from ncclwatch_server.store import incident_store  # noqa: E402
from ncclwatch_server.ui.board import Board  # noqa: E402
from ncclwatch_server.watch import tick  # noqa: E402
from ncclwatch_server.watch.timings import Timings  # noqa: E402
from tests.integration import stub_server  # noqa: E402

incident_store.ROUND_S = records.ROUND_S = 0.1


def _due(once: list[int]) -> bool:
    return not once and Path(os.environ["SABOTAGE_WHEN"]).exists()


def die_once(owner: type, name: str, error: BaseException) -> Callable[[], None]:
    """Return what lets a method raise once."""

    def sabotage() -> None:
        real, once = getattr(owner, name), []

        def broken(*arguments: object) -> object:
            if _due(once):
                once.append(1)
                raise error
            return real(*arguments)

        setattr(owner, name, broken)

    return sabotage


def die_always(owner: type, name: str) -> Callable[[], None]:
    """Return what lets a method raise from then on."""

    def sabotage() -> None:
        real = getattr(owner, name)

        def broken(*arguments: object) -> object:
            if _due([]):
                raise ValueError("sabotaged")
            return real(*arguments)

        setattr(owner, name, broken)

    return sabotage


def hang_task(owner: type, name: str) -> Callable[[], None]:
    """Return what lets a coroutine wait for ever."""

    def sabotage() -> None:
        real = getattr(owner, name)

        async def stuck(*arguments: object) -> object:
            if _due([]):
                await asyncio.Event().wait()
            return await real(*arguments)

        setattr(owner, name, stuck)

    return sabotage


def hang_thread(owner: object, name: str) -> Callable[[], None]:
    """Return what lets a function never come back, in a thread that is not the event loop's."""

    def sabotage() -> None:
        real = getattr(owner, name)

        def stuck(*arguments: object) -> object:
            if _due([]):
                threading.Event().wait()
            return real(*arguments)

        setattr(owner, name, stuck)

    return sabotage


def spin(owner: type, name: str) -> Callable[[], None]:
    """Return what lets a method compute for ever, in the event loop."""

    def sabotage() -> None:
        real = getattr(owner, name)

        def spinning(*arguments: object) -> object:
            while _due([]):
                pass
            return real(*arguments)

        setattr(owner, name, spinning)

    return sabotage


def cancel_task(owner: type, name: str) -> Callable[[], None]:
    """Return what lets the task that calls a method be cancelled there."""

    def sabotage() -> None:
        real, once = getattr(owner, name), []

        def cancelling(*arguments: object) -> object:
            if _due(once):
                once.append(1)
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            return real(*arguments)

        setattr(owner, name, cancelling)

    return sabotage


def soon(sabotage: Callable[[], None]) -> Callable[[], None]:
    """Return a sabotage of a part that is no vital one, whose process ends within seconds."""

    def begin() -> None:
        limits.PART_ENDS_S = 4.0
        sabotage()

    return begin


ERROR = ValueError("sabotaged")


def fail_slowly() -> None:
    """Let every tick raise from then on, and each new beginning of the watch come half a second later."""
    liveness.PAUSES_S = (0.5,) * 100
    die_always(tick.Watch, "_tick")()


def clock_ahead() -> None:
    """Let the clock of this machine be 400 days ahead."""
    real = time.time
    time.time = lambda: real() + 400 * 86_400.0


SABOTAGES = {
    "clock ahead": clock_ahead,
    "watch dies": die_once(tick.Watch, "_tick", ERROR),
    "watch dies by exit": die_once(tick.Watch, "_tick", SystemExit()),
    "look dies by exit": die_once(tick.Watch, "_look_at", SystemExit()),
    "timer dies by exit": die_once(tick.Watch, "_wake", SystemExit()),
    "pages dies": die_once(Board, "_note_lag", ERROR),
    "lag dies": die_once(Timings, "lagged", ERROR),
    "store dies": die_once(incident_store.Store, "_write", ERROR),
    "store dies by exit": die_once(incident_store.Store, "_write", SystemExit(7)),
    "records dies": die_once(records.Records, "_write", ERROR),
    "notifier dies by exit": die_once(Courier, "take", SystemExit(7)),
    "watch dies always": die_always(tick.Watch, "_tick"),
    "watch dies for long": fail_slowly,
    "watch hangs": hang_task(tick.Watch, "_sleep"),
    "pages hangs": hang_task(Board, "_paint"),
    "store hangs": hang_thread(incident_store.Store, "_write"),
    "records hangs": hang_thread(records.Records, "_write"),
    "desk hangs": hang_thread(queries, "_json"),
    "event loop is blocked": spin(Timings, "lagged"),
    "watch is cancelled": cancel_task(tick.Watch, "_tick"),
    "pages is cancelled": soon(cancel_task(Board, "_note_lag")),
    "notifier hangs": soon(hang_thread(Courier, "take")),
}

if __name__ == "__main__":
    SABOTAGES[os.environ["SABOTAGE"]]()
    sys.argv[0] = stub_server.__file__
    stub_server.main()
