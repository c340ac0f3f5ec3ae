"""Says in a few words where a stack stands: inside which call of torch, made by which line of the user's.

A stack is read by the names of its frames alone, so this says what the thread is inside of, never what
it waits for. Native frames are read where they are there: they show a wait for torch.distributed that
the user's own line made (`work.wait()`), which no Python frame shows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from ncclwatch.contract.model.rank import CallSite, StackFrame
from ncclwatch.contract.stacks.ownership import is_users_by_path

MAIN_THREAD = "MainThread"

_IMPORTS = "<frozen importlib"
_OF_OURS = "/ncclwatch/rank/"
_C10D = "torch/distributed/distributed_c10d.py"
_COLLECTIVE_FILES = (_C10D, "torch/distributed/_functional_collectives.py", "torch/distributed/nn/functional.py")
# Python functions of torch whose next frame is a collective in C++.
_ISSUERS = frozenset(
    "_verify_param_shape_across_processes _sync_params_and_buffers _distributed_broadcast_coalesced".split()
)
_ASKERS = ("get_", "is_", "_get", "_is", "_rank_not")  # they look something up and return
_LOADER = "torch/utils/data/"
_BACKWARD = frozenset(("_engine_run_backward", "backward"))
_AUTOGRAD = ("torch/autograd/", "torch/_tensor.py")


class Doing(str, Enum):
    """What kind of place a stack stands in."""

    COMMUNICATION = "communication"  # inside a call of torch.distributed
    BACKWARD = "backward"  # inside the autograd engine, where gradients may be waited for, or computed
    DATA = "data"  # inside a DataLoader's next()
    CODE = "code"  # anywhere else
    UNKNOWN = "unknown"  # there is no stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a stack stands. Two ranks are in the same place if these are equal."""

    doing: Doing
    call: str = ""  # what the user's line is inside of: "all_reduce", "backward", "get"; "" if the line itself runs
    site: CallSite | None = None  # the innermost line of the user's code

    @property
    def words(self) -> str:
        """Return "in all_reduce at train.py:97 in train()", the full form."""
        at = f"at {self.site}" if self.site is not None else "at an unknown line"
        if self.doing is Doing.UNKNOWN:
            return "at an unknown place"
        if self.doing is Doing.DATA:
            return f"in a data loader {at}"
        if self.doing is Doing.CODE:
            return f"{at}, calling {self.call}" if self.call and self.site is not None else at
        return f"in {self.call} {at}"

    @property
    def brief(self) -> str:
        """Return "in all_reduce train.py:97", for lists of many ranks."""
        if self.doing is Doing.UNKNOWN:
            return "at an unknown place"
        line = f" {self.site.file.rsplit('/', 1)[-1]}:{self.site.line}" if self.site is not None else ""
        if self.doing is Doing.DATA:
            return f"in a data loader{line}"
        if self.doing is Doing.CODE:
            return f"in {_last(self.site.function) if self.site is not None else self.call or 'unknown code'}{line}"
        return f"in {self.call}{line}"


NOWHERE = Place(doing=Doing.UNKNOWN)


def place_of(frames: Sequence[StackFrame], users: Callable[[str], bool] = is_users_by_path) -> Place:
    """Return where a stack stands. `frames` innermost first; `users` says whose file it is."""
    importing = _imports(frames, users)
    frames = telling(frames)
    if not frames:
        return NOWHERE
    at = next((number for number, frame in enumerate(frames) if is_python(frame) and users(frame.file)), len(frames))
    inner = frames[:at]  # what the user's line is inside of, innermost first
    site = None
    if at < len(frames):
        site = CallSite(file=frames[at].file, line=frames[at].line, function=frames[at].function)
    if importing:
        return Place(doing=Doing.CODE, call="import", site=site)
    for doing, found in ((Doing.COMMUNICATION, _communication(inner)), (Doing.BACKWARD, _backward(inner))):
        if found:
            return Place(doing=doing, call=found, site=site)
    if any(_LOADER in frame.file for frame in inner):
        return Place(doing=Doing.DATA, site=site)
    leaf = next((frame for frame in inner if is_python(frame)), None)
    return Place(doing=Doing.CODE, call=_last(leaf.function) if leaf is not None else "", site=site)


def telling(frames: Sequence[StackFrame]) -> tuple[StackFrame, ...]:
    """Return a stack without frames that say nothing: our wrappers, and Python's own of an import but the innermost."""
    return tuple(
        frame
        for number, frame in enumerate(frames)
        if _OF_OURS not in frame.file and not (number and frame.file.startswith(_IMPORTS))
    )


def is_own_thread(thread: str, frames: Sequence[StackFrame]) -> bool:
    """Whether this is ncclwatch's own thread, which says nothing about the job."""
    if thread.startswith("ncclwatch"):
        return True
    outermost = [frame for frame in frames if not frame.file.endswith("threading.py")]
    return bool(outermost) and thread != MAIN_THREAD and _OF_OURS in outermost[-1].file


def is_python(frame: StackFrame) -> bool:
    """Whether this is a frame of Python, not of native code (whose file is a library or C source)."""
    return frame.file.endswith(".py") or frame.file.startswith("<")


def _imports(frames: Sequence[StackFrame], users: Callable[[str], bool]) -> bool:
    """Whether the user's innermost line imports something: what torch does meanwhile is no call of the user's."""
    for frame in frames:
        if frame.file.startswith(_IMPORTS):
            return True
        if is_python(frame) and users(frame.file):
            return False
    return False


def _communication(inner: Sequence[StackFrame]) -> str:
    """Return the call of torch.distributed that the user's line is inside of, "" if there is none."""
    for frame in reversed(inner):  # from the user inwards: all_gather_object, not the all_gather it makes
        name = _last(frame.function)
        if frame.file.endswith(_COLLECTIVE_FILES) and not name.startswith(_ASKERS):
            return name
        if name in _ISSUERS and "torch/" in frame.file:
            return name
    if any("c10d::" in frame.function for frame in inner if not is_python(frame)):
        # Native code of torch.distributed: the reducer of DDP in backward, or a work that is waited for.
        return _backward(inner) or "a wait for torch.distributed"
    return ""


def _backward(inner: Sequence[StackFrame]) -> str:
    found = any(_last(frame.function) in _BACKWARD and any(a in frame.file for a in _AUTOGRAD) for frame in inner)
    return "backward" if found else ""


def _last(function: str) -> str:
    """Return the last name of a qualified one."""
    return function.rsplit(".", 1)[-1]
