"""What is written about the zoo fits its programs; the words that a truth asks of a fix are in some advice."""

import ast
import re
from pathlib import Path

import pytest

from tests.zoo.truth import PROGRAMS, load

SERVER = Path(__file__).parents[2] / "server/ncclwatch_server"
ADVISORS = [path for place in ("judge", "stragglers") for path in (SERVER / place).rglob("*.py")]


@pytest.fixture(scope="module", name="strings")
def _strings() -> list[str]:
    return [
        node.value.lower()
        for path in ADVISORS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_words_of_a_fix_are_words_of_an_advice(path: Path, strings: list[str]) -> None:
    words = load(path).advice_any
    assert not words or any(word in text for word in words for text in strings)


def test_the_table_of_the_zoo_has_each_program():
    table = (PROGRAMS.parent / "README.md").read_text()
    assert re.findall(r"^\| ([a-z]+\d\w+) \|", table, re.MULTILINE) == sorted(
        path.stem for path in PROGRAMS.glob("*.toml")
    )
