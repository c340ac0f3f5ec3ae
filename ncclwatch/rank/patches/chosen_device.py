"""Notes which device this rank takes and which it uses, before NCCL's first collective looks at it.

What the program chose is seen where it calls `torch.cuda.set_device` or names a device in `init_process_group`; what it
uses, at the tensors of its first collective, before the backend gets them. CUDA is asked for nothing before the program
has begun it.
"""

import functools
import os
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ncclwatch.contract.ring import facts
from ncclwatch.rank.patches import guarded
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder

Current = Callable[[], Recorder | None]
ENV_SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"  # since NCCL 2.30
ENV_HOST = "NCCL_HOSTID"  # NCCL compares devices within what this calls a host
_MPS_CONTROL = "/tmp/nvidia-mps/control"  # of the daemon that lets processes share a GPU, where it is not moved


def install(patches: Patches, current: Current) -> None:
    """Patch what chooses a device."""
    patches.replace(torch.cuda, "set_device", lambda f: _make_set_device(f, current))


def _make_set_device(original: Callable[..., object], current: Current) -> Callable[..., object]:
    @functools.wraps(original)
    def set_device(*args: object, **kwargs: object) -> object:
        result = original(*args, **kwargs)
        recorder = current()
        if recorder is not None:
            guarded.attempt(recorder, _note_chosen, recorder)
        return result

    return set_device


def _note_chosen(recorder: Recorder, chosen: int | None = None) -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        chosen = torch.cuda.current_device() if chosen is None else chosen
        recorder.facts.tell(facts.DEVICE, chosen=chosen)
        if "used" not in recorder.facts.known(facts.DEVICE):
            note_index(recorder, chosen)


def note_group(recorder: Recorder) -> None:
    """Note by what backend the default group moves data, and the device it was bound to."""
    pg, config = default_group()
    if pg is None:
        return
    recorder.facts.tell(facts.DEVICE, backend=config, **environment(os.environ))
    bound = getattr(pg, "bound_device_id", None)
    if bound is not None and bound.index is not None:
        _note_chosen(recorder, bound.index)
    elif torch.cuda.is_initialized() and "chosen" in recorder.facts.known(facts.DEVICE):  # type: ignore[no-untyped-call]
        _note_chosen(recorder)


def note_begun(recorder: Recorder) -> None:
    """Note the device of a process that began CUDA before it attached, by whatever call.

    Where it holds memory of other devices only, it names its device in each call, and has chosen no current one.
    """
    guarded.attempt(recorder, _note_taken, recorder)


def _note_taken(recorder: Recorder) -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        held = [index for index in range(torch.cuda.device_count()) if torch.cuda.memory_allocated(index)]
        if not held or torch.cuda.current_device() in held:
            _note_chosen(recorder)


def default_group() -> "tuple[c10d.ProcessGroup | None, str]":
    """Return the default group and what backends it has, such as "cpu:gloo,cuda:nccl"."""
    pg = dist.group.WORLD
    return pg, str(c10d._world.pg_backend_config.get(pg, "")) if pg is not None else ""


def note_used(recorder: Recorder, index: int) -> None:
    """Note the device of a tensor that a collective of NCCL was given."""
    recorder.facts.tell(facts.DEVICE, used=True)
    note_index(recorder, index)


def note_index(recorder: Recorder, index: int) -> None:
    """Note this rank's device, by number and as the driver knows it."""
    found: dict[str, object] = {"index": index}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        uuid = str(getattr(torch.cuda.get_device_properties(index), "uuid", ""))
        found |= {"uuid": physical(uuid, os.environ.get("CUDA_VISIBLE_DEVICES")), "count": torch.cuda.device_count()}
    recorder.facts.tell(facts.DEVICE, **found)


def physical(uuid: str, visible: str | None) -> str:
    """Return what tells a device from every other one: of a MIG instance, that is not the GPU.

    A process sees one instance at most, the first that CUDA_VISIBLE_DEVICES names.
    """
    instance = (visible or "").split(",")[0].strip()
    if instance.startswith("MIG-"):
        return instance
    bare = uuid.removeprefix("GPU-")
    return f"GPU-{bare}" if bare.strip("0-") else ""  # virtual GPUs may have none


def environment(environ: Mapping[str, str]) -> dict[str, object]:
    """Return what of the environment says which devices a process sees, and whether they may be shared."""
    local = environ.get("LOCAL_RANK", "")
    sharing = ""
    if environ.get(ENV_SHARING, "0") not in ("", "0"):
        sharing = f"{ENV_SHARING}={environ[ENV_SHARING]}"
    elif environ.get(ENV_HOST):
        sharing = f"{ENV_HOST}={environ[ENV_HOST]}"
    elif environ.get("CUDA_MPS_PIPE_DIRECTORY") or os.path.exists(_MPS_CONTROL):
        sharing = "MPS"
    return {
        "visible": environ.get("CUDA_VISIBLE_DEVICES"),
        "local_rank": int(local) if local.isdigit() else -1,
        "sharing": sharing,
    }
