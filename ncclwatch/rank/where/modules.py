"""Finds the module of a model that this thread is in, the path by which it is reached, and its mode.

Nothing here is on the path of an operation. The stack is read when a way to a collective is met for the first time,
and by the pulse once a thread has stood still; no hook is laid on any module. Each call of a module has a frame of
`Module._wrapped_call_impl`, whose `self` is the module. What else its locals hold are the arguments, which
that frame keeps alive in any case: looking at them prolongs no tensor's life.
"""

import sys
import weakref
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Protocol, cast

from ncclwatch.contract.model.rank import GradMode, ModuleView
from ncclwatch.contract.stacks.ownership import is_users
from ncclwatch.rank.where.calls import call_name

DEPTH_MAX = 120  # frames looked through for modules
MODULES_MAX = 20_000  # of a model, looked through for a path
ROOTS_MAX = 8  # models that are remembered
MODES_MAX = 4  # modules whose mode is told of a rank that stands elsewhere
# What these issue in a forward they do for the whole model, whatever module it is for.
_WRAPPERS = (
    "/torch/distributed/fsdp/", "/torch/distributed/_composable/", "/torch/nn/parallel/",
    "/deepspeed/", "/fairscale/", "/accelerate/",
)  # fmt: skip
# Names that wrappers give to the module in them: no part of the path that its author knows.
_WRAPPED = frozenset(("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module"))
_PARALLEL = ("DistributedDataParallel", "DataParallel")


class Module(Protocol):
    """What is needed of torch's Module."""

    training: bool

    def named_modules(self) -> Iterator[tuple[str, "Module"]]:
        """Yield (path, module), the module itself first."""


class Modules:
    """The models that have made collectives in a forward, and which of their modules did."""

    def __init__(self) -> None:
        self._roots: list[weakref.ref[Module]] = []
        self._names: list[str] = []
        self._kinds: set[type] = set()

    def now(self, depth: int) -> ModuleView | None:
        """Return the module whose forward has led to the caller, `depth` frames out, and remember its model."""
        found = on_stack(sys._getframe(depth))
        if found is None:
            return None
        module, root, name = found
        self._remember(module, root, name)
        path, others = _path(root, module)
        if others:  # the same lines are the way to each of them: only where they stand still is it known which
            path = _common([path, *others])
        return ModuleView(root=name, path=path, kind=type(module).__name__, training=module.training, grad=_grad_mode())

    def at(self, frame: FrameType) -> ModuleView | None:
        """Return the module in whose forward another thread stands. Its gradient mode is that thread's own."""
        found = on_stack(frame)
        if found is None:
            return None
        module, root, name = found
        return ModuleView(root=name, path=_path(root, module)[0], kind=type(module).__name__, training=module.training)

    def modes(self) -> list[ModuleView]:
        """Return modules of the kinds that have made collectives here: of those in either mode, if there are both."""
        found: list[ModuleView] = []
        for reference, name in zip(self._roots, self._names, strict=True):
            root = reference()
            if root is None:
                continue
            for path, module in _named(root):
                if type(module) in self._kinds:
                    mode = ModuleView(
                        root=name, path=_clean(root, path), kind=type(module).__name__, training=module.training
                    )
                    if mode not in found:
                        found.append(mode)
        resting = [mode for mode in found if not mode.training]
        training = [mode for mode in found if mode.training]
        return (resting[: MODES_MAX - 1] + training)[:MODES_MAX]

    def _remember(self, module: Module, root: Module, name: str) -> None:
        self._kinds.add(type(module))
        if len(self._roots) < ROOTS_MAX and not any(known() is root for known in self._roots):
            self._roots.append(weakref.ref(root))
            self._names.append(name)


def on_stack(frame: FrameType | None) -> tuple[Module, Module, str] | None:
    """Return (innermost module, outermost module, what its caller calls that); None outside of every forward.

    None also where a wrapper (DDP, FSDP) communicates for the module: that is no doing of the module's.
    """
    call = _call_code()
    inner: Module | None = None
    outer: FrameType | None = None
    left = DEPTH_MAX
    while frame is not None and left and call is not None:
        code = frame.f_code
        if code is call:
            inner = inner if inner is not None else cast(Module, frame.f_locals["self"])
            outer = frame
        elif inner is None and _is_wrapper(code.co_filename):
            return None
        frame = frame.f_back
        left -= 1
    if inner is None or outer is None:
        return None
    root = cast(Module, outer.f_locals["self"])
    return inner, root, _name_of(outer.f_back) or type(root).__name__


def _call_code() -> CodeType | None:
    module = sys.modules.get("torch.nn.modules.module")  # where torch is not imported nobody calls its modules
    call = getattr(getattr(module, "Module", None), "_wrapped_call_impl", None)
    return getattr(call, "__code__", None)


def _is_wrapper(path: str) -> bool:
    return any(part in path for part in _WRAPPERS)


def _name_of(caller: FrameType | None) -> str:
    """Return what the user's own line calls the model by: "codec" of `codec(frames)`."""
    if caller is None or not is_users(caller.f_code.co_filename):
        return ""
    return call_name(caller.f_code, caller.f_lasti)


def _named(root: Module) -> Iterator[tuple[str, Module]]:
    left = MODULES_MAX
    for path, module in root.named_modules():
        yield path, module
        left -= 1
        if not left:
            return


def _path(root: Module, wanted: Module) -> tuple[str, list[str]]:
    """Return the path of a module in a model, and those of the others of its class."""
    path, others = "", []
    for each, module in _named(root):
        if module is wanted:
            path = _clean(root, each)
        elif type(module) is type(wanted):
            others.append(_clean(root, each))
    return path, others


def _clean(root: Module, path: str) -> str:
    parts = [part for part in path.split(".") if part not in _WRAPPED]
    if type(root).__name__ in _PARALLEL and parts[:1] == ["module"]:
        del parts[0]
    return ".".join(parts)


def _common(paths: list[str]) -> str:
    """Return one path for several, with a * where they differ: "layers.*.norm"; only their end if no more is alike."""
    split = [path.split(".") for path in paths]
    if len({len(parts) for parts in split}) == 1:
        columns = list(zip(*split, strict=True))
        if all(len(set(column)) == 1 or all(part.isdigit() for part in column) for column in columns):
            return ".".join(column[0] if len(set(column)) == 1 else "*" for column in columns)
    return "*"


def _grad_mode() -> GradMode:
    torch = sys.modules["torch"]
    if torch.is_grad_enabled():
        return GradMode.GRAD
    return GradMode.INFERENCE if torch.is_inference_mode_enabled() else GradMode.NO_GRAD
