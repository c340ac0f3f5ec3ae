"""A rank's device is known before NCCL looks at it, and CUDA is asked for nothing before the program has begun it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ncclwatch.contract.model.devices import DeviceView  # noqa: E402
from ncclwatch.contract.ring import facts  # noqa: E402 - needs torch
from ncclwatch.contract.ring.layout import Word  # noqa: E402
from ncclwatch.contract.ring.reader import Ring  # noqa: E402
from ncclwatch.rank.patches import chosen_device  # noqa: E402
from ncclwatch.rank.patches.patching import Patches  # noqa: E402
from ncclwatch.rank.recorder import Recorder  # noqa: E402
from ncclwatch.rank.ring.ringfile import RingFile  # noqa: E402
from tests.unit.rank.pretended_devices import pretend  # noqa: E402


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    found = Recorder(RingFile(str(tmp_path / "0-1.ring"), rank=0, local_rank=0, world=(2, 2), attempt=0))
    patches = Patches()
    chosen_device.install(patches, lambda: found)
    yield found
    patches.restore()


def told(recorder: Recorder) -> DeviceView | None:
    with Ring(recorder.ring.path) as ring:
        return facts.parse(ring.string(ring.words()[Word.FACTS])).device


class Bound:
    """A group that init_process_group(device_id=...) has made."""

    bound_device_id = torch.device("cuda", 1)


def uuid_of(number: int) -> str:
    return f"GPU-8e2f0a1c-0000-0000-0000-{number:012d}"


def test_a_device_that_is_chosen_is_known_by_its_uuid(recorder: Recorder, monkeypatch: pytest.MonkeyPatch):
    pretend(monkeypatch, 4, current=2)
    torch.cuda.set_device(2)
    found = told(recorder)
    assert found is not None
    assert (found.index, found.uuid, found.chosen, found.used, found.count) == (2, uuid_of(2), 2, False, 4)


def test_a_tensor_on_another_device_moves_the_rank_and_not_its_choice(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
):
    pretend(monkeypatch, 4, current=2)
    torch.cuda.set_device(2)
    chosen_device.note_used(recorder, 0)
    torch.cuda.set_device(2)
    found = told(recorder)
    assert (found.index, found.uuid, found.chosen, found.used) == (0, uuid_of(0), 2, True)


def test_cuda_that_has_not_begun_is_left_alone(recorder: Recorder, monkeypatch: pytest.MonkeyPatch):
    pretend(monkeypatch, 4)
    monkeypatch.setattr(torch.cuda, "_initialized", False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: pytest.fail("CUDA was asked"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: pytest.fail("CUDA was asked"))
    torch.cuda.set_device(2)
    assert told(recorder) is None


def test_the_environment_that_decides_is_told_with_the_backend(recorder: Recorder, monkeypatch: pytest.MonkeyPatch):
    pretend(monkeypatch, 4, current=1)
    pg = Bound()
    monkeypatch.setattr(chosen_device, "default_group", lambda: (pg, "cuda:nccl"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    chosen_device.note_group(recorder)
    found = told(recorder)
    assert (found.backend, found.visible, found.local_rank) == ("cuda:nccl", "4,5,6,7", 1)
    assert (found.sharing, found.exclusive) == ("NCCL_MULTI_RANK_GPU_ENABLE=1", False)
    assert (found.index, found.chosen) == (1, 1)


@pytest.mark.parametrize(
    ("uuid", "visible", "physical"),
    [
        ("8e2f-1", None, "GPU-8e2f-1"),
        ("GPU-8e2f-1", "0,1", "GPU-8e2f-1"),
        ("8e2f-1", "MIG-3c", "MIG-3c"),
        ("00000000-0000-0000-0000-000000000000", None, ""),
        ("", None, ""),
    ],
)
def test_a_mig_instance_is_no_gpu_and_zeros_are_no_uuid(uuid: str, visible: str | None, physical: str):
    assert chosen_device.physical(uuid, visible) == physical


def test_sharing_is_legal_under_mps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chosen_device, "_MPS_CONTROL", "/nowhere")
    assert chosen_device.environment({})["sharing"] == ""
    assert chosen_device.environment({"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"})["sharing"] == "MPS"
    assert chosen_device.environment({"NCCL_MULTI_RANK_GPU_ENABLE": "0"})["sharing"] == ""
    assert chosen_device.environment({"NCCL_HOSTID": "rank-1"})["sharing"] == "NCCL_HOSTID=rank-1"


def test_a_rank_that_changes_its_device_for_ever_fills_nothing(recorder: Recorder, monkeypatch: pytest.MonkeyPatch):
    pretend(monkeypatch, 2)
    for number in range(500):
        chosen_device.note_index(recorder, number % 2)
    assert recorder.ring.word(Word.DROPPED) == 1
    assert recorder.ring.word(Word.STRINGS_USED) < 20_000


def test_a_device_that_was_taken_before_attach_is_known_at_attach(recorder: Recorder, monkeypatch: pytest.MonkeyPatch):
    chosen_device.note_begun(recorder)
    assert told(recorder) is None
    pretend(monkeypatch, 4, current=3)
    chosen_device.note_begun(recorder)
    assert (told(recorder).index, told(recorder).chosen) == (3, 3)


@pytest.mark.parametrize(("held", "chosen"), [((), 0), ((0, 2), 0), ((2,), -1)])
def test_a_device_that_is_only_the_current_one_is_not_chosen(
    held: tuple[int, ...], chosen: int, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
):
    """A program may name its device in each call, and never set it."""
    pretend(monkeypatch, 4, current=0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda index: 1 << 20 if index in held else 0)
    chosen_device.note_begun(recorder)
    found = told(recorder)
    assert (found.chosen if found is not None else -1) == chosen


def test_the_device_that_the_default_group_was_given_is_the_one_chosen(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
):
    pretend(monkeypatch, 4, current=0)
    chosen_device.note_begun(recorder)
    monkeypatch.setattr(chosen_device, "default_group", lambda: (Bound(), "cuda:nccl"))
    chosen_device.note_group(recorder)
    found = told(recorder)
    assert found is not None
    assert (found.index, found.chosen) == (1, 1)
