"""Writes the tables of live tests into tests/README.md: `python -m tests.overview [build/gate/integration.jsonl ...]`.

A row is a file of tests: the first sentence of its docstring, how many tests it has, and how long it ran in the reports
that are named (pytest-reportlog). Files that are in none of the reports keep the seconds that the table has.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.gate import seconds_by_file

ROOT = Path(__file__).parents[1]
README = ROOT / "tests" / "README.md"
PLACES = ("integration/test_*.py", "integrations/test_*.py", "coverage/test_*.py", "sanitized/test_*.py")
FURTHER = ("postmortem/test_real_dumps.py", "zoo/test_stream.py")
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
_ROW = re.compile(r"^\| (?P<what>.*) \| (?P<file>\S+) \| (?P<tests>\d+) \| (?P<seconds>\d*) \|$")


def main(reports: Sequence[str]) -> None:
    """Rewrite the table."""
    text = README.read_text()
    seconds: Counter[str] = Counter()
    for report in reports:
        seconds.update(seconds_by_file(Path(report)))
    before, rest = text.split(BEGIN)
    known = {row["file"]: row["seconds"] for row in map(_ROW.match, rest.split(END)[0].splitlines()) if row}
    rows = ["| what is shown | file | tests | seconds |", "|---|---|---|---|"]
    for file in files():
        took = f"{seconds[file]:.0f}" if file in seconds else known.get(file, "")
        rows.append(f"| {sentence(file)} | {file} | {tests(file)} | {took} |")
    README.write_text("\n".join([before + BEGIN, *rows, END + rest.split(END)[1]]))


def files() -> list[str]:
    """Return the files of live tests, relative to the root of the repository."""
    tests = ROOT / "tests"
    return sorted(str(path.relative_to(ROOT)) for place in (*PLACES, *FURTHER) for path in tests.glob(place))


def listed() -> dict[str, str]:
    """Return the files of the table, and what it says that each of them shows."""
    rows = (_ROW.match(line) for line in README.read_text().splitlines())
    return {row["file"]: row["what"] for row in rows if row}


def sentence(file: str) -> str:
    """Return the first line of a file's docstring, as a cell of a table."""
    said = ast.get_docstring(_parsed(file)) or ""
    return said.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def tests(file: str) -> int:
    """Return how many test functions a file has; one that is parametrized counts once."""
    return sum(isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in ast.walk(_parsed(file)))


def _parsed(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


if __name__ == "__main__":
    main(sys.argv[1:])
