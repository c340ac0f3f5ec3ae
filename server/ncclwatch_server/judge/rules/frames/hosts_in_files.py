"""Tells where a rank was that is in no operation, as a file says: by a stack, by its last pulse, by its record."""

from dataclasses import dataclass

from ncclwatch.contract.model.rank import CallSite, RankView, ThreadView, WaitKind
from ncclwatch.contract.model.verdict import Cause, Evidence
from ncclwatch.contract.words.text import WAIT_WORDS, seconds_words
from ncclwatch_server.judge.telling.words import at, group_words
from ncclwatch_server.judge.theory.case import main_thread

STILL_S_MIN = 6.0  # as for a live job
_CAUSES = {WaitKind.DATA: Cause.DATA_STALL, WaitKind.SAVE: Cause.STUCK_SAVE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """What is known of a rank outside all operations."""

    site: CallSite | None
    doing: str
    cause: Cause | None = None  # None: only that it did not come
    evidence: tuple[Evidence, ...] = ()


def whereabouts(view: RankView) -> Whereabouts:
    """Return where a rank was."""
    thread = main_thread(view)
    if view.file is not None and view.file.saw_host:
        return _by_pulse(view, thread)
    if thread is not None and thread.leaf:
        return _by_stack(view, thread)
    return Whereabouts(site=_last_site(view), doing=_last_doing(view))


def last_words(view: RankView) -> str:
    """Return the newest operation of a rank in words, "" if its file has none."""
    if not view.history:
        return ""
    op = view.history[-1]
    return f"{op.op.value} #{op.seq} of {group_words({view.rank: view}, op.group)}{at(op.site)}"


def _last_doing(view: RankView) -> str:
    last = last_words(view)
    if last:
        return f"its last operation was {last}"
    whole = view.file is not None and view.file.whole
    return "it recorded no operation" if whole else "its file lists nothing that is unfinished"


def _last_site(view: RankView) -> CallSite | None:
    return view.history[-1].site if view.history else None


def _by_stack(view: RankView, thread: ThreadView) -> Whereabouts:
    function, _, place = thread.leaf.partition(" ")
    doing = f"its main thread is in {function} ({place})"
    kind = thread.wait.kind if thread.wait is not None else None
    return Whereabouts(
        site=thread.doing,
        doing=doing + (f", called{at(thread.doing)}" if thread.doing is not None else ""),
        cause=_CAUSES.get(kind, Cause.HOST_STALL) if kind is not None else Cause.HOST_STALL,
        evidence=(Evidence(source="py-spy", rank=view.rank, fact=doing),),
    )


def _by_pulse(view: RankView, thread: ThreadView | None) -> Whereabouts:
    """Return what the pulse of a rank saw last."""
    wait = thread.wait if thread is not None else None
    said = [f"it was in {WAIT_WORDS[wait.kind]}" if wait is not None and wait.kind in WAIT_WORDS else _last_doing(view)]
    if thread is not None and thread.same_s >= STILL_S_MIN:
        said.append(f"its stack had not changed for {seconds_words(thread.same_s)}")
    if view.pulse_age_s:
        said.append(
            f"its pulse stopped {seconds_words(view.pulse_age_s)} before the others': it had ended, was stopped, or "
            "native code held the GIL"
        )
    facts = [Evidence(source="ring", rank=view.rank, fact=said[-1])] if len(said) > 1 else []
    if thread is not None and thread.leaf:
        facts.append(Evidence(source="ring", rank=view.rank, fact=f"innermost frame {thread.leaf}"))
    site = (thread.doing if thread is not None else None) or (wait.site if wait is not None else None)
    return Whereabouts(
        site=site or _last_site(view), doing=", ".join(said), cause=_cause(thread), evidence=tuple(facts)
    )


def _cause(thread: ThreadView | None) -> Cause | None:
    """Return the cause by what the main thread stood in, None if it did not stand still."""
    if thread is None or thread.same_s < STILL_S_MIN:
        return None
    if thread.exception:
        return Cause.SWALLOWED_EXCEPTION
    kind = thread.wait.kind if thread.wait is not None else None
    return _CAUSES.get(kind) if kind is not None else Cause.HOST_STALL
