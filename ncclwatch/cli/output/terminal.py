"""Writes answers on a terminal, in colours and tables of rich, which is imported only where somebody looks.

Words carry everything; colour only repeats it. What ranks have chosen goes in as plain text, never as markup, and the
console escapes all that is printed on it. `said` does so too, so that a table is laid out by what will be shown.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ncclwatch.contract.words.printable import harmless, one_line

WIDTH_ELSEWHERE = 120  # columns where no terminal tells how many it has
STYLES = {
    "hung": "bold red", "waiting": "yellow", "running": "green", "ended": "dim",
    "completed": "dim", "crashed": "bold red",
    "critical": "bold red", "warning": "yellow", "info": "dim",
    "open": "bold", "resolved": "green",
}  # fmt: skip


class EscapingConsole(Console):
    """A console that sends its own colours and movements to the terminal, and escapes those of any text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable; those without control codes hold text alone."""
        for segment in super().render(renderable, options):
            safe = segment.control or segment.text.isprintable()
            yield segment if safe else segment._replace(text=harmless(segment.text, keep_lines=True))


def console() -> Console:
    """Return a console on standard output. It follows NO_COLOR and the width of the terminal, or COLUMNS."""
    # A locale that cannot say a character must not cost the answer.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else WIDTH_ELSEWHERE
    return EscapingConsole(markup=False, highlight=False, emoji=False, width=width)


def as_text(parts: "Iterable[RenderableType]") -> str:
    """Return what a console would show, without colours."""
    shown = console()
    with shown.capture() as captured:
        for part in parts:
            shown.print(part)
    lines = Text.from_ansi(captured.get()).plain.splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def said(text: str, style: str = "") -> Text:
    """Return what somebody else has written, safe to show."""
    return Text(one_line(text), style=style)


def word(text: str) -> Text:
    """Return a word of ours, such as a state, in its colour."""
    return said(text, STYLES.get(text, ""))


def table(columns: Sequence[str], rows: Iterable[Sequence[Text]], *, flexible: str = "") -> Table:
    """Return rows under headings. Cells are folded where there is no room for them; `flexible` gives way first."""
    made = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold", ratio=1 if column == flexible else None)
    made.expand = bool(flexible)
    for row in rows:
        made.add_row(*row)
    return made


def local_time(iso: str) -> str:
    """Return a moment that the server has written, in the time zone of the reader."""
    try:
        return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M:%S}"
    except ValueError:
        return iso
