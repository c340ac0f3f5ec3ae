"""Finds the page of the documentation about a cause: in the installed package, or in a checkout."""

from collections.abc import Iterator
from pathlib import Path

from ncclwatch.contract.model.verdict import Cause

_HERE = Path(__file__).resolve()
# In a wheel (hatch_build.py puts them there), and where the documentation is written.
_PLACES = (_HERE.parent / "causes", _HERE.parents[3] / "docs" / "verdicts")


def slug_of(cause: Cause) -> str:
    """Return the name of a cause in addresses and on the command line, such as "process-frozen"."""
    return cause.value.replace("_", "-")


def cause_of(word: str) -> Cause | None:
    """Return the cause of this name, with hyphens, underscores or spaces; None if there is none."""
    name = "_".join(word.strip().lower().replace("-", " ").replace("_", " ").split())
    return next((cause for cause in Cause if cause.value == name), None)


def page_of(cause: Cause) -> str:
    """Return the page about a cause, as Markdown. Raises `FileNotFoundError` if the installation lacks it."""
    name = f"{slug_of(cause)}.md"
    found = next((place / name for place in _PLACES if (place / name).is_file()), None)
    if found is None:
        raise FileNotFoundError(f"the page {name} is missing in this installation of ncclwatch; reinstall it")
    return found.read_text(encoding="utf-8")


def first_sentences() -> Iterator[tuple[Cause, str]]:
    """Yield each cause with the paragraph that its page begins with."""
    for cause in Cause:
        paragraphs = page_of(cause).split("\n\n")
        yield cause, " ".join(paragraphs[1].split())
