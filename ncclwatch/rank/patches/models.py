"""Notes which parameters each wrapper of a model gets, before it tells the others: names, shapes and types.

DDP compares shapes itself, and then crashes with two numbers, or hangs where its comparison meets another collective;
FSDP compares nothing. What is noted here costs about a microsecond for each parameter, once.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ncclwatch.rank import torch_versions
from ncclwatch.rank.checks.preflight import Parameter
from ncclwatch.rank.patches import guarded
from ncclwatch.rank.patches.imports import when_imported
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.where.call_sites import describe

Current = Callable[[], Recorder | None]
_IGNORED = ("ignored_modules", "ignored_states")  # arguments of FSDP1


def install(patches: Patches, current: Current) -> None:
    """Patch the constructors of what wraps models."""
    patches.replace(DistributedDataParallel, "__init__", lambda f: _make_wrapper(f, current, _note_ddp))
    when_imported(patches, torch_versions.FSDP, lambda: _install_fsdp(patches, current))


def _install_fsdp(patches: Patches, current: Current) -> None:
    parts = torch_versions.fsdp1_parts()
    if parts is not None:
        patches.replace(parts[0], "__init__", lambda f: _make_wrapper(f, current, _note_fsdp))
    unit = torch_versions.fsdp2_unit_class()
    if unit is not None:
        patches.replace(unit, "__init__", lambda f: _make_wrapper(f, current, _note_unit))
        patches.replace(unit, "lazy_init", lambda f: _make_use(f, current))


def _make_wrapper(
    original: Callable[..., object], current: Current, note: Callable[[Recorder, dict[str, object]], None]
) -> Callable[..., object]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(*args: object, **kwargs: object) -> object:
        recorder = current()
        if recorder is None or recorder.wrapping:  # FSDP1 wraps what is inside of a module before the module itself
            return original(*args, **kwargs)
        guarded.attempt(recorder, lambda: note(recorder, signature.bind(*args, **kwargs).arguments))
        recorder.wrapping = True
        try:
            return original(*args, **kwargs)
        finally:
            recorder.wrapping = False

    return __init__


def _make_use(original: Callable[..., object], current: Current) -> Callable[..., object]:
    @functools.wraps(original)
    def lazy_init(*args: object, **kwargs: object) -> object:
        recorder = current()
        if recorder is not None:
            guarded.attempt(recorder, recorder.preflight.note_use)
        return original(*args, **kwargs)

    return lazy_init


def _note_ddp(recorder: Recorder, given: dict[str, object]) -> None:
    module = given["module"]
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    if isinstance(module, torch.nn.Module) and isinstance(ignored, Collection):  # an iterator would be used up
        found = [each for each in _parameters(module) if each[0] not in ignored]
        ranks = _ranks(given.get("process_group"), given.get("device_mesh"))
        recorder.preflight.note_wrapped("DDP", ranks, found, _site(recorder))
        recorder.preflight.publish()  # DDP may raise, or gloo abort, before the next pulse


def _note_fsdp(recorder: Recorder, given: dict[str, object]) -> None:
    module = given["module"]
    if any(not isinstance(given.get(name) or (), Collection) for name in _IGNORED):
        return  # a generator would be used up by looking, and without it nobody knows what is wrapped
    if isinstance(module, torch.nn.Module):
        ignored = {id(parameter) for part in (*_ignored(given), *_wrapped_before(module)) for parameter in part}
        ranks = _ranks(given.get("process_group"), given.get("device_mesh"))
        recorder.preflight.note_wrapped("FSDP", ranks, list(_parameters(module, ignored)), _site(recorder))


def _note_unit(recorder: Recorder, given: dict[str, object]) -> None:
    params, modules = given["params"], given["modules"]
    if not isinstance(params, Sequence) or not isinstance(modules, Sequence):
        return
    named = {id(p): f"{type(module).__name__}.{name}" for module in modules for name, p in module.named_parameters()}
    found = [(named.get(id(parameter), "?"), _shape(parameter)) for parameter in params]
    ranks = _ranks(None, getattr(given["mesh_info"], "mesh", None))
    recorder.preflight.note_wrapped("FSDP2", ranks, found, _site(recorder))


def _parameters(module: torch.nn.Module, ignored: Collection[int] = ()) -> Iterator[Parameter]:
    for name, parameter in module.named_parameters():
        if id(parameter) not in ignored:
            yield name, _shape(parameter)


def _shape(parameter: torch.Tensor) -> str:
    """Return what has to agree of a parameter; of a DTensor the shape of the whole."""
    size = "x".join(map(str, parameter.shape)) or "scalar"
    dtype = str(parameter.dtype).removeprefix("torch.")
    return f"{dtype} {size}" if parameter.requires_grad else f"{dtype} {size} frozen"


def _wrapped_before(module: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """Return the parameters of parts that FSDP1 has wrapped: they were noted then, and each rank has its shards."""
    parts = torch_versions.fsdp1_parts()
    for each in module.modules():
        if parts is not None and isinstance(each, parts[0]):
            yield list(each.parameters())


def _ignored(given: dict[str, object]) -> Iterator[list[torch.Tensor]]:
    """Return the parameters that FSDP1 was told to leave alone."""
    for name in _IGNORED:
        for each in given.get(name) or ():  # type: ignore[attr-defined]
            yield list(each.parameters()) if isinstance(each, torch.nn.Module) else [each]


def _ranks(group: object, mesh: object) -> list[int]:
    """Return the global ranks that a model is wrapped for."""
    if mesh is not None:
        return sorted(int(rank) for rank in mesh.mesh.flatten().tolist())  # type: ignore[attr-defined]
    first = group[0] if isinstance(group, tuple) else group  # of a hybrid FSDP: those it shards over
    return sorted(dist.get_process_group_ranks(first or dist.group.WORLD))  # type: ignore[arg-type]


def _site(recorder: Recorder) -> list[object]:
    frame = recorder.sites.users_frame(sys._getframe(2))
    if frame is None:
        return []
    site = describe(frame.f_code, frame.f_lineno)
    return [site.file, site.line, site.function]
