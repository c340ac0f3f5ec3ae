"""Random states that do not fit the devices are told before torch raises, and where torch says nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ncclwatch.contract.ring import facts  # noqa: E402 - needs torch
from ncclwatch.contract.ring.layout import Word  # noqa: E402
from ncclwatch.contract.ring.reader import Ring  # noqa: E402
from ncclwatch.rank.patches import rng  # noqa: E402
from ncclwatch.rank.patches.patching import Patches  # noqa: E402
from ncclwatch.rank.recorder import Recorder  # noqa: E402
from ncclwatch.rank.ring.ringfile import RingFile  # noqa: E402
from tests.unit.rank.pretended_devices import pretend, states  # noqa: E402


class Watched:
    """A rank whose restores are watched: what it was told, and what its ring says."""

    def __init__(self, path: str) -> None:
        ring = RingFile(path, rank=0, local_rank=0, world=(2, 2), attempt=0)
        self.recorder = Recorder(ring)
        self.path, self.told = path, []
        self.patches = Patches()
        rng.install(self.patches, lambda: self.recorder, lambda sentence, subject: self.told.append(sentence))

    def noted(self) -> facts.RngRestore | None:
        with Ring(self.path) as ring:
            return facts.parse(ring.string(ring.words()[Word.FACTS])).rng


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    found = Watched(str(tmp_path / "0-1.ring"))
    yield found
    found.patches.restore()


def test_more_states_than_devices_are_told_before_torch_raises(watched: Watched, monkeypatch: pytest.MonkeyPatch):
    pretend(monkeypatch, 2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(IndexError):
        torch.cuda.set_rng_state_all(states(3))
    (said,) = watched.told
    assert "test_rng.py" in said
    assert "states of 3 devices" in said
    assert "(world size 2) sees 2" in said
    assert "restore_rng_state" in said
    noted = watched.noted()
    assert noted is not None and noted.site is not None
    assert (noted.saved, noted.present, noted.own) == (3, 2, 0)
    assert noted.site.function == "test_more_states_than_devices_are_told_before_torch_raises"


def test_fewer_states_than_devices_are_told_by_a_rank_whose_device_gets_none(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
):
    pretend(monkeypatch, 4, current=3)
    torch.cuda.random.set_rng_state_all(states(2))
    (said,) = watched.told
    assert "devices 2-3 keep the random state of the start" in said
    assert watched.noted().own == 3


def test_a_rank_whose_own_device_gets_a_state_says_nothing(watched: Watched, monkeypatch: pytest.MonkeyPatch):
    pretend(monkeypatch, 4, current=1)
    torch.cuda.set_rng_state_all(states(2))
    assert watched.told == []


def test_device_0_of_a_rank_that_has_chosen_none_is_nobodys(watched: Watched, monkeypatch: pytest.MonkeyPatch):
    pretend(monkeypatch, 4, current=0)
    monkeypatch.setenv("LOCAL_RANK", "3")
    torch.cuda.set_rng_state_all(states(2))
    assert len(watched.told) == 1
    assert watched.noted().own == -1


def test_a_state_for_a_device_that_is_not_there_is_told(watched: Watched, monkeypatch: pytest.MonkeyPatch):
    pretend(monkeypatch, 2)
    with pytest.raises(IndexError):
        torch.cuda.set_rng_state(states(1)[0], "cuda:2")
    assert "torch.cuda.set_rng_state at" in watched.told[0]
    assert (watched.noted().saved, watched.noted().present) == (3, 2)


@pytest.mark.parametrize("given", [list, iter])
def test_states_that_fit_are_restored_in_silence(given: type, watched: Watched, monkeypatch: pytest.MonkeyPatch):
    generators = pretend(monkeypatch, 2)
    torch.cuda.set_rng_state_all(given(states(2)))
    assert [generator.initial_seed() for generator in generators] == [100, 101]
    assert (watched.told, watched.noted()) == ([], None)


def test_without_cuda_the_states_are_never_used_and_nothing_is_said(watched: Watched, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "_queued_calls", [])
    monkeypatch.setattr(torch.cuda, "_initialized", False)
    torch.cuda.set_rng_state_all(states(3))
    assert (watched.told, watched.noted()) == ([], None)


def test_torch_gets_its_own_functions_back(watched: Watched):
    ours = torch.cuda.set_rng_state_all.__code__
    watched.patches.restore()
    assert torch.cuda.set_rng_state_all is torch.cuda.random.set_rng_state_all
    assert torch.cuda.set_rng_state_all.__code__ is not ours
