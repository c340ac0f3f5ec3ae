"""Which ranks of a big job are looked at: those to which the waits lead, and those round them."""

import numpy as np

from ncclwatch.contract.digests import WAIT_KINDS
from ncclwatch.contract.model.rank import WaitKind
from ncclwatch_server.state.digest_rows import GROUP_DTYPE
from ncclwatch_server.state.group_index import Topology
from ncclwatch_server.state.waits.chains import Leads, Memberships, Waits, follow, worth_a_look

RECV, COLLECTIVE, INIT = (WAIT_KINDS.index(k) for k in (WaitKind.RECV, WaitKind.COLLECTIVE, WaitKind.INIT))
Entry = tuple[int, int, int, int]  # (rank, group, enqueued, hash)


def waits_of(world: int, inside: dict[int, int], peers: dict[int, int], init: tuple[int, ...] = ()) -> Waits:
    """Return waits: ranks inside of groups, ranks that receive from peers, and ranks in init."""
    group, peer, kind = (np.full(world, -1, np.int64) for _ in range(3))
    for rank, number in inside.items():
        group[rank], kind[rank] = number, COLLECTIVE
    for rank, other in peers.items():
        peer[rank], kind[rank] = other, RECV
    kind[list(init)] = INIT
    return Waits(waiting=kind >= 0, group=group, peer=peer, kind=kind, present=np.ones(world, np.bool_))


def members_of(entries: list[Entry]) -> Memberships:
    """Return the memberships of these entries."""
    rows = np.array([(rank, 0.0, key, issued, prefix, 0, key) for rank, key, issued, prefix in entries], GROUP_DTYPE)
    return Memberships(
        rank=rows["rank"].astype(np.int64),
        topology=Topology.of(rows),
        enqueued=rows["enqueued"],
        prefix_hash=rows["prefix_hash"],
    )


def chosen_of(waits: Waits, members: Memberships, limit: int) -> list[int]:
    return worth_a_look(waits, members, follow(waits, members), limit).tolist()


def ends(leads: Leads) -> list[int]:
    return leads.ends().tolist()


# Two groups of four, and a third one across them. Rank 5 has not come to its group's fifth operation.
TWO_GROUPS = [(rank, rank // 4, 4 if rank == 5 else 5, 0) for rank in range(8)] + [(r, 2, 9, 0) for r in (0, 4)]


def test_waits_lead_through_groups_and_receives_to_the_rank_that_waits_for_nobody():
    inside = {1: 0, 2: 0, 3: 0, 4: 1, 6: 1, 7: 1}
    entries = [(0, 0, 4, 0), *TWO_GROUPS[1:]]  # rank 0 has not come either: it receives from rank 4
    leads = follow(waits_of(8, inside, {0: 4}), members_of(entries))
    assert leads.end.tolist() == [5] * 8
    assert ends(leads) == [5]


def test_a_circle_is_followed_round():
    leads = follow(waits_of(3, {2: 0}, {0: 1, 1: 2}), members_of([(0, 0, 1, 0), (2, 0, 2, 0)]))
    assert ends(leads) == [0, 1, 2]


def test_where_all_are_inside_the_waits_end_with_them_unless_one_was_stopped_or_ended_there():
    entries = [(rank, 0, 5, 0) for rank in range(3)]
    assert ends(follow(waits_of(3, {0: 0, 1: 0, 2: 0}, {}), members_of(entries))) == [0, 1, 2]
    assert ends(follow(waits_of(3, {0: 0, 1: 0}, {}), members_of(entries))) == [2]


def test_ranks_in_a_rendezvous_wait_for_those_that_are_not():
    assert ends(follow(waits_of(3, {}, {}, init=(0, 2)), members_of([(1, 0, 0, 0)]))) == [1]


def test_a_receive_from_a_rank_that_does_not_exist_ends_where_it_is():
    assert ends(follow(waits_of(2, {}, {0: 7}), members_of([(0, 0, 0, 0)]))) == [0, 1]


def big(odd: tuple[int, ...]) -> tuple[Waits, Memberships]:
    """Return a job of 4,096 ranks, all in one collective, into which some came with another history."""
    entries = [(rank, 0, 5, 7 if rank in odd else 3) for rank in range(4096)]
    return waits_of(4096, dict.fromkeys(range(4096), 0), {}), members_of(entries)


def test_the_few_whose_history_differs_are_among_the_chosen_and_few_among_them():
    chosen = chosen_of(*big((700, 3001)), limit=64)
    assert {700, 3001} <= set(chosen)
    assert 32 <= len(chosen) <= 64
    assert len(set(chosen)) == len(chosen)


def test_no_more_ranks_are_chosen_than_asked_for():
    odd = tuple(range(0, 4096, 2))
    assert all(len(chosen_of(*big(odd), limit=limit)) <= limit for limit in (1, 8, 100))


def test_ranks_behind_a_root_are_chosen_with_the_members_of_the_group_it_keeps_waiting():
    entries = [(rank, rank // 8, 5 - (rank == 1003), 0) for rank in range(2048)]
    inside = {rank: rank // 8 for rank in range(2048) if rank != 1003}
    chosen = chosen_of(waits_of(2048, inside, {}), members_of(entries), limit=64)
    assert set(range(1000, 1008)) <= set(chosen)


def counted(waits: Waits, members: Memberships, *ranks: int) -> list[int]:
    return np.flatnonzero(follow(waits, members).led_to(waits, ranks)).tolist()


def test_who_waits_for_a_rank_in_the_end_is_counted_and_who_waits_for_another_one_is_not():
    entries = [(rank, rank // 4, 4 if rank in (0, 4) else 5, 0) for rank in range(8)]
    waits = waits_of(8, {rank: rank // 4 for rank in (1, 2, 3, 5, 6)}, {7: 1})
    assert counted(waits, members_of(entries), 0) == [1, 2, 3, 7]
    assert counted(waits, members_of(entries), 4) == [5, 6]


def test_of_a_circle_any_rank_explains_all_and_those_before_it():
    waits = waits_of(5, {2: 0}, {0: 1, 1: 2, 3: 0, 4: 3})
    assert counted(waits, members_of([(0, 0, 1, 0), (2, 0, 2, 0)]), 1) == [0, 1, 2, 3, 4]


def test_where_all_are_inside_one_of_them_explains_all_and_those_before_them():
    entries = [(rank, 0, 5, int(rank == 1)) for rank in range(3)] + [(rank, 1, 2, 0) for rank in (4, 5)]
    waits = waits_of(6, {0: 0, 1: 0, 2: 0, 4: 1, 5: 1}, {3: 2})
    assert counted(waits, members_of(entries), 1) == [0, 1, 2, 3]
