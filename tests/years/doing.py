"""Says what the node and the rank's own pulse see of work that is neither an operation nor an ordinary step.

A piece of work uses the CPU, moves bytes, changes the stack, or does none of that; a save is several pieces.
"""

from typing import NamedTuple

from ncclwatch.contract.model.phases import Phase
from ncclwatch.contract.model.rank import ProcessState, WaitKind


class Doing(NamedTuple):
    """What is seen of one piece of work."""

    name: str  # pieces of one activity that follow each other have the same
    cpu: bool = True
    io: bool = False
    moves: bool = True  # the stack changes
    pulse: bool = True  # the interpreter's lock is free now and then
    state: ProcessState = ProcessState.RUNNING
    kernel: str = ""
    wait: WaitKind | None = None
    work: Phase | None = None
    function: str = "train"
    saves: str = ""  # path
    batches: int = -1  # drawn of its own loader; -1: it has none


TRAINS = Doing("")
READS = Doing("hiccup", cpu=False, io=True, moves=False, state=ProcessState.SLEEPING, wait=WaitKind.DATA)
READS_NOTHING = READS._replace(io=False, kernel="poll")
VALIDATES = Doing("validation", function="validate", work=Phase.VALIDATION)
COMPILES = Doing("compile", moves=False, work=Phase.COMPILE, function="compile_fx")
COLLECTS = Doing("gc", moves=False, pulse=False)
SKIPS = Doing("skip", io=True, function="skip_batches")
LOGS = Doing("log", cpu=False, io=True, moves=False, state=ProcessState.SLEEPING, function="upload")
IMPORTS = Doing("import", io=True, function="main", work=Phase.STARTUP)
FROZEN = Doing("frozen", cpu=False, moves=False, pulse=False, state=ProcessState.SLEEPING)
STOPPED = FROZEN._replace(name="stopped", state=ProcessState.STOPPED)
# Faults.
LOCKED = Doing(
    "locked", cpu=False, moves=False, state=ProcessState.SLEEPING, kernel="futex_wait_queue", function="push"
)
LOOPS = Doing("loops", moves=False, function="until_even")


def saves(path: str, *, file: bool = True) -> tuple[Doing, Doing, Doing]:
    """Return the pieces of a save: the state is collected, written, and flushed."""
    wait = WaitKind.SAVE if file else None
    first = Doing(
        f"save {path}", moves=False, wait=wait, work=Phase.CHECKPOINT, function="save_checkpoint", saves=path * file
    )
    written = first._replace(cpu=False, io=True, state=ProcessState.DISK_WAIT, kernel="write")
    return first, written, written._replace(io=False, kernel="fsync")
