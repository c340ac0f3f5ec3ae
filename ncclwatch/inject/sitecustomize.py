"""Attaches, in a script that nobody may edit, the Python process that calls `init_process_group`: that is a rank.

`ncclwatch run --inject` puts this directory in front of PYTHONPATH, so every Python of the command imports this file
at its start, launchers, loader processes and compilers too. It waits for `import torch`, lays one function
round `init_process_group`, and attaches when that is called. A process that never calls it pays for one entry in
`sys.meta_path`, and for nothing but this file if it never imports torch.

It imports next to nothing (importlib.util alone costs each process 5 ms), and nothing of ncclwatch until a rank begins.
No name of ours is in anybody's way: a `sitecustomize` that was there before is run as if this one were not.
"""

from __future__ import annotations

import os
import sys
from _frozen_importlib import module_from_spec
from _frozen_importlib_external import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))


class _TorchFinder:
    """Lets the other finders find torch, and watches its `init_process_group` once it is there."""

    def __init__(self) -> None:
        self._asking = False

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec that the other finders have, its loader hooked; None for every other module."""
        if name != "torch" or self._asking:
            return None
        self._asking = True  # a finder of somebody else may ask all finders in its turn
        try:
            spec = _find_by_others(self, name, target)
        finally:
            self._asking = False
        loader = spec.loader if spec is not None else None
        original = getattr(loader, "exec_module", None)
        if original is None:
            return spec

        def exec_module(module: ModuleType) -> None:
            original(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                _watch()

        try:
            loader.exec_module = exec_module  # type: ignore[union-attr,method-assign]
        except AttributeError:  # a loader that takes no attributes: the rank is not watched
            pass
        return spec


def _find_by_others(own: object, name: str, target: ModuleType | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find_spec(name, None, target) if find_spec is not None and finder is not own else None
        if spec is not None:
            return spec
    return None


def _watch() -> None:
    """Lay a function round `init_process_group`, wherever torch has it by that name."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    original = getattr(c10d, "init_process_group", None)
    if c10d is None or original is None:  # torch was built without distributed
        return
    holders = [module for module in list(sys.modules.values()) if _has(module, original)]

    def init_process_group(*args: object, **kwargs: object) -> object:
        if getattr(c10d, "init_process_group", None) is not init_process_group:
            return original(*args, **kwargs)  # the script has attached by itself, or this is not the first time
        for module in holders:
            if _has(module, init_process_group):
                module.__dict__["init_process_group"] = original
        _attach()
        return c10d.init_process_group(*args, **kwargs)

    init_process_group.__doc__ = original.__doc__
    for module in holders:
        module.__dict__["init_process_group"] = init_process_group


def _has(module: ModuleType, function: object) -> bool:
    return getattr(module, "__dict__", {}).get("init_process_group") is function


def _attach() -> None:
    try:
        import ncclwatch

        ncclwatch.attach()
    except Exception as error:  # training goes on, whatever is missing here
        sys.stderr.write(
            f"ncclwatch: cannot attach to this rank: {type(error).__name__}: {str(error)!a}. Is ncclwatch "
            f"installed for {sys.executable}? Training goes on without it.\n"
        )


def _run_the_other() -> None:
    """Run the `sitecustomize` that this one stands in front of, if there is any, under its own name."""
    elsewhere = [path for path in sys.path if os.path.abspath(path or os.curdir) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


sys.meta_path.insert(0, _TorchFinder())
_run_the_other()
