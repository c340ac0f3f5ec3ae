"""Shows what hangs have cost in a period, by cause."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ncclwatch.cli.client.answers import LossReport, LossTotals
from ncclwatch.cli.output.terminal import local_time, said, table
from ncclwatch.contract.words.aftermath import hours_words, loss_notes, time_words

if TYPE_CHECKING:
    from rich.console import RenderableType

_FATES = ("went_on", "recovered", "came_back", "ended", "open")


def render(report: LossReport) -> "Iterator[RenderableType]":
    """Yield the report for people."""
    yield said(f"hangs from {local_time(report.since)} to {local_time(report.until)}", "bold")
    if report.without:
        yield said(report.without, "yellow")
    if not report.total.hangs:
        yield said("no hang was reported")
        return
    total = report.total
    fates = [fate for fate in _FATES if getattr(total, fate)]  # a column for each that there is
    per = "gpu" if total.gpu_s else "rank"
    columns = ["CAUSE", "HANGS", "JOBS", *(fate.replace("_", " ").upper() for fate in fates)]
    rows = [*((each.cause, each.losses) for each in report.causes), ("all", total)]
    yield table(
        [*columns, "TIME LOST", f"{per.upper()}-HOURS", "TIME SAVED"],
        [[said(cell) for cell in _cells(name, losses, fates, per)] for name, losses in rows],
    )
    for note in loss_notes(timeout_unknown=total.timeout_unknown, end_unknown=total.end_unknown):
        yield said(note, "dim")


def _cells(name: str, losses: LossTotals, fates: list[str], per: str) -> tuple[str, ...]:
    counts = (losses.hangs, losses.jobs, *(getattr(losses, fate) for fate in fates))
    of_all = losses.gpu_s if per == "gpu" else losses.rank_s
    return (
        name, *(str(count) if count else "-" for count in counts), time_words(losses.lost_s),
        hours_words(of_all) if of_all else "-", time_words(losses.saved_s) if losses.saved_s else "-",
    )  # fmt: skip
