"""A recorder that raises, has no room, or shares its places with another library never reaches training."""

from pathlib import Path

import pytest

from tests.integration.launch import run_ranks
from tests.integration.recorders import recorded_by

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


@pytest.mark.parametrize("recorder", [pytest.param("python", marks=pytest.mark.long), "hot", "native"])
def test_no_fault_of_the_recorder_reaches_training(recorder: str, tmp_path: Path):
    ranks = run_ranks("faults.py", 2, tmp_path, recorder, **recorded_by(recorder))
    for rank in ranks:
        assert rank.code == 0, rank.out[-2000:] + rank.err[-3000:]
        faults = int(rank.out.split()[-1])
        assert faults > 60
        assert rank.out.count("ok ") == faults + 5 + 2
