"""Writes an incident as Markdown, for a ticket. What ranks have chosen is text there, whatever it contains.

In prose each character that Markdown or HTML could read is escaped, and names that a tracker would turn into a mention,
a link or another ticket are broken by a space without width. In a fence nothing is read; the fence is longer than
any in the text.
"""

import html
import re
from collections.abc import Iterable, Iterator

from ncclwatch.cli.client.answers import Whole
from ncclwatch.cli.output import incident_facts as the
from ncclwatch.contract.words.printable import one_line

_SPECIAL = re.compile(r"([\\`*_\[\]<>|~$])")
_LINKED = re.compile(r"([@#](?=\w)|://|\bwww(?=\.))", re.IGNORECASE)
_APART = "&#8203;"  # in letters that a terminal shows and every file keeps


def prose(text: str) -> str:
    """Return a text as it is read in a paragraph or a cell, and as nothing else. It is never put first in a line."""
    safe = _SPECIAL.sub(r"\\\1", one_line(text).replace("&", "&amp;"))
    return _unlinked(safe)


def in_html(text: str) -> str:
    """Return a text as it is read between tags of HTML, where backslashes escape nothing."""
    return html.escape(_unlinked(one_line(text))).replace(html.escape(_APART), _APART)


def _unlinked(text: str) -> str:
    return _LINKED.sub(lambda found: found[0][0] + _APART + found[0][1:], text)


def fence(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines as they are, in a fence."""
    shown = [one_line(line).rstrip() for line in lines]
    longest = max((len(run) for line in shown for run in re.findall("`+", line)), default=0)
    mark = "`" * max(3, longest + 1)
    yield f"{mark}text"
    yield from shown
    yield mark


def markdown(incident: Whole) -> str:
    """Return the report."""
    return "\n".join(_lines(incident)) + "\n"


def _lines(incident: Whole) -> Iterator[str]:
    yield f"## {prose(the.heading(incident))}"
    yield ""
    for title, text in (("Why", incident.explanation), ("What to do", incident.advice)):
        if text:
            yield from (f"**{title}.** {prose(text)}", "")
    yield from _table(("fact", "value"), the.facts(incident))
    rows = [(row.rank, row.host, row.pid, row.device, row.place, row.doing) for row in the.culprits(incident)]
    if rows:
        yield from (f"### {the.culprits_title(incident)}", "")
        yield from _table(("rank", "host", "pid", "device", "at", "doing"), rows)
    yield from _section("Where the histories parted", the.divergence(incident))
    yield from _section("The smallest change after which all would have gone on", the.repairs(incident))
    yield from _section("Evidence", the.evidence(incident))
    if incident.stack_tree:
        yield from ("### Main threads, merged", "", *fence(incident.stack_tree), "")
    blocks = list(the.stacks(incident))
    if blocks:
        yield from ("### Stacks, innermost frame first", "")
    for block in blocks:
        yield from (f"<details><summary>{in_html(block.title)}</summary>", "")
        yield from fence(f"{'>' if frame.users else ' '} {frame.text}" for frame in block.frames)
        yield from ("", "</details>", "")


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    shown = list(lines)
    if shown:
        yield from (f"### {title}", "", *(f"- {prose(line)}" for line in shown), "")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield f"| {' | '.join(prose(cell) for cell in row)} |"
    yield ""
