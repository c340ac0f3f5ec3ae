"""A number of inputs for each surface, the same ones each time: `make fuzz` tries others, and more."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.engine import SURFACES, keep, run, surface

SEED = 14


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Keep the log short: most inputs are worth a warning."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", SURFACES)
def test_no_input_breaks_anything(name: str, tmp_path: Path, request: pytest.FixtureRequest):
    tally = run(surface(name), SEED, inputs_max=request.config.getoption("--fuzz-inputs"))
    kept = {str(path): path.with_suffix(".txt").read_text() for path in keep(tally, tmp_path)}
    assert not kept, f"{tally}; again: make fuzz SURFACE={name} SEED={SEED}\n" + "\n".join(kept.values())
    assert tally.inputs > len(surface(name).seeds)
