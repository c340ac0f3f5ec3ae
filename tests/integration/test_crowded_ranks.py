"""A rank that does more at once than its ring has rows for is recorded right, and for ever."""

from pathlib import Path

import pytest

from tests.integration.launch import run_ranks
from tests.integration.recorders import recorded_by

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


@pytest.mark.parametrize("recorder", ["python", "hot", "native"])
def test_what_is_more_than_the_tables_hold_is_recorded_right_or_said_to_be_unknown(recorder: str, tmp_path: Path):
    for rank in run_ranks("crowded.py", 2, tmp_path, recorder, **recorded_by(recorder)):
        assert rank.code == 0, rank.out + rank.err[-3000:]
        assert rank.out.count("ok") == 5
