"""Ranks that have issued equally much and not the same are noticed in the digests, before anything hangs."""

import numpy as np
import pytest

from ncclwatch.contract import digests
from ncclwatch.contract.groups import group_key, name_key
from ncclwatch_server import limits
from ncclwatch_server.state.job_state import JobState

GROUP, NAME = group_key("0", 77), name_key("0")


def digest(rows: list[tuple[int, int, int]]) -> tuple[memoryview, memoryview]:
    """Return rank and group rows of (rank, enqueued, hash)."""
    ranks = b"".join(
        digests.RANK_ROW.pack(rank, 0, 0, 1, 0, 0.1, 0.0, count, count, 0, *digests.NO_WAIT, *digests.NO_FACTS)
        for rank, count, _ in rows
    )
    groups = b"".join(digests.GROUP_ROW.pack(rank, 0.0, GROUP, count, prefix, 0, NAME) for rank, count, prefix in rows)
    return memoryview(ranks), memoryview(groups)


def looked_at(*digests: list[tuple[int, int, int]]) -> tuple[int, ...]:
    """Return who is out of step after these digests, one comparison apart."""
    state = JobState(len(digests[0]))
    state.announce(1, range(len(digests[0])), 0.0)
    found: tuple[int, ...] = ()
    for number, rows in enumerate(digests):
        now = 1.0 + number * (limits.DESYNC_EVERY_S + 1)
        state.receive_digest(1, *digest(rows), now)
        state.fold(now)
        found = state.suspicion(now).desynced
    return found


def test_different_histories_of_one_length_are_noticed_when_seen_twice():
    apart = [(0, 7, 70), (1, 7, 70), (2, 7, 71)]
    assert looked_at(apart, [(0, 9, 90), (1, 9, 90), (2, 9, 91)]) == (0, 1, 2)


def test_a_difference_is_remembered_over_moments_at_which_nothing_can_be_compared():
    apart, unlike = [(0, 7, 70), (1, 7, 71)], [(0, 8, 80), (1, 9, 91)]
    assert looked_at(apart, unlike, unlike) == ()
    assert looked_at(apart, unlike, [(0, 9, 90), (1, 9, 91)]) == (0, 1)
    assert looked_at(apart, [(0, 9, 90), (1, 9, 91)], unlike) == (0, 1)


def test_a_difference_that_was_not_seen_again_for_long_is_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "DESYNC_REMEMBERED_S", 1.5 * limits.DESYNC_EVERY_S)
    apart, unlike = [(0, 7, 70), (1, 7, 71)], [(0, 8, 80), (1, 9, 91)]
    assert looked_at(apart, unlike, [(0, 9, 90), (1, 9, 91)]) == ()
    assert looked_at(apart, apart, unlike, unlike) == ()


def test_one_torn_look_is_nothing():
    assert looked_at([(0, 7, 70), (1, 7, 71)], [(0, 9, 90), (1, 9, 90)]) == ()
    assert looked_at([(0, 7, 70), (1, 7, 71)]) == ()


def test_histories_of_different_lengths_cannot_be_compared():
    assert looked_at([(0, 7, 70), (1, 8, 80)], [(0, 9, 90), (1, 10, 100)]) == ()


def test_a_healthy_job_is_not_suspicious():
    state = JobState(2)
    state.announce(1, range(2), 0.0)
    for number in range(4):
        now = 1.0 + number * (limits.DESYNC_EVERY_S + 1)
        state.receive_digest(1, *digest([(0, number, number), (1, number, number)]), now)
        state.fold(now)
        assert not state.suspicion(now)


def test_the_comparison_of_a_big_job_is_short():
    rows = [(rank, 5, 50) for rank in range(16_384)]
    state = JobState(16_384)
    state.announce(1, range(16_384), 0.0)
    state.receive_digest(1, *digest(rows), 0.0)
    state.fold(0.0)
    assert state.suspicion(1.0).desynced == ()
    assert np.all(state.seen)


def test_a_big_job_is_compared_portion_by_portion_and_comes_round(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "DESYNC_ROWS_MIN", 4)
    world, state = 12, JobState(12)
    state.announce(1, range(world), 0.0)
    ranks = b"".join(
        digests.RANK_ROW.pack(r, 0, 0, 1, 0, 0.1, 0.0, 5, 5, 0, *digests.NO_WAIT, *digests.NO_FACTS)
        for r in range(world)
    )
    groups = b"".join(digests.GROUP_ROW.pack(r, 0.0, 100 + r // 4, 5, 1 + (r == 10), 0, 1) for r in range(world))
    found = []
    for number in range(8):
        now = 1.0 + number * (limits.DESYNC_EVERY_S + 1)
        state.receive_digest(1, memoryview(ranks), memoryview(groups), now)
        state.fold(now)
        found.append(state.suspicion(now).desynced)
    assert found == [(), (), (), *[(8, 9, 10, 11)] * 5]


def test_a_portion_with_a_difference_is_looked_at_again_until_it_can_be_compared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "DESYNC_ROWS_MIN", 4)
    world, state = 12, JobState(12)
    state.announce(1, range(world), 0.0)
    found = []
    for number, comparable in enumerate((True, False, False, True)):
        now = 1.0 + number * (limits.DESYNC_EVERY_S + 1)
        counts = [5 if comparable else 5 + rank % 4 for rank in range(world)]
        ranks = b"".join(
            digests.RANK_ROW.pack(r, 0, 0, 1, 0, 0.1, 0.0, n, n, 0, *digests.NO_WAIT, *digests.NO_FACTS)
            for r, n in enumerate(counts)
        )
        groups = b"".join(
            digests.GROUP_ROW.pack(r, 0.0, 100 + r // 4, n, n + 100 * (r == 2), 0, 1) for r, n in enumerate(counts)
        )
        state.receive_digest(1, memoryview(ranks), memoryview(groups), now)
        state.fold(now)
        found.append(state.suspicion(now).desynced)
    assert found == [(), (), (), (0, 1, 2, 3)]
