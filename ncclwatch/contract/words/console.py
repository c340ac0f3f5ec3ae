"""Writes to standard output and standard error, for all commands, and decides whether a person or a program reads it.

Nothing else writes there, so nothing gets there unescaped (see `printable`). A text is given line by line: where a
line ends is said by whoever has made it, and never by what stands in it.

Answers go to standard output: for people on a terminal, as JSON elsewhere. What happens meanwhile goes to standard
error, and only once a second has passed, so that quick commands stay silent.
"""

import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum
from types import TracebackType
from typing import TextIO

from ncclwatch.contract.words.printable import harmless, json_text

QUIET_S = 1.0  # nothing is said of what takes less
EVERY_S = 0.5  # between two looks at what is being done
ERASE = "\r\x1b[K"
_RESET = "\x1b[0m"

JSON_HELP = "Print JSON for machines, or text for people. Default: text on a terminal, JSON elsewhere."


def wants_json(asked: bool | None) -> bool:
    """Whether to print JSON: as `--json` or `--text` says, else wherever no terminal shows it."""
    return not sys.stdout.isatty() if asked is None else asked


class Colour(Enum):
    """How the beginning of a line is shown on a terminal."""

    RED = "\x1b[1;31m"
    YELLOW = "\x1b[1;33m"


def put(*lines: str, error: bool = False, marks: Mapping[str, Colour] | None = None) -> None:
    """Write lines to standard output or standard error. A newline in one of them is shown as an escape.

    `marks`: beginnings of lines that a terminal shows in a colour, unless NO_COLOR is set (https://no-color.org).
    """
    stream = sys.stderr if error else sys.stdout
    shown = marks if marks and _has_colours(stream) else {}
    _write(stream, "".join(f"{_marked(harmless(line), shown)}\n" for line in lines))


def width(*, error: bool = False, least: int = 60, most: int = 160) -> int:
    """Return how many columns the terminal behind a stream has, within bounds; 100 where there is none."""
    stream = sys.stderr if error else sys.stdout
    try:
        return max(least, min(most, os.get_terminal_size(stream.fileno()).columns))
    except (OSError, ValueError):
        return 100


def _has_colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _marked(line: str, marks: Mapping[str, Colour]) -> str:
    for beginning, colour in marks.items():
        if line.startswith(beginning):
            return f"{colour.value}{beginning}{_RESET}{line[len(beginning) :]}"
    return line


def put_json(data: bytes, *, indent: int = 2) -> None:
    """Write JSON to standard output, the same bytes on every terminal and in every pipe."""
    _write(sys.stdout, f"{json_text(data, indent=indent)}\n")


def complain(error: Exception | str, program: str = "ncclwatch") -> None:
    """Say in one line on standard error what could not be done."""
    put(f"{program}: {error}", error=True)


def rewrite(text: str) -> None:
    """Write over the line of progress on standard error, which is a terminal; "" removes it."""
    _write(sys.stderr, f"{ERASE}{harmless(text)}")


def _write(stream: TextIO, text: str) -> None:
    # A locale that has no name for a character must not cost the answer.
    if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
        stream.reconfigure(errors="backslashreplace")
    stream.write(text)
    stream.flush()


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
            with contextlib.suppress(OSError, ValueError):
                rewrite("")

    def _show(self, elapsed_s: float, terminal: bool) -> None:
        self._shown = True
        said = self._doing if isinstance(self._doing, str) else self._doing()
        # Who asked may have closed it; that must not cost the answer.
        with contextlib.suppress(OSError, ValueError):
            if terminal:
                rewrite(f"{harmless(said)[:150]} ... {elapsed_s:.0f} s")
            else:
                put(f"ncclwatch: {harmless(said)[:150]} ...", error=True)
