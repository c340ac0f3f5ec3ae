"""Patches a part of torch that this job may never import, when the job imports it.

To import FSDP costs a second and 44 MB, and makes every functional collective dispatch through more Python:
no watchdog may do that to a job that does not use it. So its names are patched when the job imports them.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.where.handlers import quietly


def when_imported(patches: Patches, name: str, act: Callable[[], None]) -> None:
    """Call `act` now if the module `name` is imported already, else right after the job imports it.

    Nothing is called any more after `patches.restore()`. What `act` raises stays here: an import never fails for us.
    """
    if name in sys.modules:
        _attempt(act)
        return
    finder = _Finder(name, act)
    sys.meta_path.insert(0, finder)
    patches.on_restore(finder.remove)


class _Finder(MetaPathFinder):
    """Lets everybody else find the module, and is called back once its code has run."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act = act
        self._asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders have, its loader hooked; None for every other module."""
        if fullname != self._name or self._asking:
            return None
        self._asking = True  # find_spec below asks all finders, us too; the import lock of this name is held
        try:
            spec = find_spec(fullname)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            self._hook(spec)
        return spec

    def _hook(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        original = getattr(loader, "exec_module", None)
        if original is None:
            return

        def exec_module(module: ModuleType) -> None:
            original(module)
            if self in sys.meta_path:
                self.remove()
                _attempt(self._act)

        try:
            loader.exec_module = exec_module  # type: ignore[union-attr,method-assign]
        except AttributeError:  # a loader that takes no attributes: then there are no names
            return

    def remove(self) -> None:
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def _attempt(act: Callable[[], None]) -> None:
    with quietly:  # the job's import goes on, without our names
        act()
