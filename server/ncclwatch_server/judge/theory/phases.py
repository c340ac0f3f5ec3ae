"""Names what the others wait for: a step, a checkpoint, a validation, the first use of a group.

The user's mark tells; where there is none, or it says no more than "train", the stack of the late rank does, then
the operation that is waited in.
"""

from collections.abc import Iterable, Mapping

from ncclwatch.contract.model.job import WaitClass
from ncclwatch.contract.model.phases import Phase, phase_of_frame, phase_of_name
from ncclwatch.contract.model.rank import CallSite, LoaderView, RankView, StackDump, ThreadView, WaitKind
from ncclwatch_server.judge.theory.waits.rank_standing import Operation

NAME_CHARS_MAX = 40
_TELLING = (Phase.CHECKPOINT, Phase.VALIDATION, Phase.COMPILE)
_STARTUP = (WaitKind.INIT, WaitKind.NEW_GROUP, WaitKind.STORE)
# Of several late ranks, the one that takes longest decides.
_LONGEST_FIRST = (
    Phase.COMPILE, Phase.VALIDATION, Phase.CHECKPOINT, Phase.FIRST_USE, Phase.STARTUP, Phase.OTHER, Phase.END_OF_EPOCH,
    Phase.PIPELINE, Phase.STEP,
)  # fmt: skip


def class_of(late: Iterable[RankView], operation: Operation, op: str, stacks: Mapping[int, StackDump]) -> WaitClass:
    """Return the class of a wait in an operation for ranks that are late."""
    found = [phase_of(view, operation, stacks.get(view.rank)) for view in late]
    phase, name = min(found, key=lambda each: _LONGEST_FIRST.index(each[0]), default=(Phase.STEP, ""))
    return WaitClass(phase=phase, op=op, size=size_class(operation.size), name=name)


def size_class(members: int) -> int:
    """Return the power of two at or above a number of members."""
    return 1 << max(0, members - 1).bit_length()


def phase_of(view: RankView, operation: Operation, dump: StackDump | None = None) -> tuple[Phase, str]:
    """Return (what a late rank does, the name that the user gave to it if that is the kind OTHER)."""
    marked = phase_of_name(view.phase) if view.phase else None
    if marked in _TELLING:
        return marked, ""
    worked = _by_stack(view, dump)
    if worked is not None:
        return worked, ""
    if operation.kind in _STARTUP:
        return Phase.STARTUP, ""
    if operation.kind is WaitKind.COLLECTIVE and operation.seq <= 1:
        return Phase.FIRST_USE, ""
    if view.phase and marked is None:
        return Phase.OTHER, view.phase[:NAME_CHARS_MAX]
    if operation.kind in (WaitKind.SEND, WaitKind.RECV):
        return Phase.PIPELINE, ""
    return (Phase.END_OF_EPOCH if _between_epochs(view) else Phase.STEP), ""


def _by_stack(view: RankView, dump: StackDump | None) -> Phase | None:
    thread = next((thread for thread in view.threads if thread.main), None)
    if thread is not None and thread.wait is not None and thread.wait.kind is WaitKind.SAVE:
        return Phase.CHECKPOINT
    sampled = _by_frames(thread) if thread is not None else None
    return sampled or phase_in_dump(dump)


def _by_frames(thread: ThreadView) -> Phase | None:
    """Return what the pulse saw. A save inside of a validation is a save: the innermost function decides."""
    if thread.work is not None:
        return thread.work
    names = (phase_of_name(site.function) for site in thread.frames)
    return next((phase for phase in names if phase in _TELLING), None)


def phase_in_dump(dump: StackDump | None) -> Phase | None:
    """Return what py-spy saw of a rank whose pulse cannot look."""
    for name, frames in dump.threads if dump is not None else ():
        if name == "MainThread":
            return next(filter(None, (phase_of_frame(frame.file, frame.function) for frame in frames)), None)
    return None


def _between_epochs(view: RankView) -> bool:
    """Say whether the loader that a rank used last has come to its end, or begins a new pass."""
    thread = next((thread for thread in view.threads if thread.main), None)
    wait = thread.wait if thread is not None else None
    if wait is not None and wait.kind is WaitKind.DATA and any(_begins(each, wait.site) for each in view.loaders):
        return True
    used = view.history[-1].loader - 1 if view.history else -1
    return 0 <= used < len(view.loaders) and view.loaders[used].exhausted


def _begins(loader: LoaderView, site: CallSite | None) -> bool:
    return loader.drawn == 0 and loader.site == site
