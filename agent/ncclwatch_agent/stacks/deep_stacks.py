"""Adds to a suspect's Python stack what that cannot tell: native frames, and where its child processes stand.

Only of a process that stands still: reading native frames halts it for about a second. Children are looked at where
their parent waits for one of them: in a DataLoader, a pool, a subprocess.
"""

from collections.abc import Sequence
from dataclasses import replace

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import ChildStack, StackDump, StackFrame
from ncclwatch.contract.stacks.ownership import is_users
from ncclwatch.contract.stacks.places import MAIN_THREAD, is_python
from ncclwatch_agent.process.procfs import descendants, kernel_place, read_text
from ncclwatch_agent.stacks.py_spy import StackDesk

CHILDREN_LOOKED_AT_MAX = 16  # of one rank
CHILDREN_TOLD_MAX = 8
_PARENTS = (
    "torch/utils/data/", "/multiprocessing/", "/subprocess.py", "concurrent/futures/", "/asyncio/subprocess.py",
    "torch/multiprocessing/",
)  # fmt: skip
_CHILD_WAITS = ("wait4", "waitid")


async def deepen(desk: StackDesk, dump: StackDump, pid: int, *, native: bool) -> StackDump:
    """Return a dump of a process together with its native frames, if they are wanted, and its children's stacks."""
    frames = main_frames(dump)
    if native and frames:
        found = main_frames(await desk.dump_native(dump.rank, pid))
        # Without permission to halt it, only Python's frames come back: that is nothing new.
        if any(not is_python(frame) for frame in found):
            dump = replace(dump, native=found[: config.STACK_DEPTH_MAX])
    if waits_for_child(frames, read_text(f"/proc/{pid}/syscall"), read_text(f"/proc/{pid}/wchan")):
        dump = replace(dump, children=await _children(desk, dump.rank, pid))
    return dump


def waits_for_child(frames: Sequence[StackFrame], syscall: str = "", wait_channel: str = "") -> bool:
    """Whether a main thread is inside of something that a child process has to answer."""
    users = next((number for number, frame in enumerate(frames) if is_users(frame.file)), len(frames))
    inside = any(part in frame.file for frame in frames[:users] for part in _PARENTS)
    return inside or kernel_place(syscall, wait_channel).startswith(_CHILD_WAITS)


def main_frames(dump: StackDump) -> tuple[StackFrame, ...]:
    """Return the stack of the main thread, () if it is not known."""
    return next((frames for thread, frames in dump.threads if thread == MAIN_THREAD), ())


async def _children(desk: StackDesk, rank: int, pid: int) -> tuple[ChildStack, ...]:
    """Return where the children stand, those in the user's code first: an idle worker stands in Python's own."""
    found = []
    for child in descendants(pid, CHILDREN_LOOKED_AT_MAX):
        frames = main_frames(await desk.dump(rank, child))
        if frames:
            place = kernel_place(read_text(f"/proc/{child}/syscall"), read_text(f"/proc/{child}/wchan"))
            found.append(ChildStack(pid=child, frames=own_frames(frames), in_kernel=place))
    found.sort(key=lambda child: not any(is_users(frame.file) for frame in child.frames))
    return tuple(found[:CHILDREN_TOLD_MAX])


def own_frames(frames: tuple[StackFrame, ...]) -> tuple[StackFrame, ...]:
    """Return what a child has done since it began: a forked one has the stack of its parent below its own."""
    for number, frame in enumerate(frames):
        if frame.file.endswith("multiprocessing/process.py") and frame.function.endswith("_bootstrap"):
            return frames[:number] or frames
    return frames
