"""Counts how far training is: forwards of wrapped models, backwards, optimizer steps, batches drawn."""

import functools
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ncclwatch.contract.ring.layout import Word
from ncclwatch.rank import torch_versions
from ncclwatch.rank.data.loaders import Pass
from ncclwatch.rank.data.samplers import told_of
from ncclwatch.rank.patches import guarded
from ncclwatch.rank.patches.forwards import make_forward
from ncclwatch.rank.patches.imports import when_imported
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.where.call_sites import describe

Current = Callable[[], Recorder | None]
_PASS = "_ncclwatch_pass"


def install(patches: Patches, current: Current) -> None:
    """Patch the training loop's own landmarks."""
    engine = torch_versions.backward_engine_modules()
    patches.replace_everywhere(engine, "_engine_run_backward", lambda f: _make_backward(f, current))
    patches.replace(DistributedDataParallel, "forward", lambda f: _make_forward(f, current))
    when_imported(patches, torch_versions.FSDP, lambda: _install_fsdp(patches, current))
    patches.replace(DataLoader, "__iter__", lambda f: _make_iter(f, current))
    patches.replace(_BaseDataLoaderIter, "__next__", lambda f: _make_next(f, current))
    for name, by in (("__enter__", 1), ("__exit__", -1)):
        patches.replace(Join, name, functools.partial(_make_join, current=current, by=by))
    hook = register_optimizer_step_post_hook(_make_step_hook(current))
    patches.on_restore(hook.remove)


def _install_fsdp(patches: Patches, current: Current) -> None:
    parts = torch_versions.fsdp1_parts()
    if parts is not None:
        patches.replace(parts[0], "forward", lambda f: _make_forward(f, current))


def _make_step_hook(current: Current) -> Callable[..., None]:
    def count(*_: object) -> None:
        recorder = current()
        if recorder is not None and not recorder.steps_marked:
            guarded.attempt(recorder, lambda: recorder.count_step(recorder.ring.word(Word.STEPS) + 1))

    return count


def _make_backward(original: Callable[..., object], current: Current) -> Callable[..., object]:
    @functools.wraps(original)
    def _engine_run_backward(*args: object, **kwargs: object) -> object:
        recorder = current()
        if recorder is None:
            return original(*args, **kwargs)
        begun = guarded.begin_backward(recorder, 2)
        try:
            return original(*args, **kwargs)
        finally:
            guarded.end_backward(recorder, begun)

    return _engine_run_backward


def _make_forward(original: Callable[..., object], current: Current) -> Callable[..., object]:
    def watched(self: torch.nn.Module, *args: object, **kwargs: object) -> object:
        recorder = current()
        if recorder is not None and self.training and torch.is_grad_enabled() and not recorder.in_forward:
            guarded.attempt(recorder, recorder.count_forward)
            recorder.in_forward = True  # an FSDP model wraps FSDP modules: only the outermost counts
            try:
                return original(self, *args, **kwargs)
            finally:
                recorder.in_forward = False
        return original(self, *args, **kwargs)

    return make_forward(original, watched)


def _make_iter(original: Callable[..., object], current: Current) -> Callable[..., object]:
    @functools.wraps(original)
    def __iter__(loader: "DataLoader[object]") -> object:
        iterator = original(loader)
        recorder = current()
        if recorder is not None and not recorder.loaders.driven:
            try:
                this = vars(iterator)[_PASS] = recorder.loaders.begin(loader, 2)
                if this.number == 1:
                    _note_sampler(recorder, loader)
            except Exception:  # an iterator of a kind of its own; its batches stay uncounted
                guarded.count_gap(recorder)
        return iterator

    return __iter__


def _note_sampler(recorder: Recorder, loader: "DataLoader[object]") -> None:
    """Note at the first pass of a loop how its data is split between ranks."""
    frame = recorder.sites.users_frame(sys._getframe(2))
    if frame is None or not dist.is_initialized():
        return
    local_rank = os.environ.get("LOCAL_RANK", "")
    told = told_of(loader, dist.get_rank(), int(local_rank) if local_rank.isdecimal() else -1, dist.get_world_size())
    if told is not None:
        site = describe(frame.f_code, frame.f_lineno)
        recorder.preflight.note_sampler(told, [site.file, site.line, site.function])


def _make_next(original: Callable[..., object], current: Current) -> Callable[..., object]:
    @functools.wraps(original)
    def __next__(iterator: object) -> object:
        recorder = current()
        this: Pass | None = None if recorder is None else vars(iterator).get(_PASS)
        if recorder is None or this is None or this.row < 0:
            return original(iterator)
        outer = guarded.enter_draw(recorder, this, 2)
        began_ns = time.monotonic_ns()
        try:
            batch = original(iterator)
        except StopIteration:
            guarded.attempt(recorder, recorder.loaders.end, this)
            raise
        finally:
            guarded.leave(recorder, outer)
            guarded.spend(recorder, Word.DATA_NS, began_ns)
        guarded.attempt(recorder, recorder.count_drawn, this, batch)
        return batch

    return __next__


def _make_join(original: Callable[..., object], current: Current, by: int) -> Callable[..., object]:
    @functools.wraps(original)
    def enter_or_leave(*args: object, **kwargs: object) -> object:
        recorder = current()
        if recorder is not None:
            recorder.loaders.joined = max(0, recorder.loaders.joined + by)
        return original(*args, **kwargs)

    return enter_or_leave
