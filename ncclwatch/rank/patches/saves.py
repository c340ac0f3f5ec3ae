"""Notes that a rank writes a checkpoint, and where to: at the calls that begin it, on whatever thread.

Frameworks (Lightning, Fabric, Accelerate, transformers) end in these calls. A call inside of another one is a part of
it: dcp.save serialises with torch.save. Names that a job took out of torch before `attach()` are not seen.
"""

import functools
import io
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.ring.layout import Word
from ncclwatch.rank.patches import guarded, save_errors
from ncclwatch.rank.patches.imports import when_imported
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.patches.saved_bytes import is_written_as_it_is, least_bytes
from ncclwatch.rank.recorder import Recorder

DCP = "torch.distributed.checkpoint"
SAFETENSORS = "safetensors.torch"

_WHOLE = {"torch.save": True, "safetensors": False}  # one rank writes all of it; whether it writes whole storages
_STATES = ("obj", "tensors", "tensor_dict", "model")  # names of their first argument

Current = Callable[[], Recorder | None]
PathOf = Callable[[tuple[object, ...], Mapping[str, object]], object]


class _Begun(NamedTuple):
    """A save under way, as it was recorded."""

    row: int  # of its thread
    began_ns: int
    site: int
    said: dict[str, str]
    outer: bytes  # what the thread was in before


def install(patches: Patches, current: Current) -> None:
    """Patch torch.save now, and what this job may never import when it does."""
    both = (torch.serialization, torch)
    patches.replace_everywhere(both, "save", lambda f: _make_save(f, current, "torch.save", _second_argument))
    when_imported(patches, DCP, lambda: _install_dcp(patches, current))
    when_imported(patches, SAFETENSORS, lambda: _install_safetensors(patches, current))


def _install_dcp(patches: Patches, current: Current) -> None:
    package, saver = sys.modules[DCP], sys.modules[f"{DCP}.state_dict_saver"]
    owners = (saver, package)
    patches.replace_everywhere(owners, "save", lambda f: _make_save(f, current, "dcp.save", _checkpoint_id))
    patches.replace_everywhere(owners, "async_save", lambda f: _make_save(f, current, "dcp.async_save", _checkpoint_id))


def _install_safetensors(patches: Patches, current: Current) -> None:
    module = sys.modules[SAFETENSORS]
    # Who took save_file out of the module early still comes through serialize_file, which is looked up when called.
    for name in ("save_file", "save_model", "serialize_file"):
        patches.replace(module, name, lambda f: _make_save(f, current, "safetensors", _second_argument))


def _make_save(original: Callable[..., object], current: Current, call: str, path_of: PathOf) -> Callable[..., object]:
    @functools.wraps(original)
    def save(*args: object, **kwargs: object) -> object:
        if torch.compiler.is_compiling():  # folded away by dynamo
            return original(*args, **kwargs)
        recorder = current()
        state = guarded.ask(recorder, recorder.state) if recorder is not None else None
        if recorder is None or state is None or state.saving:
            return original(*args, **kwargs)
        state.saving = True
        begun = _begin(recorder, {"call": call}, path_of, args, kwargs)
        error = ""
        try:
            return original(*args, **kwargs)
        except BaseException as raised:
            error = save_errors.words_of(raised, save_errors.last_errno())
            raise
        finally:
            if begun is not None:
                _end(recorder, begun, error)
            state.saving = False

    return save


def _begin(
    recorder: Recorder, said: dict[str, str], path_of: PathOf, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> _Begun | None:
    """Record that a save begins; returns what `_end` takes, None if there is no room for it."""
    try:
        row = recorder.thread().row
        if row < 0:
            return None
        target = path_of(args, kwargs)
        said["path"] = _absolute(target)
        count = _least_bytes(said["call"], args, kwargs) if said["path"] and is_written_as_it_is(target) else 0
        if count:
            said["bytes"] = str(count)
        site, began_ns = recorder.sites.here(3), time.monotonic_ns()
        recorder.ring.set_save(row, (began_ns, 0), site, said)
        begun = _Begun(row, began_ns, site, said, recorder.enter(WaitKind.SAVE, site))
        save_errors.clear_errno()
        return begun
    except Exception:  # nothing of ours may stop training
        guarded.count_gap(recorder)
        return None


def _end(recorder: Recorder, begun: _Begun, error: str) -> None:
    guarded.leave(recorder, begun.outer)
    said = begun.said | {"error": error} if error else begun.said
    times = begun.began_ns, time.monotonic_ns()
    guarded.spend(recorder, Word.SAVE_NS, begun.began_ns)
    guarded.attempt(recorder, recorder.ring.set_save, begun.row, times, begun.site, said)


def _least_bytes(call: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> int:
    """Return how many bytes a save writes at least, 0 if nobody knows: of a sharded one each rank writes a part."""
    if call not in _WHOLE:
        return 0
    state = args[0] if args else next((kwargs[name] for name in _STATES if name in kwargs), None)
    return least_bytes(state, storages=_WHOLE[call])


def _second_argument(args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
    return args[1] if len(args) > 1 else kwargs.get("f", kwargs.get("filename"))


def _checkpoint_id(args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
    return kwargs.get("checkpoint_id") or getattr(kwargs.get("storage_writer"), "path", None)


def _absolute(target: object) -> str:
    """Return the path that a save goes to, "" for an object in memory, a URL, or whatever else has none."""
    if isinstance(target, io.IOBase):
        target = getattr(target, "name", None)
    if not isinstance(target, (str, bytes, os.PathLike)):
        return ""
    path = os.fsdecode(target)
    return "" if "://" in path else os.path.abspath(path)
