"""Where was a rank that is in no operation? By its stack if there is one, else by its last operation."""

from dataclasses import dataclass

from ncclwatch.contract.model import CallSite, Cause, Evidence, StackFrame
from ncclwatch.contract.ownership import is_users_by_path
from ncclwatch_server.postmortem.matter import Matter, last_words

# What the innermost frames of a thread that stands still tell of why.
_PLACES: tuple[tuple[Cause, tuple[str, ...]], ...] = (
    (Cause.DATA_STALL, ("_try_get_data", "_get_data", "_next_data", "fetch (torch/utils/data")),
    (Cause.STUCK_SAVE, ("torch/serialization.py", "torch/distributed/checkpoint/", "safetensors/", "fsync")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """What is known of a rank outside all operations."""

    site: CallSite | None
    doing: str
    cause: Cause | None = None  # None: only that it did not come
    proven: bool = False
    evidence: tuple[Evidence, ...] = ()


def whereabouts(matter: Matter, rank: int) -> Whereabouts:
    """Return where a rank was."""
    dump = matter.stacks.get(rank)
    for name, frames in dump.threads if dump is not None else ():
        if name == "MainThread" and frames:
            return _in_stack(rank, frames)
    newest = matter.recordings[rank].newest
    last = last_words(matter, rank)
    return Whereabouts(
        site=newest[1].site if newest is not None else None,
        doing=f"its last operation was {last}" if last else "it recorded no operation",
    )


def _in_stack(rank: int, frames: tuple[StackFrame, ...]) -> Whereabouts:
    own = next((frame for frame in frames if frame.line > 0 and is_users_by_path(frame.file)), None)
    site = CallSite(file=own.file, line=own.line, function=own.function) if own is not None else None
    leaf = frames[0]
    texts = [f"{frame.function} {frame.file}" for frame in frames[:12]]
    cause = next((cause for cause, words in _PLACES if any(w in text for w in words for text in texts)), None)
    doing = f"its main thread is in {leaf.function} ({leaf.file.rsplit('/', 1)[-1]}:{leaf.line})"
    return Whereabouts(
        site=site,
        doing=doing + (f", called at {site}" if site is not None else ""),
        cause=cause or Cause.HOST_STALL,
        evidence=(Evidence(source="py-spy", rank=rank, fact=doing),),
    )
