"""The tables of a job: what is suspicious, and what a connection can do to them."""

import pytest

from ncclwatch.contract.errors import WireError
from ncclwatch_server.state.job_state import JobState
from ncclwatch_server.state.suspicion import Suspicion
from tests.unit.server.server_values import digest


def two_ranks(wait_s: float, *, enqueued: tuple[int, int] = (5, 5)) -> Suspicion:
    """Return what two digests a second apart, of which rank 1 waits, make suspicious."""
    state = JobState(2)
    state.announce(1, (0, 1), 10.0)
    for now, number in zip((10.0, 11.0), enqueued, strict=True):
        digest(state, 1, now, {0: 0.0, 1: wait_s}, enqueued=number)
        assert state.fold(now) == ()
    return state.suspicion(11.0)


def test_a_rank_that_waits_longer_than_a_second_without_moving_is_suspicious() -> None:
    assert two_ranks(1.01).waiting == (1,)
    assert two_ranks(1.0).waiting == ()


def test_a_rank_whose_frontier_moved_is_not_suspicious_however_old_its_wait() -> None:
    assert not two_ranks(30.0, enqueued=(5, 6))


def test_a_wait_that_is_not_a_number_is_not_suspicious() -> None:
    assert not two_ranks(float("nan"))


def test_ended_ranks_are_suspicious_while_others_live_and_the_job_is_over_when_none_does() -> None:
    state = JobState(2)
    state.announce(1, (0, 1), 0.0)
    digest(state, 1, 1.0, {0: 0.0, 1: 0.0}, ended=(1,))
    state.fold(1.0)
    assert state.suspicion(1.0).ended == (1,)
    assert not state.over
    state.note_ended(0)
    assert state.suspicion(1.0).ended == ()
    assert state.over


def test_a_quiet_agent_is_unheard_first_and_silent_after_five_seconds() -> None:
    state = JobState(2)
    state.announce(1, (0, 1), 0.0)
    digest(state, 1, 0.0, {0: 0.0, 1: 0.0})
    state.fold(0.0)
    assert state.suspicion(2.4).unheard == frozenset()
    assert state.suspicion(2.6).unheard == {0, 1}
    assert state.suspicion(5.0).silent == {}
    assert state.suspicion(5.1).silent == {0: 5.1, 1: 5.1}


def test_a_broken_connection_is_unheard_at_once_and_forgotten_when_another_takes_over() -> None:
    state = JobState(2)
    state.announce(1, (0, 1), 0.0)
    digest(state, 1, 0.0, {0: 0.0, 1: 9.0})
    state.fold(0.0)
    state.lose(1, 1.0)
    state.fold(1.0)
    assert state.suspicion(1.0).waiting == ()
    assert state.suspicion(1.0).unheard == {0, 1}
    state.announce(2, (0, 1), 2.0)
    digest(state, 2, 2.0, {0: 0.0, 1: 11.0})
    state.fold(2.0)
    assert state.suspicion(3.0).waiting == (1,)
    assert state.suspicion(3.0).unheard == frozenset()
    assert state.owner(1) == 2


def test_an_agent_that_said_all_its_ranks_have_ended_is_not_silent() -> None:
    state = JobState(2)
    state.announce(1, (0, 1), 0.0)
    digest(state, 1, 0.0, {0: 0.0, 1: 0.0})
    state.gone(1)
    state.lose(1, 1.0)
    state.fold(1.0)
    assert state.over
    assert state.suspicion(99.0).silent == {}


def test_a_rank_that_is_detached_is_not_suspected_and_the_others_are() -> None:
    state = JobState(2)
    state.announce(1, (0, 1), 0.0)
    digest(state, 1, 0.0, {0: 0.0, 1: 9.0}, detached=(1,))
    state.fold(0.0)
    assert not state.suspicion(2.0)
    assert state.suspicion(2.0).detached == {1}
    digest(state, 1, 2.0, {0: 9.0, 1: 9.0}, detached=(1,))
    state.fold(2.0)
    assert state.suspicion(4.0).waiting == (0,)


def test_rows_that_change_place_are_read_by_their_rank() -> None:
    state = JobState(2)
    state.announce(1, (0, 1), 0.0)
    digest(state, 1, 0.0, {0: 0.0, 1: 9.0})
    state.fold(0.0)
    digest(state, 1, 1.0, {1: 0.0, 0: 9.0})
    state.fold(1.0)
    assert state.suspicion(2.0).waiting == (0,)


def test_impossible_rows_are_rejected_and_harm_no_other_connection() -> None:
    state = JobState(3)
    state.announce(1, (0,), 0.0)
    state.announce(2, (1,), 0.0)
    digest(state, 1, 0.0, {0: 9.0})
    digest(state, 2, 0.0, {3: 9.0})
    assert state.fold(0.0) == (2,)
    assert state.suspicion(1.0).waiting == (0,)
    with pytest.raises(WireError):
        state.announce(3, (3,), 0.0)


def test_in_a_big_job_those_who_do_not_wait_and_those_behind_are_inspected_first() -> None:
    state = JobState(1000)
    state.announce(1, range(1000), 0.0)
    digest(state, 1, 0.0, {rank: 0.0 if rank == 700 else 9.0 for rank in range(1000)})
    state.fold(0.0)
    chosen = state.worth_a_look([rank for rank in range(1000) if rank != 700], 40)
    assert 700 in chosen
    assert 5 < len(chosen) <= 40


def test_the_rows_of_many_agents_are_folded_together() -> None:
    state = JobState(64)
    for link in range(8):
        state.announce(link, range(link * 8, link * 8 + 8), 0.0)
        digest(state, link, 0.0, {rank: 2.0 if rank % 2 else 0.0 for rank in range(link * 8, link * 8 + 8)})
    assert state.fold(0.0) == ()
    assert state.suspicion(1.0).waiting == tuple(range(1, 64, 2))
    digest(state, 3, 1.0, dict.fromkeys(range(24, 32), 2.0), enqueued=6)
    state.fold(1.0)
    assert state.suspicion(1.0).waiting == tuple(r for r in range(1, 64, 2) if not 24 <= r < 32)
