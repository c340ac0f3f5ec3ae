"""Decides whether a person or a program reads what a command prints, and shows people what goes on meanwhile.

Answers go to standard output: for people on a terminal, as JSON elsewhere. What happens meanwhile goes to standard
error, and only once a second has passed, so that quick commands stay silent.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

QUIET_S = 1.0  # nothing is said of what takes less
EVERY_S = 0.5  # between two looks at what is being done
ERASE = "\r\x1b[K"

JSON_HELP = "Print JSON for machines, or text for people. Default: text on a terminal, JSON elsewhere."


def wants_json(asked: bool | None) -> bool:
    """Whether to print JSON: as `--json` or `--text` says, else wherever no terminal shows it."""
    return not sys.stdout.isatty() if asked is None else asked


class Progress:
    """Tells on standard error what is being done, from the first second on.

    On a terminal one line that is written over and vanishes at the end; elsewhere one line, once, if at all.
    """

    def __init__(
        self, doing: Callable[[], str] | str, *, quiet_s: float = QUIET_S, elsewhere: bool = True
    ) -> None:  # fmt: skip
        """`doing` is asked each time it is shown, from another thread: it may count.

        `elsewhere`: whether it is told of where no terminal shows it.
        """
        self._doing = doing
        self._elsewhere = elsewhere
        self._quiet_s = quiet_s
        self._over = threading.Event()
        self._shown = False
        self._thread = threading.Thread(target=self._run, name="ncclwatch-progress", daemon=True)

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        wait_s = self._quiet_s
        while not self._over.wait(wait_s):
            wait_s = EVERY_S
            if terminal or (self._elsewhere and not self._shown):
                self._show(time.monotonic() - began, terminal)
        if terminal and self._shown:
            _write(ERASE)

    def _show(self, elapsed_s: float, terminal: bool) -> None:
        self._shown = True
        said = self._doing if isinstance(self._doing, str) else self._doing()
        said = "".join(c for c in said if c.isprintable())[:150]
        _write(f"{ERASE}{said} ... {elapsed_s:.0f} s" if terminal else f"ncclwatch: {said} ...\n")


def _write(text: str) -> None:
    # Who asked may have closed it; that must not cost the answer.
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
