"""Ranks that made groups of one name and other members, and are connected to the wrong ones."""

from ncclwatch.contract.model.verdict import Cause, Certainty
from ncclwatch_server.judge import judge
from tests.scenarios.texts import situation

PAIRS = """
world 3
group 0 0-2
group 1 0-1
group one 0,2
group two 0,2
group 2 1-2
named 2 one 1
named 0 two 2
made 0-1 1 pairs.py:21:pairs
made 2 one pairs.py:21:pairs
made 0 two pairs.py:21:pairs
made 1-2 2 pairs.py:21:pairs
history 0-2 0#1-20 all_reduce train.py:44
history 0 1#1-2 all_reduce pairs.py:27:average
history 0 two#1-2 all_reduce pairs.py:27:average
history 2 one#1-2 all_reduce pairs.py:27:average
history 2 2#1-2 all_reduce pairs.py:27:average
in 1 1#1 all_reduce pairs.py:27:average for 12
in 0,2 0#21 all_reduce train.py:44 for 12
unused 2 two
unused 0 one
unused 1 one
unused 1 two
"""


def test_a_wait_in_a_group_that_found_the_wrong_ranks_is_told_by_the_groups():
    """Each rank makes only the groups of its own pairs. Rank 0 is through with them: it was connected to rank 2."""
    (found,) = judge(situation(PAIRS).snapshot())
    assert (found.cause, found.certainty) == (Cause.INIT_INCOMPLETE, Certainty.STALLED)
    assert found.summary.startswith("ranks 0-1 called new_group for ranks 0-1")
    assert "group 1 is that of ranks 0-1 for ranks 0-1; and that of ranks 0,2 for rank 2" in found.explanation
    assert found.explained == (3, 3)


def test_a_later_group_whose_name_no_other_one_has_is_not_told_by_them():
    text = (
        PAIRS.replace("group 2 1-2\n", "group 2 1-2\ngroup 3 1-2\n")
        .replace("made 1-2 2 pairs", "made 1-2 3 pairs.py:30:pairs\nmade 1-2 2 pairs")
        .replace("in 1 1#1 all_reduce", "history 1 1#1-2 all_reduce pairs.py:27:average\nin 1 3#1 all_reduce")
        .replace("in 0,2 0#21", "history 2 3#1-1 all_reduce pairs.py:31:average\nin 0,2 0#21")
    )
    assert all(found.cause is not Cause.INIT_INCOMPLETE for found in judge(situation(text).snapshot()))


def test_it_is_told_only_after_a_while():
    text = PAIRS.replace("average for 12", "average for 5")
    assert judge(situation(text).snapshot()) == ()
