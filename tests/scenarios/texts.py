"""Finds the texts of scenarios, reads what they give, and writes verdicts as they expect them."""

import textwrap
from functools import cache
from pathlib import Path

import pytest

from ncclwatch.contract.model.verdict import Verdict
from ncclwatch.contract.words.text import rank_list
from tests.scenarios.situation import Situation

STORIES = sorted(Path(__file__).parent.glob("stories/*.txt"))
FILES = sorted({*Path(__file__).parent.glob("*/*.txt")}.difference(STORIES), key=lambda path: path.name)
SEPARATOR = "----\n"
_LIMITS = ("unheard ", "alone ", "unfiled ")  # lines that say why the text cannot be told in another way


def render(verdicts: tuple[Verdict, ...]) -> str:
    """Return verdicts as a scenario holds them."""
    if not verdicts:
        return "nothing\n"
    lines = []
    for verdict in verdicts:
        culprits = rank_list(culprit.rank for culprit in verdict.culprits)
        sites = sorted({str(c.call_site).split(" in ")[0] for c in verdict.culprits if c.call_site})
        one_of = " one of" if verdict.one_of else ""
        lines.append(
            f"{verdict.severity.value} {verdict.certainty.value} {verdict.cause.value}{one_of} "
            f"culprits={culprits or '-'} victims={rank_list(verdict.victims) or '-'} "
            f"explains={verdict.explained[0]}/{verdict.explained[1]} at={','.join(sites) or '-'}"
        )
        lines += textwrap.wrap(verdict.summary, 110, initial_indent="  ", subsequent_indent="  ")
        lines += textwrap.wrap(verdict.explanation, 110, initial_indent="  | ", subsequent_indent="  | ")
        if verdict.first_divergence is not None:
            found = verdict.first_divergence
            lines.append(f"  first: {found.group}#{found.seq} {found.fact}")
    return "\n".join(lines) + "\n"


def folder_of(said: str) -> str:
    """Return the folder in which a scenario belongs: the cause of its first verdict."""
    first = said.partition("\n")[0]
    return "healthy" if first == "nothing" else first.split()[2]


def situation(given: str) -> Situation:
    """Return what the commands of a scenario build up."""
    found = Situation()
    for line in given.splitlines():
        if line.strip() and not line.startswith("#"):
            found.run(line)
    return found


def read(path: Path) -> tuple[Situation, str]:
    """Return what a scenario gives, and what is expected of it."""
    given, _, expected = path.read_text().partition(SEPARATOR)
    return situation(given), expected


@cache
def _limits(path: Path) -> dict[str, str]:
    given = path.read_text().partition(SEPARATOR)[0]
    return situation("\n".join(line for line in given.splitlines() if line.startswith(_LIMITS))).limits


def each_as(word: str) -> "pytest.MarkDecorator":
    """Run a test for each scenario. It must fail for those that say this word of themselves, each with its reason."""
    cases = []
    for path in FILES:
        reason = _limits(path).get(word)
        marks = () if reason is None else (pytest.mark.xfail(strict=True, reason=f"{word}: {reason}"),)
        cases.append(pytest.param(path, id=path.stem, marks=marks))
    return pytest.mark.parametrize("path", cases)
