"""Ranks that deserve a look because of the loops they are in."""

from ncclwatch.contract.wire import Loop
from ncclwatch_server.state.dataloaders import RANKS_MAX, Loops

LOOP = "/u/train.py:10"


def loop(rank: int, length: int, number: int = 1, *, drawn: int = 3, ended: bool = False, even: bool = False) -> Loop:
    """Return what a rank says of its loop."""
    return Loop(rank, LOOP, number, drawn, length, ended, even)


def uneven(*loops: Loop) -> tuple[int, ...]:
    """Return what is worth a look after this news."""
    known = Loops()
    known.receive_loops(loops)
    return known.uneven()


def test_ranks_whose_loaders_differ_in_length_are():
    assert uneven(loop(0, 49), loop(1, 47), loop(2, 49)) == (0, 1, 2)


def test_a_rank_out_of_data_is_with_those_that_have_drawn_more():
    assert uneven(loop(0, 0, drawn=8), loop(1, 0, drawn=6, ended=True), loop(2, 0, drawn=6)) == (0, 1)


def test_a_length_that_held_on_one_rank_counts_on_the_others():
    assert uneven(loop(0, 49, drawn=47), loop(1, 47, drawn=47, ended=True)) == (0, 1)


def test_few_of_many_are():
    found = uneven(*(loop(rank, 40 + rank % 2) for rank in range(100)))

    assert len(found) == 2 * RANKS_MAX
    assert {rank % 2 for rank in found} == {0, 1}


def test_none_are_where_lengths_agree_or_are_unknown_or_passes_differ_or_something_keeps_them_together():
    assert uneven(loop(0, 49), loop(1, 49)) == ()
    assert uneven(loop(0, 0), loop(1, 0)) == ()
    assert uneven(loop(0, 49), loop(1, 47, number=2)) == ()
    assert uneven(loop(0, 9, drawn=6), loop(1, 9, drawn=6, ended=True)) == ()
    assert uneven(loop(0, 49, even=True), loop(1, 47, even=True)) == ()
    assert uneven(loop(0, 49, ended=True, drawn=49), loop(1, 47, ended=True, drawn=47)) == ()


def test_a_length_that_nobody_knows_is_not_the_least():
    assert uneven(loop(0, 49), loop(1, 0), loop(2, 49)) == ()


def test_a_loop_that_has_moved_on_is_forgotten():
    known = Loops()
    known.receive_loops((loop(0, 49), loop(1, 47)))
    assert known.uneven() == (0, 1)

    known.receive_loops((loop(0, 50, number=2), loop(1, 50, number=2)))

    assert known.uneven() == ()


def test_only_a_loop_that_begins_or_ends_is_news():
    known = Loops()

    assert known.receive_loops((loop(0, 49),))
    assert not known.receive_loops((loop(0, 49, drawn=20),))
    assert known.receive_loops((loop(0, 49, drawn=49, ended=True),))
