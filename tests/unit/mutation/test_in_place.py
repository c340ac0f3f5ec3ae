"""A mistake that is put into an imported module reaches what the module made while it was imported."""

from pathlib import Path

import pytest

from tests.mutation import in_place
from tests.mutation.mutants import mutants

ONE = """
def equals(key):
    return lambda value: value == key

FOUND = equals(3)
"""
TWO = """
def both(key):
    return (lambda value: value == key), (lambda value: value > key)

FOUND = both(3)[0]
"""


def put(source: str, file: Path) -> tuple[bool, bool]:
    """Return whether the first mistake can be put into a module, and what FOUND says of 3 afterwards."""
    right = compile(source, str(file), "exec")
    module: dict[str, object] = {}
    exec(right, module)
    mistake = in_place.replaced(str(file), right, compile(next(mutants(source)).text, str(file), "exec"))
    assert mistake is not None
    in_place._functions.cache_clear()
    try:
        done = mistake.put()
    finally:
        in_place._functions.cache_clear()
    found = module["FOUND"]
    assert callable(found)
    return done, found(3)


@pytest.mark.parametrize(("source", "done", "says"), [(ONE, True, False), (TWO, False, True)], ids=["one", "two"])
def test_a_function_that_was_made_on_import(source: str, done: bool, says: bool, tmp_path: Path) -> None:
    assert put(source, tmp_path / "module.py") == (done, says)
