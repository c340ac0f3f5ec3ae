"""The recipe for a new cause shows the code as it is, and names modules, classes and texts that exist."""

import re
from pathlib import Path

import pytest

from ncclwatch_server.judge.rules import RULES, process_frozen
from ncclwatch_server.judge.theory import roots

ROOT = Path(__file__).parents[4]
RECIPE = (ROOT / "docs/adding-a-cause.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", RECIPE, re.DOTALL)
PATHS = re.findall(r"`((?:tests|ncclwatch|server)/[\w/.]+)`", RECIPE)


@pytest.mark.parametrize(("file", "code"), SHOWN)
def test_the_module_that_is_shown_is_the_module(file: str, code: str) -> None:
    assert (ROOT / file).read_text(encoding="utf-8").endswith(code)


def test_a_module_is_shown() -> None:
    assert len(SHOWN) == 1


@pytest.mark.parametrize("path", PATHS)
def test_what_it_names_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_roots_that_it_names_are_all_there_are() -> None:
    named = set(re.findall(r"`(\w+Root)`", RECIPE))
    assert named == {each.__name__ for each in roots.Root.__subclasses__()}


def test_its_example_is_in_the_list() -> None:
    assert process_frozen.RULE in RULES
