"""Inputs that once broke something, and seeds: each is taken as it must be."""

from pathlib import Path

import pytest

from tests.fuzz.engine import CORPUS, SURFACES, outcome, surface

KEPT = sorted(CORPUS.glob("*/*"))
CORPUS_BYTES_MAX = 200_000


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_once_broke_something_breaks_nothing(path: Path):
    _, place, told = outcome(surface(path.parent.name), path.read_bytes())
    assert (place, told) == ("", "")


@pytest.mark.parametrize("name", SURFACES)
def test_seeds_are_taken(name: str):
    this = surface(name)
    assert [this.check(data) for data in this.seeds]


def test_the_corpus_is_small_and_belongs_to_surfaces():
    assert sum(path.stat().st_size for path in KEPT) < CORPUS_BYTES_MAX
    assert {path.parent.name for path in KEPT} <= set(SURFACES)
