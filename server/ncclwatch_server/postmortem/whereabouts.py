"""Where was a rank that is in no operation? By its stack if there is one, else by its last operation."""

from dataclasses import dataclass

from ncclwatch.contract.model.rank import CallSite, RankView, StackFrame, ThreadView, WaitKind
from ncclwatch.contract.model.verdict import Cause, Evidence
from ncclwatch.contract.stacks.ownership import is_users_by_path
from ncclwatch.contract.words.text import WAIT_WORDS, seconds_words
from ncclwatch_server.postmortem.matter import Matter, last_words

STILL_S_MIN = 6.0  # as for a live job
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
    dump = matter.witness.stacks.get(rank)
    for name, frames in dump.threads if dump is not None else ():
        if name == "MainThread" and frames:
            return _in_stack(rank, frames)
    view = matter.witness.views.get(rank)
    if view is not None:
        return _in_ring(matter, view)
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


def _in_ring(matter: Matter, view: RankView) -> Whereabouts:
    """Return what the pulse of a rank saw last."""
    main = next((thread for thread in view.threads if thread.main), None)
    wait = main.wait if main is not None else None
    site = (main.doing if main is not None else None) or (wait.site if wait is not None else None)
    last = last_words(matter, view.rank)
    said = [f"it was in {WAIT_WORDS[wait.kind]}" if wait is not None and wait.kind in WAIT_WORDS else
            f"its last operation was {last}" if last else "it recorded no operation"]  # fmt: skip
    if main is not None and main.same_s >= STILL_S_MIN:
        said.append(f"its stack had not changed for {seconds_words(main.same_s)}")
    lag_s = matter.witness.lags.get(view.rank, 0.0)
    if lag_s:
        said.append(
            f"its pulse stopped {seconds_words(lag_s)} before the others': it had ended, was stopped, or native code "
            "held the GIL"
        )
    facts = [Evidence(source="ring", rank=view.rank, fact=said[-1])] if len(said) > 1 else []
    if main is not None and main.leaf:
        facts.append(Evidence(source="ring", rank=view.rank, fact=f"innermost frame {main.leaf}"))
    return Whereabouts(
        site=site or (view.history[-1].site if view.history else None),
        doing=", ".join(said),
        cause=_cause(main),
        evidence=tuple(facts),
    )


def _cause(main: ThreadView | None) -> Cause | None:
    """Return the cause by what the main thread stood in, None if it did not stand still."""
    if main is None or main.same_s < STILL_S_MIN:
        return None
    if main.exception:
        return Cause.SWALLOWED_EXCEPTION
    kind = main.wait.kind if main.wait is not None else None
    return {WaitKind.DATA: Cause.DATA_STALL, WaitKind.SAVE: Cause.STUCK_SAVE}.get(kind) if kind else Cause.HOST_STALL
