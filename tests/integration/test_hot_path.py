"""With its hot path in C the recorder in Python writes the same ring, byte for byte."""

from pathlib import Path

import pytest

from tests.integration.launch import run_ranks
from tests.integration.recorders import recorded_by

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.mark.parametrize(("backend", "seed"), [("fake", 1), ("fake", 2), ("gloo", 3), ("gloo", 5)])
def test_two_recorders_write_the_same_of_the_same_operations(backend: str, seed: int, tmp_path: Path):
    tmp_path.chmod(0o700)
    (rank,) = run_ranks("twins.py", 1, tmp_path, backend, str(tmp_path), str(seed), **recorded_by("hot"))
    assert rank.code == 0, rank.err[-3000:]
    operations, dropped, differ = rank.out.rstrip().split(", ", 2)
    assert int(operations.split()[0]) > 400
    assert (dropped, differ) == ("0 dropped", "differ at []")
