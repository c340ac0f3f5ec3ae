"""Which stacks are in a file that py-spy wrote as JSON?"""

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import StackDump, StackFrame
from ncclwatch_server.offline.entries import TEXT_CHARS_MAX, number

THREADS_MAX = 256


def is_stacks(value: object) -> bool:
    """Say whether a value looks like what `py-spy dump --json` prints."""
    return isinstance(value, list) and bool(value) and all(isinstance(t, dict) and "frames" in t for t in value[:8])


def read(value: object, rank: int) -> StackDump:
    """Return the stacks of a rank's own process; those of its children come after it and are left out."""
    threads = [thread for thread in (value if isinstance(value, list) else []) if isinstance(thread, dict)]
    pid = threads[0].get("pid") if threads else None
    own = [thread for thread in threads if thread.get("pid") == pid][:THREADS_MAX]
    return StackDump(rank=rank, threads=tuple((_name(thread), _frames(thread.get("frames"))) for thread in own))


def _name(thread: dict[str, object]) -> str:
    name = thread.get("thread_name")
    if isinstance(name, str) and name:
        return name[:TEXT_CHARS_MAX]
    native = thread.get("os_thread_id")
    return "MainThread" if native is not None and native == thread.get("pid") else f"thread {native}"


def _frames(value: object) -> tuple[StackFrame, ...]:
    frames = [frame for frame in (value if isinstance(value, list) else []) if isinstance(frame, dict)]
    return tuple(
        StackFrame(
            function=str(frame.get("name", ""))[:TEXT_CHARS_MAX],
            file=str(frame.get("filename", ""))[:TEXT_CHARS_MAX],
            line=number(frame.get("line")),
        )
        for frame in frames[: config.STACK_DEPTH_MAX]
    )
