"""What `ncclwatch simulate` refuses before it begins."""

import pytest

from ncclwatch_server.simulation.command import Unusable, _layout


@pytest.mark.parametrize(("ranks", "layout"), [(100_001, None), (None, "dp=999999999"), (None, "tp=8,dp=20000")])
def test_a_job_that_no_memory_holds_is_refused(ranks: int | None, layout: str | None):
    with pytest.raises(Unusable, match="at most 100,000 ranks"):
        _layout(ranks, layout)
