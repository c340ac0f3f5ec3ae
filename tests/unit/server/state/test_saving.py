"""Which ranks of a job may be writing one file is told by their digests alone."""

import pytest

from ncclwatch.contract import digests
from ncclwatch_server import limits
from ncclwatch_server.state.job_state import JobState


def state_of(saves_to: list[int], ended: tuple[int, ...] = ()) -> JobState:
    world = len(saves_to)
    state = JobState(world)
    state.announce(1, range(world), 0.0)
    names = [name for name, _ in digests.RANK_FIELDS]
    rows = b""
    for rank, key in enumerate(saves_to):
        values = dict.fromkeys(names, 0) | {"rank": rank, "initialised": 1, "waits_for": -1, "wait_kind": -1}
        values |= {"saves_to": key, "ended": int(rank in ended)}
        rows += digests.RANK_ROW.pack(*(values[name] for name in names))
    state.receive_digest(1, memoryview(rows), memoryview(b""), 0.0)
    state.fold(0.0)
    return state


@pytest.mark.parametrize(
    ("saves_to", "looked_at"),
    [
        ([0, 0, 0], ()),
        ([7, 8, 9], ()),
        ([7, 0, 0], ()),
        ([7, 8, 7], (0, 2)),
        ([0, digests.SAVE_TROUBLE, 8], (1,)),
        ([2**64 - 1, 5, 2**64 - 1], (0, 2)),
    ],
)
def test_ranks_are_looked_at_that_save_to_one_file_or_cannot_save(saves_to: list[int], looked_at: tuple[int, ...]):
    suspicion = state_of(saves_to).suspicion(1.0)
    assert suspicion.saving == looked_at
    assert bool(suspicion) == bool(looked_at)


def test_a_rank_that_has_ended_saves_no_more():
    assert state_of([7, 7, 0], ended=(1,)).suspicion(1.0).saving == ()


def test_of_a_big_job_some_are_looked_at():
    assert len(state_of([7] * 500).suspicion(1.0).saving) == limits.SAVING_MAX
