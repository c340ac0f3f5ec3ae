"""Which side made one group more than the other: the one that made later what the other made in its place."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import CallSite, GroupView, RankView
from ncclwatch_server.judge.theory.waits.made_groups import unequal_groups
from tests.unit.server.server_values import view

ALL, PAIR = (0, 1, 2, 3), (0, 1)
Groups = Mapping[int, tuple[tuple[int, ...], int]]  # by number: members, and the line, 0 if it is not known


def rank(number: int, groups: Groups) -> RankView:
    """Return a rank that has made these groups."""
    made = tuple(
        GroupView(
            name=str(at), desc="", ranks=members, enqueued=0, completed=0, prefix_hash=0,
            site=CallSite(file="/u/train.py", line=line, function="main") if line else None,
        )
        for at, (members, line) in groups.items()
    )  # fmt: skip
    return replace(view(number), groups=made)


def extra(those: Groups, others: Groups) -> list[tuple[int, ...]]:
    """Return who made one more, of ranks 0 and 1 and ranks 2 and 3."""
    found = unequal_groups({number: rank(number, those if number < 2 else others) for number in ALL})
    assert found is not None
    return sorted(side.ranks for side in found.extra)


@pytest.mark.parametrize("lines", [(70, 72), (0, 0), (70, 0)])
def test_who_made_later_the_group_of_the_same_ranks_made_one_more(lines: tuple[int, int]):
    extra_line, line = lines
    assert extra({1: ((0, 1, 2), extra_line), 2: (ALL, line)}, {1: (ALL, line)}) == [(0, 1)]


def test_who_made_later_the_group_of_the_same_line_made_one_more():
    assert extra({1: ((0, 1, 2), 70), 2: ((0, 1), 72)}, {1: (ALL, 72)}) == [(0, 1)]


def test_who_made_later_another_group_at_another_line_did_not_make_one_more():
    assert extra({1: ((0, 1, 2), 70), 2: ((0, 1), 71)}, {1: (ALL, 72)}) == [(0, 1), (2, 3)]
