"""Loads the native recorder: the one that came with the package, or else the one that was built here.

In a place that NCCLWATCH_NATIVE_DIR names, the one that was built goes first.

A torch side is loaded only into the torch that it was built for, and asked what it reads of known objects before it
records anything (`probe.py`): another layout of torch's must show here, and not in training.
"""

import ctypes
import importlib.machinery
import importlib.util
import os
from pathlib import Path
from types import ModuleType

from ncclwatch.contract import config
from ncclwatch.native import fitness, ownership, prebuilt, wholeness
from ncclwatch.native.build import MODULE, TORCH_SIDE, NativeError, alone_path, built_path, directory


def load() -> ModuleType | None:
    """Load the native recorder for this torch and this Python; None if there is none, or none can be used.

    Raises `NativeError` if it is there but cannot be loaded, belongs to somebody else, or misreads this torch.
    """
    sides = _sides()
    if sides is None:
        return None
    from ncclwatch.native import probe  # needs torch

    python_side, torch_side = sides
    module = _module_at(python_side)
    _require_whole(torch_side)
    try:
        entry = ctypes.CDLL(str(torch_side)).ncclwatch_torch_side
        entry.restype = ctypes.c_void_p
        module.use(entry() or 0)
    except (OSError, AttributeError, RuntimeError) as error:
        raise NativeError(f"{torch_side} does not load ({error}). Run `ncclwatch build-native`") from error
    probe.check(module, torch_side)
    return module


def load_alone() -> ModuleType | None:
    """Load a Python side without a torch side, for the hot path of the recorder in Python; None if there is none.

    It knows no torch, so it fits whatever torch there is. Raises `NativeError` if it is there but cannot be loaded.
    """
    path = where_alone()
    if path is None:
        return None
    module = _module_at(path)
    if not hasattr(module, "make_hot"):
        raise NativeError(f"{path} is of another version of ncclwatch. Run `ncclwatch build-native`")
    return module


def where_alone() -> Path | None:
    """Return the Python side that `load_alone` would load, None if there is none."""
    if fitness.trouble():
        return None
    brought = prebuilt.python_side_here()
    if brought is not None or directory() is None:
        return brought
    return _built(alone_path())


def where() -> Path | None:
    """Return the Python side that `load` would load, None if there is none."""
    sides = _sides()
    return None if sides is None else sides[0]


def why_none() -> str:
    """Return why there is none, when `load` returned None."""
    return fitness.trouble() or "the native recorder is not built for this torch: run `ncclwatch build-native`"


def _sides() -> tuple[Path, Path] | None:
    if fitness.trouble():
        return None
    if os.environ.get(config.ENV_NATIVE_DIR):  # who names a place has built there on purpose
        return _built_sides() or prebuilt.sides_here()
    return prebuilt.sides_here() or _built_sides()


def _built_sides() -> tuple[Path, Path] | None:
    if directory() is None:  # nothing can have been built
        return None
    path = _built(built_path())
    return None if path is None else (path, path.parent / TORCH_SIDE)


def _built(path: Path) -> Path | None:
    if not os.path.lexists(path):
        return None
    trouble = ownership.trouble(path.parent, path.name, TORCH_SIDE)
    if trouble:
        raise NativeError(trouble)
    return path


def _require_whole(path: Path) -> None:
    try:
        trouble = wholeness.trouble(path)
    except OSError as error:
        trouble = f"cannot be read ({error.strerror})"
    if trouble:
        raise NativeError(f"{path} {trouble}. Delete it and run `ncclwatch build-native`")


def _module_at(path: Path) -> ModuleType:
    _require_whole(path)
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
    spec = importlib.util.spec_from_file_location(MODULE, str(path), loader=loader)
    if spec is None:
        raise NativeError(f"{path} is no module. Delete it and run `ncclwatch build-native`")
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise NativeError(f"{path} does not load ({error}). Delete it and run `ncclwatch build-native`") from error
    return module
