"""docs/bounds.md says how much of everything is kept: the numbers are those of the code."""

import importlib
import re
from pathlib import Path

import pytest

ROWS = re.findall(
    r"^\| [^|]+ \| (\d+) \| `([\w.]+)\.(\w+)` \|", (Path(__file__).parents[2] / "docs" / "bounds.md").read_text(), re.M
)


def test_each_row_names_a_number_of_the_code():
    rows = [line for line in (Path(__file__).parents[2] / "docs" / "bounds.md").read_text().splitlines() if "`" in line]
    assert len(ROWS) == sum(line.startswith("|") for line in rows) > 30


@pytest.mark.parametrize(("number", "module", "name"), ROWS)
def test_the_number_is_that_of_the_code(number: str, module: str, name: str):
    assert getattr(importlib.import_module(module), name) == int(number)
