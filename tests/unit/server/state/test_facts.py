"""What ranks say of themselves makes a job worth a look: two on one device, or something that one has just found."""

from ncclwatch.contract import digests
from ncclwatch_server.state.job_state import JobState


def report(
    state: JobState, link: int, ranks: dict[int, tuple[int, int]], now: float, ended: tuple[int, ...] = ()
) -> None:
    rows = [
        (rank, 0, int(rank in ended), 1, 0, 0.1, 0.0, 5, 5, 0, *digests.NO_WAIT, 0, *found, *digests.NO_PACE)
        for rank, found in ranks.items()
    ]
    _, rank_rows, group_rows = digests.split_digest(digests.pack_digest(0, rows, []))
    state.receive_digest(link, rank_rows, group_rows, now)
    state.fold(now)


def two_nodes() -> JobState:
    state = JobState(4)
    state.announce(1, (0, 1), 0.0)
    state.announce(2, (2, 3), 0.0)
    return state


def test_ranks_on_one_device_are_seen_on_a_node_and_across_nodes():
    state = two_nodes()
    report(state, 1, {0: (7, 0), 1: (8, 0)}, 1.0)
    report(state, 2, {2: (9, 0), 3: (10, 0)}, 1.0)
    assert not state.suspicion(1.0)
    report(state, 2, {2: (9, 0), 3: (7, 0)}, 2.0)
    assert state.suspicion(2.0).sharing == (0, 3)
    report(state, 1, {0: (8, 0), 1: (8, 0)}, 3.0)
    assert state.suspicion(3.0).sharing == (0, 1)
    report(state, 1, {0: (7, 0), 1: (8, 0)}, 4.0)
    report(state, 2, {2: (9, 0), 3: (10, 0)}, 4.0)
    assert not state.suspicion(4.0)


def test_devices_that_may_be_shared_or_are_unknown_are_nobodys():
    state = two_nodes()
    report(state, 1, {0: (0, 0), 1: (0, 0)}, 1.0)
    report(state, 2, {2: (0, 0), 3: (0, 0)}, 1.0)
    assert not state.suspicion(1.0)


def test_of_ranks_on_one_device_the_living_are_looked_at():
    state = two_nodes()
    report(state, 1, {0: (7, 0), 1: (7, 0)}, 1.0, ended=(1,))
    assert state.suspicion(1.0).sharing == (0,)


def test_a_rank_that_has_something_to_tell_is_looked_at_while_it_is_new():
    state = two_nodes()
    report(state, 1, {0: (0, 0), 1: (0, 1)}, 1.0)
    assert state.suspicion(1.0).noted == (1,)
    assert state.suspicion(1.0)
    report(state, 1, {0: (0, 0), 1: (0, 0)}, 2.0)
    assert not state.suspicion(2.0)
