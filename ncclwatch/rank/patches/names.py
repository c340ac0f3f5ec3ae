"""Names what an operation is for (DDP's gradient bucket, FSDP's unit), as people know it from their own model.

None of this is needed to judge; where a version of torch keeps these things elsewhere, the names are missing
and nothing else changes.
"""

import functools
from collections.abc import Callable

import torch
from torch.nn.parallel import DistributedDataParallel

from ncclwatch.contract.ring.call_sites import GRADIENT_BUCKET
from ncclwatch.rank import torch_versions
from ncclwatch.rank.patches import guarded
from ncclwatch.rank.patches.forwards import make_forward
from ncclwatch.rank.patches.imports import when_imported
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.where.handlers import quietly

Current = Callable[[], Recorder | None]
_LOOKED = "_ncclwatch_looked"
_NAME = "_ncclwatch_name"
LOOKS_MAX = 12  # forwards after which DDP's buckets do not change any more


def install(patches: Patches, current: Current) -> None:
    """Patch what knows the names."""
    patches.replace(DistributedDataParallel, "forward", lambda f: _make_ddp_forward(f, current))
    when_imported(patches, torch_versions.FSDP, lambda: _install_fsdp(patches, current))


def _install_fsdp(patches: Patches, current: Current) -> None:
    """Patch both generations of FSDP, which this job has imported."""
    unit = torch_versions.fsdp2_unit_class()
    if unit is not None:
        for name in ("unshard", "post_backward"):
            patches.replace(unit, name, lambda f: _make_labelled(f, current, _fsdp2_unit))
    parts = torch_versions.fsdp1_parts()
    if parts is not None:
        module, handle, reducing = parts
        patches.replace(module, "forward", lambda f: _make_fsdp1_forward(f, current))
        patches.replace(handle, "unshard", lambda f: _make_labelled(f, current, _fsdp1_unit))
        patches.replace(reducing, "_reduce_grad", lambda f: _make_labelled(f, current, _fsdp1_state_unit))


def _make_labelled(
    original: Callable[..., object], current: Current, name_of: Callable[..., object]
) -> Callable[..., object]:
    """Wrap something that issues operations for one unit of a model."""

    @functools.wraps(original)
    def labelled(*args: object, **kwargs: object) -> object:
        recorder = current()
        if recorder is None:
            return original(*args, **kwargs)
        # Between a model's own work each function that is called here costs microseconds: there are few.
        outer = 0
        try:
            outer = recorder.set_label(recorder.sites.unit(name_of(*args)))
        except Exception:
            with quietly:  # a name is never worth an exception in training
                raise
        try:
            return original(*args, **kwargs)
        finally:
            try:
                recorder.set_label(outer)
            except Exception:
                guarded.count_gap(recorder)

    return labelled


def _fsdp2_unit(unit: object, *_: object) -> object:
    return getattr(unit, "_module_fqn", None)


def _fsdp1_unit(handle: object, *_: object) -> object:
    return vars(handle).get(_NAME)


def _fsdp1_state_unit(state: object, handle: object, *_: object) -> object:
    return _fsdp1_unit(handle)


def _make_fsdp1_forward(original: Callable[..., object], current: Current) -> Callable[..., object]:
    """Wrap the forward of FSDP1's modules: the outermost one names the units inside it, once."""

    def watched(self: torch.nn.Module, *args: object, **kwargs: object) -> object:
        if current() is not None and _LOOKED not in vars(self):
            with quietly:  # as above
                for name, module in self.named_modules():
                    vars(module)[_LOOKED] = 1  # modules inside are entered later, and know only their own part
                    handle = getattr(module, "_handle", None)
                    if handle is not None:
                        vars(handle)[_NAME] = name.replace("_fsdp_wrapped_module.", "").removesuffix(".")
        return original(self, *args, **kwargs)

    return make_forward(original, watched)


def _some(names: list[str]) -> str:
    """Return the first name and how many follow."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


# -- DDP -----------------------------------------------------------------------------------------------


def _make_ddp_forward(original: Callable[..., object], current: Current) -> Callable[..., object]:
    def watched(self: DistributedDataParallel, *args: object, **kwargs: object) -> object:
        recorder = current()
        looked = vars(self).get(_LOOKED, 0)
        if recorder is not None and looked < LOOKS_MAX and torch.is_grad_enabled():
            with quietly:  # as above
                vars(self)[_LOOKED] = looked + 1
                if _note_buckets(recorder, self):
                    vars(self)[_LOOKED] = LOOKS_MAX
        return original(self, *args, **kwargs)

    return make_forward(original, watched)


def _note_buckets(recorder: Recorder, ddp: DistributedDataParallel) -> bool:
    """Tell the recorder DDP's gradient buckets; returns whether they are final.

    DDP begins with buckets by size, and rebuilds them in the second iteration in the order in which gradients came.
    """
    told = ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    ignored: set[str] = getattr(ddp, "parameters_to_ignore", set())
    named = [(n, p) for n, p in ddp.module.named_parameters() if p.requires_grad and n not in ignored]
    rebuilt = str(told.get("rebuilt_per_bucket_param_indices", ""))
    buckets: list[tuple[int, str]] = []
    if rebuilt:
        for number, indices in enumerate(rebuilt.split(", ")):
            members = [named[int(index)] for index in indices.split()]
            size = sum(parameter.numel() for _, parameter in members)
            buckets.append((size, f"{GRADIENT_BUCKET} {number} ({_some([name for name, _ in members])})"))
    else:
        width = {parameter.element_size() for _, parameter in named}
        if len(width) == 1:
            sizes = [int(size) for size in str(told.get("bucket_sizes", "")).split(", ") if size]
            buckets = [(size // min(width), f"{GRADIENT_BUCKET} {number}") for number, size in enumerate(sizes)]
    name = getattr(ddp.process_group, "group_name", "")
    recorder.set_buckets(name, [(size, recorder.sites.label(text)) for size, text in buckets])
    return bool(rebuilt)
