"""A rank writes how it was set up once, and again when it changes; what it cannot tell never reaches training."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402 - needs torch
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from ncclwatch.contract import config  # noqa: E402
from ncclwatch.contract.model import preflight  # noqa: E402
from ncclwatch.contract.model.preflight import RankFacts, parse, parse_parameters  # noqa: E402
from ncclwatch.rank.checks.preflight import gather, members_text, unmet_interfaces  # noqa: E402
from ncclwatch.rank.patches import models  # noqa: E402
from ncclwatch.rank.patches.patching import Patches  # noqa: E402
from ncclwatch.rank.recorder import Recorder  # noqa: E402
from ncclwatch.rank.ring.ringfile import RingFile  # noqa: E402


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(RingFile(str(tmp_path / "0-1.ring"), rank=0, local_rank=0, world=(1, 1), attempt=0))


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def patched(recorder: Recorder) -> Iterator[Recorder]:
    patches = Patches()
    models.install(patches, lambda: recorder)
    yield recorder
    patches.restore()


def text(recorder: Recorder) -> str:
    return Path(recorder.ring.path + config.FACTS_SUFFIX).read_text()


def said(recorder: Recorder) -> RankFacts:
    return parse(text(recorder))


def test_versions_and_named_variables_are_told_and_nothing_else_of_the_environment():
    found = gather({"NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO", "AWS_SECRET_ACCESS_KEY": "x"}, "nccl", 600_000)
    assert found[preflight.TORCH] == torch.__version__.split("+")[0]
    assert (found["NCCL_ALGO"], found[preflight.TIMEOUT_S], found[preflight.BACKEND]) == ("Ring", "600", "nccl")
    assert set(found) <= preflight.KEYS
    assert "NCCL_DEBUG" not in found


def test_it_is_written_once_and_again_when_something_is_noted(recorder: Recorder):
    recorder.preflight.publish()
    path = Path(recorder.ring.path + config.FACTS_SUFFIX)
    first = path.stat()
    recorder.preflight.publish()
    recorder.preflight.note_backend("")
    recorder.preflight.publish()
    assert path.stat().st_mtime_ns == first.st_mtime_ns

    recorder.preflight.note_backend("gloo")
    recorder.preflight.publish()

    assert said(recorder).get(preflight.BACKEND) == "gloo"
    assert first.st_mode & 0o777 == 0o600


def test_what_cannot_be_written_is_not_tried_again_and_again(recorder: Recorder, monkeypatch: pytest.MonkeyPatch):
    tried = []

    def refuse(*_: object, **__: object) -> None:
        tried.append(1)
        raise OSError("no space")

    monkeypatch.setattr("ncclwatch.contract.machine.private_dirs.os.open", refuse)
    with pytest.raises(OSError, match="no space"):
        recorder.preflight.publish()
    recorder.preflight.publish()
    assert tried == [1]


def test_a_thread_that_finds_another_one_writing_leaves_it_to_that(recorder: Recorder):
    with recorder.preflight._writing:
        recorder.preflight.publish()
        assert not Path(recorder.ring.path + config.FACTS_SUFFIX).exists()
    recorder.preflight.publish()
    assert said(recorder).get(preflight.TORCH)


def test_a_model_too_long_to_be_told_by_name_is_told_by_digest(recorder: Recorder):
    long = [(f"layer{number}." + "x" * 140, "float32 4x4") for number in range(preflight.PARAMETERS_MAX)]
    for kind in ("DDP", "FSDP", "FSDP2"):
        recorder.preflight.note_wrapped(kind, [0, 1], long, ["/u/t.py", 1, "f"])
    recorder.preflight.publish()
    assert len(text(recorder)) <= config.FACTS_BYTES_MAX
    assert [(model.total, len(model.units)) for model in said(recorder).models] == [(len(long), 1)] * 3


def test_digests_agree_up_to_where_two_models_part(recorder: Recorder, tmp_path: Path):
    other = Recorder(RingFile(str(tmp_path / "1-2.ring"), rank=1, local_rank=1, world=(2, 2), attempt=0))
    for each, last in ((recorder, "float32 8x8"), (other, "float32 8x9")):
        each.preflight.note_wrapped("FSDP2", [0, 1], [("a", "float32 4")], [])
        each.preflight.note_wrapped("FSDP2", [0, 1], [("b", last)], [])
        each.preflight.publish()
    (one,), (two,) = said(recorder).models, said(other).models
    assert one.units[0] == two.units[0]
    assert one.units[1] != two.units[1]


def test_what_fsdp2_has_sharded_is_whole_at_its_first_use(recorder: Recorder):
    recorder.preflight.note_wrapped("FSDP2", [0, 1], [("a", "float32 4")], [])
    recorder.preflight.publish()
    assert said(recorder).models[0].used == 0
    recorder.preflight.note_use()
    recorder.preflight.note_wrapped("FSDP2", [0, 1], [("b", "float32 4")], [])
    recorder.preflight.note_use()
    recorder.preflight.publish()
    assert (said(recorder).models[0].used, len(said(recorder).models[0].units)) == (1, 2)


def test_more_kinds_of_wrappers_than_there_is_room_for_are_not_compared(recorder: Recorder):
    for number in range(preflight.MODELS_MAX + 3):
        recorder.preflight.note_wrapped("DDP", [0, number + 1], [("a", "float32 4")], [])
    recorder.preflight.publish()
    assert len(said(recorder).models) == preflight.MODELS_MAX


@pytest.mark.parametrize(
    ("environ", "backend", "unmet"),
    [
        ({"NCCL_SOCKET_IFNAME": "ib"}, "nccl", "NCCL_SOCKET_IFNAME=ib"),
        ({"NCCL_SOCKET_IFNAME": "ib"}, "gloo", ""),
        ({"NCCL_SOCKET_IFNAME": "eth"}, "nccl", ""),
        ({"GLOO_SOCKET_IFNAME": "eth1"}, "cpu:gloo,cuda:nccl", "GLOO_SOCKET_IFNAME=eth1"),
        ({"GLOO_SOCKET_IFNAME": "eth1"}, "nccl", ""),
        ({}, "nccl", ""),
    ],
)
def test_an_interface_that_is_not_here_matters_to_the_backend_that_asks_for_it(
    environ: dict[str, str], backend: str, unmet: str
):
    assert unmet_interfaces(environ, backend, ("lo", "eth0")) == unmet


def test_members_of_an_odd_big_group_are_told_in_a_bounded_text_that_tells_groups_apart():
    even, primes = list(range(0, 999, 2)), [*range(0, 997, 2), 997]
    assert members_text([2, 0, 1]) == "0-2"
    assert len(members_text(even)) < 200
    assert members_text(even) != members_text(primes)


def test_ddp_tells_what_it_wraps_before_it_compares(patched: Recorder, group: None):
    module = torch.nn.Linear(3, 2)
    module.bias.requires_grad_(False)
    DistributedDataParallel(module)
    (model,) = said(patched).models
    assert (model.kind, model.members, model.total) == ("DDP", "0", 2)
    assert model.site is not None
    assert Path(model.site[0]).name == Path(__file__).name
    assert parse_parameters(text(patched), ("DDP", "0")) == ("weight float32 2x3", "bias float32 2 frozen")


def test_parameters_that_ddp_is_told_to_ignore_are_not_compared(patched: Recorder, group: None):
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["1.weight", "1.bias"])
    DistributedDataParallel(module)
    assert parse_parameters(text(patched), ("DDP", "0")) == ("0.weight float32 2x3", "0.bias float32 2")


def test_an_iterator_of_what_ddp_ignores_is_left_to_it(patched: Recorder, group: None):
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    module._ddp_params_and_buffers_to_ignore = iter(["1.weight", "1.bias"])  # type: ignore[assignment]
    assert DistributedDataParallel(module).parameters_to_ignore == {"1.weight", "1.bias"}


def test_a_generator_of_what_fsdp_ignores_is_left_to_it(patched: Recorder, group: None):
    from torch.distributed.fsdp import FullyShardedDataParallel

    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    wrapped = FullyShardedDataParallel(
        module, ignored_states=(each for each in module[1].parameters()), device_id=torch.device("cpu")
    )
    assert len(wrapped._ignored_params) == 2


def test_a_model_that_ddp_refuses_raises_as_without_us_and_leaves_no_mark(patched: Recorder, group: None):
    with pytest.raises(RuntimeError, match="requires a gradient"):
        DistributedDataParallel(torch.nn.Linear(3, 2).requires_grad_(False))
    assert not patched.wrapping


def test_a_model_whose_parameters_have_no_shape_yet_is_not_told_and_nothing_of_ours_is_raised(
    patched: Recorder, group: None
):
    with pytest.raises(RuntimeError, match="uninitialized parameters"):
        DistributedDataParallel(torch.nn.LazyLinear(3))


def test_fsdp2_tells_its_units_and_their_whole_shapes(patched: Recorder, group: None):
    from torch.distributed.fsdp import fully_shard

    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    fully_shard(module[0])
    fully_shard(module)
    module(torch.randn(1, 3)).sum().backward()
    patched.preflight.publish()
    (model,) = said(patched).models
    assert (model.kind, model.members, len(model.units), model.used) == ("FSDP2", "0", 2, 2)
    assert parse_parameters(text(patched), ("FSDP2", "0")) == (
        "Linear.weight float32 2x3", "Linear.bias float32 2", "Sequential.1.weight float32 2x2",
        "Sequential.1.bias float32 2",
    )  # fmt: skip


def test_fsdp1_tells_what_it_wraps_once_though_it_wraps_its_parts_first(patched: Recorder, group: None):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    policy = ModuleWrapPolicy({torch.nn.Linear})
    FullyShardedDataParallel(module, auto_wrap_policy=policy, device_id=torch.device("cpu"))
    patched.preflight.publish()
    (model,) = said(patched).models
    assert (model.kind, len(model.units), model.total) == ("FSDP", 1, 4)
    assert json.loads(text(patched))["models"][0]["parameters"][0] == "0.weight float32 2x3"


def test_fsdp1_that_is_nested_by_hand_tells_nothing_of_the_shards_inside(patched: Recorder, group: None):
    """Each rank has another part of what was wrapped before."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    cpu = torch.device("cpu")
    module[0] = FullyShardedDataParallel(module[0], device_id=cpu, use_orig_params=True)
    FullyShardedDataParallel(module, device_id=cpu, use_orig_params=True)
    patched.preflight.publish()
    told = json.loads(text(patched))["models"]
    names = ["weight float32 2x3", "bias float32 2", "1.weight float32 2x2", "1.bias float32 2"]
    assert [each["parameters"] for each in told] == [names]
