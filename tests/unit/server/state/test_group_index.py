"""Group rows in order by group: where they lie, and whose hashes differ."""

import numpy as np

from ncclwatch_server.state.digest_rows import GROUP_DTYPE
from ncclwatch_server.state.group_index import Topology
from ncclwatch_server.state.last_heard import Listening

Entry = tuple[int, int, int, int]  # (rank, key of the group, enqueued, hash)


def rows_of(*entries: Entry) -> "np.ndarray[tuple[int], np.dtype[np.void]]":
    return np.array([(rank, 0.0, key, count, 0, prefix) for rank, key, count, prefix in entries], GROUP_DTYPE)


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
    assert Topology.of(apart).apart(apart, 0, 3).tolist() == [4, 0, 2]
    assert Topology.of(apart).apart(apart, 0, 2).tolist() == []
    apart["enqueued"][4] = 4  # behind: it may have been the same when the others were there
    for prefix in (0, 99):
        apart["prefix_hash"][4] = prefix
        assert Topology.of(apart).apart(apart, 0, 3).tolist() == []


def test_without_groups_nothing_is_apart():
    empty = THREE[:0]
    assert Topology.of(empty).groups == 0
    assert Topology.of(empty).apart(empty, 0, 0).tolist() == []


def test_rows_that_are_of_another_rank_or_group_now_do_not_fit():
    topology = Topology.of(THREE)
    assert topology.fits(THREE)
    for field in ("rank", "group"):
        other = THREE.copy()
        other[field][3] = 2 if field == "group" else 1
        assert not topology.fits(other)
        assert topology.fits(other, np.array([0, 1]))


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
