"""One line of the table of the bench: what was measured, of ours and of a named peer in the same run."""

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was measured. `ratio` says how many times the peer's figure is ours."""

    what: str
    unit: str
    ours: float
    peer: str = ""  # what was measured beside it; "": nothing was
    theirs: float | None = None
    budget: str = ""  # the most that the figure may be, in words
    met: bool | None = None  # None: nothing is asked, or this run cannot tell

    @property
    def ratio(self) -> float | None:
        """Return the peer's figure over ours."""
        return self.theirs / self.ours if self.theirs is not None and self.ours else None


def at_most(bound: float, value: float, unit: str) -> tuple[str, bool]:
    """Return the budget in words, and whether it was met."""
    return f"<= {bound:g} {unit}", value <= bound


def show(rows: Iterable[Row]) -> None:
    """Print the table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("what", "ours", "peer's", "ratio", "asked", ""):
        table.add_column(name, justify="right" if name in {"ours", "peer's", "ratio"} else "left")
    for row in rows:
        theirs = f"{_number(row.theirs)} {row.unit}  {row.peer}" if row.theirs is not None else ""
        ratio = f"{row.ratio:.2g}" if row.ratio is not None else ""
        verdict = {None: "", True: "met", False: "MISSED"}[row.met]
        table.add_row(row.what, f"{_number(row.ours)} {row.unit}", theirs, ratio, row.budget, verdict)
    Console(width=200, soft_wrap=True).print(table)


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
