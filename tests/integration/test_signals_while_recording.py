"""What the user's signal handlers raise while the recorder is under way is the program's, and reaches it."""

from pathlib import Path

import pytest

from tests.integration.launch import run_ranks
from tests.integration.recorders import recorded_by

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.mark.parametrize("recorder", ["python", "hot", "native"])
def test_what_a_signal_handler_raises_reaches_the_program(recorder: str, tmp_path: Path):
    (rank,) = run_ranks("signalled.py", 1, tmp_path, recorder, **recorded_by(recorder))
    assert rank.code == 0, rank.out[-2000:] + rank.err[-3000:]
    _, raised, _, reached = rank.out.split()
    assert int(raised) > 100
    assert raised == reached, rank.err[-3000:]


@pytest.mark.parametrize("recorder", ["python", "hot", "native"])
def test_a_signal_at_any_line_of_the_recorder_reaches_the_program(recorder: str, tmp_path: Path):
    (rank,) = run_ranks("signalled_everywhere.py", 1, tmp_path, recorder, **recorded_by(recorder))
    assert rank.code == 0, rank.out[-2000:] + rank.err[-3000:]
    lines, raised, reached = map(int, rank.out.split())
    assert lines > 100
    assert lines == raised == reached, rank.err[-3000:]
