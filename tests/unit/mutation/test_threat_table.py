"""Each row of the threat model says which change of the source its test must notice, and the changes still apply."""

import pytest

from tests.mutation.threat_table import CHANGES, Change
from tests.mutation.threats import applied, rows

ALL = [change for changes in CHANGES.values() for change in changes]


def test_each_row_of_the_threat_model_has_a_change() -> None:
    assert len(rows()) > 50
    assert CHANGES.keys() == rows().keys()


@pytest.mark.parametrize("change", ALL, ids=lambda change: f"{change.file}-{change.was.strip()[:30]}")
def test_a_change_replaces_what_stands_once_in_its_file_and_leaves_a_program(change: Change) -> None:
    compile(applied(change), change.file, "exec")
    assert change.was != change.now
