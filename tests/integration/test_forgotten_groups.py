"""A group may be destroyed at any moment, also while the pulse asks its works."""

from pathlib import Path

import pytest

from tests.integration.launch import run_ranks
from tests.integration.recorders import recorded_by

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.mark.parametrize("recorder", ["python", "hot", "native"])
def test_a_group_goes_while_another_thread_looks_how_far_it_is(recorder: str, tmp_path: Path):
    (rank,) = run_ranks("forgotten.py", 1, tmp_path, recorder, **recorded_by(recorder))
    assert rank.code == 0, rank.out + rank.err[-3000:]
    assert int(rank.out.split()[-1]) > 100
    assert not rank.err, rank.err[-3000:]


def test_a_tensor_is_the_programs_again_once_its_operation_was_waited_for(tmp_path: Path):
    """The native recorder held it until the next operation: FSDP2 then asked the system for other memory each step."""
    (rank,) = run_ranks("wanted_back.py", 1, tmp_path, **recorded_by("native"))
    assert rank.code == 0, rank.out + rank.err[-3000:]
    assert int(rank.out.split()[-1]) >= 15  # now and then the pulse asks a work first, or gloo's thread has no core
