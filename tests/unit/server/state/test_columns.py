"""A table that was turned holds what its rows hold, field by field, and does not change with them."""

import numpy as np
import pytest

from ncclwatch_server.state.columns import turned
from ncclwatch_server.state.digest_rows import RANK_DTYPE, SCREENED, STANDING


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 3000])
def test_fields_are_those_of_the_rows(count: int) -> None:
    raw = np.random.default_rng(count).integers(0, 256, count * RANK_DTYPE.itemsize, np.uint8)
    rows = raw.view(RANK_DTYPE)
    found = turned(rows, SCREENED)
    assert tuple(found) == SCREENED.names
    seen = rows.view(SCREENED)
    for name, column in found.items():
        assert column.dtype == seen[name].dtype
        assert column.tobytes() == seen[name].tobytes()
    before = {name: column.tobytes() for name, column in found.items()}
    raw[:] = 0
    assert before == {name: column.tobytes() for name, column in found.items()}


@pytest.mark.parametrize(
    ("name", "tells"),
    [("rank", True), ("ended", True), ("detached", True), ("state", False), ("initialised", False)],
)
def test_the_head_of_a_row_tells_of_its_rank_and_whether_that_is_over(name: str, tells: bool) -> None:
    before = np.zeros(1, RANK_DTYPE)
    after = before.copy()
    after[name] = 1
    heads = [int(turned(rows, SCREENED)["head"][0] & STANDING) for rows in (before, after)]
    assert (heads[0] != heads[1]) is tells


def test_both_ages_of_a_row_are_read_at_once() -> None:
    rows = np.zeros(2, RANK_DTYPE)
    rows["pulse_age_s"], rows["wait_age_s"] = (1.0, 2.0), (3.0, 4.0)
    assert turned(rows, SCREENED)["ages_s"].view(np.float32).tolist() == [1.0, 3.0, 2.0, 4.0]
