"""Compares what tools say with the truth about each program, and counts it."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.compare.witnesses import Testimony
from tests.zoo.truth import Expect, Truth

TOOLS = ("ncclwatch", "flight recorder", "repaired", "py-spy", "DETAIL")
_NAMES = {
    "ncclwatch": "ncclwatch",
    "flight recorder": "Flight Recorder and torchfrtrace",
    "repaired": "the same, with the groups that gloo's dumps leave out",
    "py-spy": "py-spy of all ranks, and who stands where the fewest stand",
    "DETAIL": "`TORCH_DISTRIBUTED_DEBUG=DETAIL`, timeout 30 s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One tool on one program."""

    program: str
    tool: str
    expect: str  # "hang", "crash", "slow" or "healthy"
    named: str  # "exactly", "among others", "only others", "nobody", "failed", or "not asked" of a job that ends
    line: bool = False  # it named a line that is the culprit's
    cause: bool = False
    alarmed: bool = False
    after_s: float | None = None
    words: str = ""


def row_of(truth: Truth, tool: str, seen: Testimony | None) -> Row:
    """Compare what a tool said with the truth. None: it was not asked, as nothing hung."""
    expect = truth.expect.value
    if seen is None:
        return Row(program=truth.id, tool=tool, expect=expect, named="not asked", words="not asked")
    named = _named(truth, seen)
    right = {(line.file.name, line.number) for rank in truth.culprits for line in truth.lines_of(rank)}
    line = named in ("exactly", "among others") and bool(right & seen.said.places)
    ranks = ",".join(map(str, sorted(seen.said.ranks))) or "-"
    after = f", after {seen.after_s:.1f} s" if seen.after_s is not None else ""
    words = (
        f"{named}: ranks {ranks}, truth {','.join(map(str, truth.culprits)) or '-'}{', line' if line else ''}{after}"
    )
    return Row(
        program=truth.id, tool=tool, expect=expect, named=named, line=line, cause=seen.cause, alarmed=seen.alarmed,
        after_s=seen.after_s, words=f"{words} {seen.said.failed}".rstrip(),
    )  # fmt: skip


def _named(truth: Truth, seen: Testimony) -> str:
    said, wanted = seen.said.ranks, set(truth.culprits)
    if seen.said.failed:
        return "failed"
    if not said:
        return "nobody"
    if said == wanted or (truth.culprits_any and said <= wanted):
        return "exactly"
    return "among others" if said & wanted else "only others"


def table(rows: Sequence[Row]) -> str:
    """Return the table of all tools, in Markdown."""
    lines = [
        "| tool | programs that hang | names the culprits, and nobody else | among others | only others "
        "| nobody | fails | a line of a culprit | the cause | seconds after the onset, median "
        "| healthy programs | it calls one wrong, or ends it |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for tool in TOOLS:
        own = [row for row in rows if row.tool == tool]
        hangs = [row for row in own if row.expect == Expect.HANG.value and row.named != "not asked"]
        well = [row for row in own if row.expect == Expect.HEALTHY.value and row.named != "not asked"]
        counts = [sum(row.named == kind for row in hangs) for kind in (
            "exactly", "among others", "only others", "nobody", "failed")]  # fmt: skip
        times = [row.after_s for row in hangs if row.after_s is not None]
        after = f"{statistics.median(times):.1f}" if times else "when asked"
        alarms = str(sum(row.alarmed for row in well)) if well else "not asked"
        lines_named, causes = (sum(row.line for row in hangs), sum(row.cause for row in hangs))
        cells = [_NAMES[tool], len(hangs), *counts, lines_named, causes, after, len(well) or "-", alarms]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def by_program(truths: Sequence[Truth], rows: Sequence[Row]) -> str:
    """Return what each tool names in each program that hangs, in Markdown."""
    named = {(row.program, row.tool): f"{row.named}{', line' if row.line else ''}" for row in rows}
    lines = [f"| program | what is wrong | {' | '.join(TOOLS)} |", f"|{'---|' * (2 + len(TOOLS))}"]
    for truth in truths:
        cells = [named.get((truth.id, tool), "") for tool in TOOLS]
        if truth.expect is Expect.HANG and any(cells):
            lines.append(f"| {' | '.join([truth.id, truth.title.replace('|', '/'), *cells])} |")
    return "\n".join(lines) + "\n"
