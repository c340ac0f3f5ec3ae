"""restore_rng_state restores what fits, seeds the rest so that a second resume does the same, and says what it did."""

import random

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

import ncclwatch  # noqa: E402 - needs torch
from tests.unit.rank.pretended_devices import pretend, states  # noqa: E402


def test_fewer_devices_get_the_first_states(monkeypatch: pytest.MonkeyPatch):
    generators = pretend(monkeypatch, 2)
    done = ncclwatch.restore_rng_state(states(3))
    assert [g.initial_seed() for g in generators] == [100, 101]
    assert (done.restored, done.seeded, done.left_over) == (("cuda:0", "cuda:1"), (), 1)


def test_more_devices_are_seeded_by_what_was_saved_the_rank_and_the_device(monkeypatch: pytest.MonkeyPatch):
    def seeds(saved: list[torch.Tensor], rank: int) -> list[int]:
        generators = pretend(monkeypatch, 4)
        done = ncclwatch.restore_rng_state(saved, rank=rank)
        assert [name for name, _ in done.seeded] == ["cuda:2", "cuda:3"]
        assert [seed for _, seed in done.seeded] == [g.initial_seed() for g in generators[2:]]
        return [g.initial_seed() for g in generators[2:]]

    first = seeds(states(2), 0)
    assert seeds(states(2), 0) == first
    all_of_them = [*first, *seeds(states(2), 1), *seeds(states(3)[1:], 0)]
    assert len(set(all_of_them)) == 6
    assert all(0 <= seed < 2**63 for seed in all_of_them)


def test_the_seed_of_a_device_does_not_change_between_versions(monkeypatch: pytest.MonkeyPatch):
    pretend(monkeypatch, 1)
    saved = [torch.tensor([1, 2, 3], dtype=torch.uint8)]  # of another size than any generator takes
    ((name, seed),) = ncclwatch.restore_rng_state(saved, rank=5).seeded
    assert (name, seed) == ("cuda:0", 3376666857833746698)


def test_all_that_a_trainer_saves_is_restored(monkeypatch: pytest.MonkeyPatch):
    pretend(monkeypatch, 1)
    monkeypatch.setenv("WORLD_SIZE", "3")
    saved = {
        "python": random.Random(3).getstate(),
        "numpy": numpy.random.RandomState(4).get_state(),
        "torch": torch.Generator().manual_seed(5).get_state(),
        "torch_cuda": states(1),
        "world_size": 4,
    }
    kept = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    try:
        done = ncclwatch.restore_rng_state(saved)
        assert random.random() == random.Random(3).random()
        assert numpy.random.rand() == numpy.random.RandomState(4).rand()
        assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(5))
    finally:
        random.setstate(kept[0])
        numpy.random.set_state(kept[1])
        torch.set_rng_state(kept[2])
    assert done.restored == ("python", "numpy", "torch", "cuda:0")
    assert "saved by 4 ranks, resumed by 3" in str(done)


def test_one_state_alone_is_that_of_the_rank_s_own_device(monkeypatch: pytest.MonkeyPatch):
    generators = pretend(monkeypatch, 2, current=1)
    done = ncclwatch.restore_rng_state({"cuda": states(1)[0]})
    assert done.restored == ("cuda:1",)
    assert generators[1].initial_seed() == 100


def test_a_state_of_the_host_that_cannot_be_one_is_told_and_the_others_are_restored(monkeypatch: pytest.MonkeyPatch):
    pretend(monkeypatch, 1)
    done = ncclwatch.restore_rng_state({"python": "nonsense", "torch_cuda": states(1)})
    assert done.restored == ("cuda:0",)
    assert "python stays as it is" in str(done)


def test_without_devices_their_states_are_left_over():
    done = ncclwatch.restore_rng_state(states(2))
    assert (done.restored, done.seeded) == ((), ())
    assert done.left_over == max(0, 2 - torch.cuda.device_count())


def test_anything_else_is_refused_with_a_sentence():
    with pytest.raises(TypeError, match="a list of device states or a dict"):
        ncclwatch.restore_rng_state("rng_state.pth")
