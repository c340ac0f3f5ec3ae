"""Ranks that came to a wait with an exception in hand. Those who work in an except block for good are none."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import CallSite, Op, OpView, RankView, ThreadView, WaitKind, WaitView
from ncclwatch_server.judge.theory.histories.exceptions import astray, handled_by
from tests.unit.server.server_values import view

TEXT = "ValueError: bad label"
SITE = CallSite(file="/u/train.py", line=41, function="step")


def handling(rank: int, exception: str = TEXT, *, waits: bool = True, alive: bool = True) -> RankView:
    """Return a rank whose thread handles an exception."""
    wait = WaitView(kind=WaitKind.COLLECTIVE, age_s=3.0) if waits else None
    thread = ThreadView(
        tid=1, main=True, issued=1, wait=wait, exception=exception, exception_site=SITE, alive=alive
    )  # fmt: skip
    return replace(view(rank), threads=(thread,))


def after(seen: RankView, op_s: float, *, exception: str = TEXT, completed: bool = True) -> RankView:
    """Return a rank that noted an exception ten seconds ago and issued an operation `op_s` ago."""
    op = OpView(group="dp", seq=1, op=Op.ALL_REDUCE, age_s=op_s, completed=completed)
    return replace(seen, last_exception=exception, last_exception_s=10.0, history=(op,))


def test_a_wait_in_an_except_block_is_told_with_where_it_was_raised():
    found = handled_by(handling(2))
    assert found is not None
    assert (found.rank, found.text, found.site) == (2, TEXT, SITE)


@pytest.mark.parametrize(
    "seen", [handling(0, ""), handling(0, waits=False), handling(0, alive=False), replace(handling(0), threads=())]
)
def test_who_handles_nothing_or_waits_for_nobody_is_not_astray(seen: RankView):
    assert handled_by(seen) is None


@pytest.mark.parametrize(
    ("op_s", "exception", "completed", "still_new"),
    [
        (9.9, TEXT, True, False),  # it works in this block
        (10.0, TEXT, True, True),  # that was the operation that raised
        (9.9, TEXT, False, True),
        (9.9, "KeyError: 'x'", True, True),  # that was another exception
    ],
)
def test_an_exception_is_old_once_operations_have_completed_since(
    op_s: float, exception: str, completed: bool, still_new: bool
):
    seen = after(handling(0), op_s, exception=exception, completed=completed)
    assert (handled_by(seen) is not None) is still_new


def test_where_all_ranks_handle_one_it_is_how_they_work():
    views = {0: handling(0), 1: handling(1), 2: handling(2, "")}
    assert [each.rank for each in astray(views, (0, 1, 2))] == [0, 1]
    assert astray(views, (0, 1)) == ()
