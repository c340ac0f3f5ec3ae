"""Reads stacks that py-spy wrote as JSON, and tells what the main thread was in."""

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import CallSite, StackDump, StackFrame, ThreadView, WaitKind, WaitView
from ncclwatch.contract.stacks.ownership import is_users_by_path
from ncclwatch_server.offline.entries import TEXT_CHARS_MAX, number

THREADS_MAX = 256
INNERMOST = 12  # frames that tell what a thread is in
# What the innermost frames of a thread tell of what it is in.
_PLACES: tuple[tuple[WaitKind, tuple[str, ...]], ...] = (
    (WaitKind.DATA, ("_try_get_data", "_get_data", "_next_data", "fetch (torch/utils/data")),
    (WaitKind.SAVE, ("torch/serialization.py", "torch/distributed/checkpoint/", "safetensors/", "fsync")),
)


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


def thread_of(dump: StackDump) -> ThreadView | None:
    """Return the main thread as the pulse of a live rank would tell of it, None if the dump has none."""
    frames = next((frames for name, frames in dump.threads if name == "MainThread" and frames), None)
    if frames is None:
        return None
    texts = [f"{frame.function} {frame.file}" for frame in frames[:INNERMOST]]
    kind = next((kind for kind, words in _PLACES if any(word in text for word in words for text in texts)), None)
    own = tuple(
        CallSite(file=frame.file, line=frame.line, function=frame.function)
        for frame in frames
        if frame.line > 0 and is_users_by_path(frame.file)
    )
    leaf = frames[0]
    return ThreadView(
        tid=0,
        main=True,
        issued=0,
        wait=WaitView(kind=kind, age_s=0.0) if kind is not None else None,
        doing=own[0] if own else None,
        frames=own,
        leaf=f"{leaf.function} {leaf.file.rsplit('/', 1)[-1]}:{leaf.line}",
    )
