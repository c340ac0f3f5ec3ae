"""Writes a saved incident as plain text: what a terminal shows of it, in the same order and under the same names."""

import textwrap
from collections.abc import Iterator

from ncclwatch.cli.client.answers import Whole
from ncclwatch.cli.output import incident_facts as the
from ncclwatch.contract.words.printable import one_line

WIDTH, INDENT = 100, 12


def text(incident: Whole) -> str:
    """Return the report."""
    return "".join(f"{line}\n" for line in _lines(incident))


def _lines(incident: Whole) -> Iterator[str]:
    head = f"ncclwatch: {one_line(the.heading(incident))}"
    yield from textwrap.wrap(head, WIDTH, subsequent_indent=" " * INDENT, break_on_hyphens=False)
    yield from _field("why", incident.explanation)
    yield from _field("do", incident.advice)
    for row in the.culprits(incident):
        who = [f"rank {row.rank}", row.host and f"host {row.host}", row.pid and f"pid {row.pid}", row.device]
        doing = f": {row.doing}" if row.doing else ""
        label = "one of" if incident.one_of else "culprit"
        yield from _field(label, f"{', '.join(filter(None, who))}, at {row.place}{doing}")
    yield from _fields("diverged", the.divergence(incident))
    yield from _fields("repair", the.repairs(incident))
    for name, value in the.facts(incident):
        yield from _field(name, value)
    yield from _fields("evidence", the.evidence(incident))
    if incident.stack_tree:
        yield from ("", "Main threads, merged:", *(f"  {one_line(line)}" for line in incident.stack_tree))
    for block in the.stacks(incident):
        yield from ("", f"{one_line(block.title)}, innermost frame first:")
        yield from (f"  {'>' if frame.users else ' '} {one_line(frame.text)}" for frame in block.frames)


def _fields(name: str, texts: Iterator[str]) -> Iterator[str]:
    for number, each in enumerate(texts):
        yield from _field("" if number else name, each)


def _field(name: str, said: str) -> list[str]:
    """Return a labelled paragraph, nothing if there is nothing to say."""
    return textwrap.wrap(
        one_line(said),
        WIDTH,
        initial_indent=f"  {name:<{INDENT - 3}} ",
        subsequent_indent=" " * INDENT,
        break_on_hyphens=False,
    )
