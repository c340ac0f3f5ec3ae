"""The smallest repair names the rank that was changed, and is never certain of another one."""

import pytest

from tests.spmd.repair.measure import lines_of, measured, measured_twice
from tests.spmd.test_spmd import FRESH


@pytest.mark.parametrize(
    ("first", "count"), [(1, 300), pytest.param(FRESH, 500, marks=pytest.mark.fresh)], ids=["fixed seed", "fresh seed"]
)
def test_the_smallest_repair_is_never_certain_of_a_rank_that_was_not_changed(first: int, count: int) -> None:
    assert measured(first, count).certain_wrong == []


def test_the_changed_rank_is_among_those_that_are_told() -> None:
    found = measured(1, 300)
    assert (found.missed, found.failures.total()) == ([], 0)
    assert found.alone[True] / found.hangs[True] > 0.9


def test_what_was_measured_is_told_in_lines() -> None:
    lines = list(lines_of(measured(1, 20)))
    assert "hangs;" in lines[0]
    assert any("certain and wrong: 0" in line for line in lines)


def test_programs_that_do_not_hang_are_told_as_such() -> None:
    assert list(lines_of(measured(1, 0))) == ["no program hangs"]


def test_two_changed_ranks_are_told_together() -> None:
    found = measured_twice(1, 1500)
    assert found["hangs"] > 3
    assert (found["both told"], found["certain of a rank that was not changed"]) == (found["hangs"], 0)
