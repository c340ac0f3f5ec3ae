"""Groups of one name and other members are kept apart, however many of them there are."""

from dataclasses import replace

from ncclwatch.contract.model.rank import GroupView
from ncclwatch_server.judge.theory.waits.group_identity import name_of, told_apart
from tests.unit.server.server_values import view

LISTS = {0: (0, 1, 2), 1: (0, 1, 2), 2: (2, 3), 3: (3, 4)}


def test_the_list_that_most_hold_keeps_its_name_and_each_other_one_gets_a_name_of_its_own():
    views = {
        rank: replace(
            view(rank), groups=(GroupView(name="1", desc="", ranks=ranks, enqueued=1, completed=0, prefix_hash=0),)
        )
        for rank, ranks in LISTS.items()
    }
    names = {rank: each.groups[0].name for rank, each in told_apart(views).items()}
    assert names[0] == names[1] == "1"
    assert len({names[0], names[2], names[3]}) == 3
    assert {name_of(name) for name in names.values()} == {"1"}
