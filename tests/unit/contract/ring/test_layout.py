"""The layout of the ring: every row begins at a whole cell, as the native recorder's vector stores need it."""

import pytest

from ncclwatch.contract.ring import layout

CELL_BYTES = 16
PLACES = [name for name in vars(layout) if name.endswith(("_BYTES", "S_AT")) and name != "RING_BYTES"]


@pytest.mark.parametrize("name", PLACES)
def test_rows_and_tables_are_made_of_whole_cells(name: str) -> None:
    assert vars(layout)[name] % CELL_BYTES == 0


def test_the_row_of_a_group_is_all_of_its_parts() -> None:
    assert layout.GROUP.size == layout.GROUP_BYTES
    assert len(PLACES) > 15
