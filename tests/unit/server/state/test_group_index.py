"""Group rows in order by group: where they lie, and whose hashes differ."""

import numpy as np

from ncclwatch.contract.groups import group_key, name_key
from ncclwatch_server.state.digest_rows import GROUP_DTYPE
from ncclwatch_server.state.group_index import Topology
from ncclwatch_server.state.last_heard import Listening

Entry = tuple[int, int, int, int]  # (rank, key of the group, enqueued, hash)


def rows_of(*entries: Entry) -> "np.ndarray[tuple[int], np.dtype[np.void]]":
    return np.array([(rank, 0.0, key, count, prefix, 0, key) for rank, key, count, prefix in entries], GROUP_DTYPE)


def told_apart(rows: "np.ndarray[tuple[int], np.dtype[np.void]]", end: int) -> list[int]:
    """Return the rows that are apart in the groups before this one."""
    found = Topology.of(rows).apart(rows, 0, end)
    assert found is not None
    return found.tolist()


THREE = rows_of((0, 9, 5, 1), (0, 4, 7, 2), (1, 9, 5, 1), (2, 4, 7, 2), (3, 9, 5, 1), (3, 6, 1, 8))


def test_rows_are_found_by_group_in_the_order_of_the_keys():
    topology = Topology.of(THREE)
    assert topology.keys.tolist() == [4, 6, 9]
    assert [topology.rows_of(n, n + 1).tolist() for n in range(3)] == [[1, 3], [5], [0, 2, 4]]
    assert topology.number.tolist() == [2, 0, 2, 0, 2, 1]


def test_a_portion_holds_whole_groups_and_at_least_one():
    topology = Topology.of(THREE)
    assert [topology.portion(0, limit) for limit in (1, 2, 3, 5, 6, 100)] == [1, 1, 2, 2, 3, 3]
    assert topology.portion(2, 1) == 3


def test_members_at_the_front_of_their_group_are_compared():
    apart = THREE.copy()
    apart["prefix_hash"][4] = 0
    assert told_apart(apart, 3) == [4, 0, 2]
    assert told_apart(apart, 2) == []
    apart["enqueued"][4] = 4  # behind: it may have been the same when the others were there
    for prefix in (0, 99):
        apart["prefix_hash"][4] = prefix
        assert told_apart(apart, 3) == []


def test_without_groups_nothing_is_apart():
    empty = THREE[:0]
    assert Topology.of(empty).groups == 0
    assert told_apart(empty, 0) == []


def test_rows_that_are_of_another_rank_or_group_now_do_not_fit():
    topology = Topology.of(THREE)
    assert topology.fits(THREE)
    for field in ("rank", "group"):
        other = THREE.copy()
        other[field][3] = 2 if field == "group" else 1
        assert not topology.fits(other)
        assert topology.apart(other, 0, 1) is None, "row 3 is in the first group"
        assert topology.apart(other, 1, 3) is not None


def test_many_connections_are_asked_at_once_when_they_spoke_last():
    heard = Listening()
    for number in range(100):
        heard.note(number, float(number))
    assert heard.quiet_since(2.0) == [0, 1, 2]
    heard.note(1, 50.0)
    heard.forget(0)
    heard.note(200, 1.5)
    assert sorted(heard.quiet_since(2.0)) == [2, 200]
    assert heard.at(1) == 50.0


def named(*entries: tuple[int, str, int]) -> "np.ndarray[tuple[int], np.dtype[np.void]]":
    """Return rows of (rank, name, digest of the members)."""
    rows = [(rank, 0.0, group_key(name, members), 1, 7, 0, name_key(name)) for rank, name, members in entries]
    return np.array(rows, GROUP_DTYPE)


def together(topology: Topology) -> list[list[int]]:
    """Return the ranks of each group, sorted."""
    return sorted(topology.members[topology.rows_of(number, number + 1)].tolist() for number in range(topology.groups))


def test_groups_of_one_name_and_other_members_are_two_groups_of_that_name():
    topology = Topology.of(named((0, "1", 50), (1, "1", 50), (2, "1", 60), (3, "1", 60)))
    assert together(topology) == [[0, 1], [2, 3]]
    assert topology.names.tolist() == [name_key("1")] * 2


def test_a_rank_that_does_not_know_the_members_is_in_the_group_of_that_name_that_most_hold():
    rows = named((0, "1", 50), (1, "1", 60), (2, "1", 60), (3, "1", 0), (3, "2", 0), (4, "2", 0), (4, "3", 70))
    topology = Topology.of(rows)
    assert together(topology) == [[0], [1, 2, 3], [3, 4], [4]]
    numbers = topology.number_of(rows["group"])
    assert numbers.tolist() == topology.number.tolist()
    assert topology.names[numbers].tolist() == [name_key(name) for name in "1111223"]
    assert topology.fits(rows)


def test_a_key_that_no_row_has_is_of_no_group():
    topology = Topology.of(named((0, "1", 50), (1, "1", 0)))
    keys = np.array([0, group_key("1"), group_key("1", 50), group_key("1", 51), 2**64 - 1], np.uint64)
    assert topology.number_of(keys).tolist() == [-1, 0, 0, -1, -1]
    assert Topology.of(named()).number_of(keys).tolist() == [-1] * 5
