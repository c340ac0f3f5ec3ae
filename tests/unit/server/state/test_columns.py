"""A table that was turned holds what its rows hold, field by field, and does not change with them."""

import numpy as np
import pytest

from ncclwatch_server.state.columns import turned
from ncclwatch_server.state.digest_rows import RANK_DTYPE


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 3000])
def test_fields_are_those_of_the_rows(count: int) -> None:
    raw = np.random.default_rng(count).integers(0, 256, count * RANK_DTYPE.itemsize, np.uint8)
    rows = raw.view(RANK_DTYPE)
    found = turned(rows, "noted")
    assert list(found) == list((RANK_DTYPE.names or ())[: len(found)])
    assert list(found)[-1] == "noted"
    for name, column in found.items():
        assert column.dtype == rows[name].dtype
        assert column.tobytes() == rows[name].tobytes()
    before = {name: column.tobytes() for name, column in found.items()}
    raw[:] = 0
    assert before == {name: column.tobytes() for name, column in found.items()}
