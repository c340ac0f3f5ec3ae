"""A real server with the stub judge, one of whose loops dies or hangs as soon as a file appears.

python -m tests.integration.sabotaged_server PORT [STORE], with SABOTAGE=NAME and SABOTAGE_WHEN=FILE. Loops are given up
within tenths of seconds.
"""

import os
import sys
import time

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
from tests.integration.sabotage import Sabotage, before, cancel, hang_task, raising, spin, stuck  # noqa: E402

incident_store.ROUND_S = records.ROUND_S = 0.1


def soon(sabotage: Sabotage) -> Sabotage:
    """Return a sabotage of a part that is no vital one, whose process ends within seconds."""

    def begin() -> None:
        limits.PART_ENDS_S = 4.0
        sabotage()

    return begin


FAIL = raising(ValueError("sabotaged"))


def fail_slowly() -> None:
    """Let every tick raise from then on, and each new beginning of the watch come half a second later."""
    liveness.PAUSES_S = (0.5,) * 100
    before(tick.Watch, "_tick", FAIL)()


def clock_ahead() -> None:
    """Let the clock of this machine be 400 days ahead."""
    real = time.time
    time.time = lambda: real() + 400 * 86_400.0


SABOTAGES = {
    "clock ahead": clock_ahead,
    "watch dies": before(tick.Watch, "_tick", FAIL, once=True),
    "watch dies by exit": before(tick.Watch, "_tick", raising(SystemExit()), once=True),
    "look dies by exit": before(tick.Watch, "_look_at", raising(SystemExit()), once=True),
    "timer dies by exit": before(tick.Watch, "_wake", raising(SystemExit()), once=True),
    "pages dies": before(Board, "_note_lag", FAIL, once=True),
    "lag dies": before(Timings, "lagged", FAIL, once=True),
    "store dies": before(incident_store.Store, "_write", FAIL, once=True),
    "store dies by exit": before(incident_store.Store, "_write", raising(SystemExit(7)), once=True),
    "records dies": before(records.Records, "_write", FAIL, once=True),
    "notifier dies by exit": before(Courier, "take", raising(SystemExit(7)), once=True),
    "watch dies always": before(tick.Watch, "_tick", FAIL),
    "watch dies for long": fail_slowly,
    "watch hangs": hang_task(tick.Watch, "_sleep"),
    "pages hangs": hang_task(Board, "_paint"),
    "store hangs": before(incident_store.Store, "_write", stuck),
    "records hangs": before(records.Records, "_write", stuck),
    "desk hangs": before(queries, "_json", stuck),
    "event loop is blocked": before(Timings, "lagged", spin),
    "watch is cancelled": before(tick.Watch, "_tick", cancel),
    "pages is cancelled": soon(before(Board, "_note_lag", cancel)),
    "notifier hangs": soon(before(Courier, "take", stuck)),
}

if __name__ == "__main__":
    SABOTAGES[os.environ["SABOTAGE"]]()
    sys.argv[0] = stub_server.__file__
    stub_server.main()
