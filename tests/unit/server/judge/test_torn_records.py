"""Ranks whose record of a call cannot be read: what their threads wait in is compared all the same."""

from dataclasses import replace

import pytest

from ncclwatch_server.judge import judge
from tests.scenarios.texts import situation


@pytest.mark.parametrize("torn", [(1,), (0, 1, 2)], ids=["of the odd rank", "of all"])
def test_what_a_thread_waits_in_is_compared_where_its_record_cannot_be_read(torn: tuple[int, ...]) -> None:
    text = """world 3
group dp 0-2
history 0-2 dp#1-6 all_reduce train.py:44
in 0,2 dp#7 all_reduce train.py:44 for 20
in 1 dp#7 barrier train.py:60 for 20
"""
    snapshot = situation(text).snapshot()
    ranks = {
        rank: replace(view, history=view.history[:-1], groups=tuple(replace(g, pending=None) for g in view.groups))
        if rank in torn
        else view
        for rank, view in snapshot.ranks.items()
    }
    (verdict, *_) = judge(replace(snapshot, ranks=ranks))
    assert [culprit.rank for culprit in verdict.culprits] == [1]
    assert "barrier at train.py:60" in verdict.summary
