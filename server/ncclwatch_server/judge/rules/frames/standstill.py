"""Explains ranks that make no progress outside every operation while others wait for them."""

from collections.abc import Iterable, Sequence

from ncclwatch.contract.model.rank import (
    CallSite,
    EndedThread,
    Ending,
    LockFile,
    ProcessState,
    RankView,
    ThreadView,
    WaitKind,
)
from ncclwatch.contract.model.verdict import Cause, Evidence
from ncclwatch.contract.words.text import WAIT_WORDS, ranks_words, seconds_words
from ncclwatch_server.judge.explanation import Explanation
from ncclwatch_server.judge.rules.frames.ends import ending_words
from ncclwatch_server.judge.rules.frames.saves import save_words
from ncclwatch_server.judge.telling.evidence import block_evidence, culprit, source_evidence
from ncclwatch_server.judge.telling.words import at_line, waiting_words
from ncclwatch_server.judge.theory.case import Case, main_thread
from ncclwatch_server.judge.theory.places import is_over, place_of
from ncclwatch_server.judge.theory.roots import OutsideRoot
from ncclwatch_server.judge.theory.stillness import Stillness, Trouble, still_s_of, stillness, timed_wait
from ncclwatch_server.judge.theory.waits.rank_standing import FROZEN_STATES, Block

THREAD_S = 60.0
EXCEPTION_CHARS_MAX = 120  # in a headline
ADVICE_GIL = (
    "Release the GIL in that native call: use ctypes.CDLL instead of PyDLL, or Py_BEGIN_ALLOW_THREADS in the "
    "extension. Or run it in a process of its own, with a deadline."
)


def tell(
    case: Case, root: OutsideRoot, cause: Cause, *, advice: str, reason: str = "", before: str = ""
) -> Explanation:
    """Return what is told of ranks that stand still for a cause.

    `reason` adds what is known of why, `before` what they did before they came to stand there.
    """
    view = case.views[root.ranks[0]]
    site = place_of(case, view)
    hosts = "" if len({v.host for v in case.views.values()}) == 1 else f" on {view.host}"
    lost = _lost_thread(view, root.still)
    gone = _child_words(view) or (thread_words(lost) if lost is not None else "")
    gone_advice = _child_advice(view) or (_thread_advice(lost) if lost is not None else "")
    doing = f"{'are' if len(root.ranks) > 1 else 'is'} now{at_line(site)}"
    own_words = f"{before}, and {doing}" if before else _stalled_words(view, root.still, site, len(root.ranks))
    own_words += f", and {gone}" if gone else ""
    return Explanation(
        cause=cause,
        summary=f"{ranks_words(root.ranks)}{hosts} {own_words}; {waiting_words(case, root.blocks, root.ranks)}.",
        explanation=" ".join(part for part in (_cannot_finish(view, root), reason, _may_wait(case, root)) if part),
        advice=f"{gone_advice} {advice}" if gone_advice else advice,
        culprits=tuple(
            culprit(case.views[rank], place_of(case, case.views[rank]), _words_of(case, case.views[rank]))
            for rank in root.ranks
        ),
        victims=root.victims,
        evidence=evidence_of(case, root.ranks, root.blocks),
    )


def _child_words(view: RankView) -> str:
    """Return what is wrong with a process that a rank has started, "" if nothing is, or it is stopped itself."""
    process = view.process
    if process.state in FROZEN_STATES:
        return ""
    if process.killed_child:
        ending = Ending(kind="signalled", signal=process.killed_by)
        return f"its child process {process.killed_child} {ending_words(ending)}"
    return f"its child process {process.stopped_child} is stopped (state T)" if process.stopped_child else ""


def _child_advice(view: RankView) -> str:
    process = view.process
    if not _child_words(view):
        return ""
    if process.killed_child:
        return (
            f"Find out what killed process {process.killed_child} (SIGKILL may come from the OOM killer: dmesg), if "
            "this rank waits for it."
        )
    return f"Continue the stopped process (kill -CONT {process.stopped_child}), if this rank waits for it."


def _lost_thread(view: RankView, still: Stillness) -> EndedThread | None:
    """Return the thread that an exception has ended, if that was not long before the rank came to stand still.

    Whoever fills a queue may have filled it for a while: its reader goes on for so long.
    """
    thread = view.ended_thread
    if thread is None or view.process.state in FROZEN_STATES:
        return None
    return thread if thread.age_s + view.news_age_s <= still.still_s + THREAD_S else None


def thread_words(thread: EndedThread) -> str:
    """Return how a thread of a rank ended."""
    said = thread.exception.split("\n", 1)[0][:EXCEPTION_CHARS_MAX]
    return f"its thread {thread.name} ended with {said}{at_line(thread.site)}"


def _thread_advice(thread: EndedThread) -> str:
    return f"Fix the exception that ended the thread {thread.name}, if this rank waits for it."


def is_held_by_the_gil(view: RankView, still: Stillness) -> bool:
    """Say whether native code that holds the GIL keeps a rank still, rather than its storage."""
    return still.pulse_lost and view.process.state is not ProcessState.DISK_WAIT


def _words_of(case: Case, view: RankView) -> str:
    found = stillness(case, view)
    return what_words(view, found).removeprefix("it ") if found is not None else ""


def _stalled_words(view: RankView, why: Stillness, site: CallSite | None, count: int) -> str:
    many, what = count > 1, what_words(view, why)
    if why.trouble is Trouble.STOPPED:
        pid = f" (pid {view.pid})" if not many else ""
        return f"{'are' if many else 'is'} {what}{pid}{at_line(site)}"
    place = f"{at_line(site)} for {seconds_words(why.still_s)}"
    return f"{'have' if many else 'has'} made no progress{place}: {what}"


def _cannot_finish(view: RankView, root: OutsideRoot) -> str:
    return (
        f"{ranks_words(root.victims).capitalize()} cannot finish without rank {view.rank}, and it makes no progress: "
        f"no CPU for {seconds_words(view.process.cpu_still_s)}, process {view.process.state.value}"
        + (f", heartbeat {seconds_words(view.pulse_age_s)} ago." if view.attached else ".")
    )


def _may_wait(case: Case, root: OutsideRoot) -> str:
    if not root.may_wait:
        return ""
    others = ranks_words(sorted(case.told.union(case.explained)))
    return f"It may wait for one of {others} through a file or a socket, which is not recorded."


def what_words(view: RankView, still: Stillness) -> str:
    """Return in what a rank stands still."""
    thread = main_thread(view)
    kind = thread.wait.kind if thread is not None and thread.wait is not None else None
    if still.trouble is Trouble.STOPPED:
        return "stopped by a debugger" if view.process.state is ProcessState.TRACED else "stopped by SIGSTOP"
    words = _pulse_words(view, kind) if still.pulse_lost else _still_words(view, still, thread, kind)
    return "; ".join(filter(None, (words, end_words(view))))


def _pulse_words(view: RankView, kind: WaitKind | None) -> str:
    save = save_words(view) if kind is WaitKind.SAVE else ""
    inside = f", in {save or WAIT_WORDS[kind]}" if kind is not None and kind in WAIT_WORDS else ""
    if view.process.state is ProcessState.DISK_WAIT:
        return f"it is in uninterruptible sleep (state D){inside}"
    return f"native code holds the GIL and uses no CPU{inside}"


def lock_words(view: RankView) -> str:
    """Return which file lock a rank waits for, "" if for none."""
    process = view.process
    path = process.lock_path or "a file"
    return f"it waits for the lock on {path}, held by pid {process.lock_holder}" if process.lock_holder else ""


def end_words(view: RankView) -> str:
    """Return when the wait ends by itself that a rank stands still in, "" if it is in none that does."""
    thread = main_thread(view)
    timed = timed_wait(view, thread.wait.kind if thread is not None and thread.wait is not None else None)
    if timed is None:
        return ""
    left = f"for {seconds_words(max(0.0, timed.left_s - view.news_age_s))} more"
    if timed.child:
        return f"a process that it started (pid {timed.child}) sleeps {left} at most"
    again = ", again and again" if timed.whole_s < still_s_of(view) / 2 else ""
    return f"it sleeps {left}{again}" if timed.asleep else f"it waits in {timed.call} {left} at most{again}"


def _lock_file_words(file: LockFile) -> str:
    if not file.writer:
        return f"it waits for the lock file {file.path}, whose owner is not recorded in it"
    state = "no longer exists" if file.ended else "may still run"
    return f"it waits for the lock file {file.path} of process {file.writer}, which {state}"


def _still_words(view: RankView, still: Stillness, thread: ThreadView | None, kind: WaitKind | None) -> str:
    if view.process.state is ProcessState.DISK_WAIT:
        inside = f" in {save_words(view)}" if kind is WaitKind.SAVE and save_words(view) else ""
        return f"it is in uninterruptible sleep (state D){inside}"
    if not view.attached:
        return "it has not called ncclwatch.attach() yet and shows no activity"
    if is_over(view):
        return "its program has finished, and it waits for a thread that has not"
    if still.trouble is Trouble.LOCK_FILE and view.process.lock_file is not None:
        return _lock_file_words(view.process.lock_file)
    if thread is not None and thread.exception:
        return f"it is handling {thread.exception}"
    if view.process.lock_holder:
        return lock_words(view)
    if kind is not None and kind in WAIT_WORDS:
        words = save_words(view) if kind is WaitKind.SAVE else ""
        return f"it is blocked in {words or WAIT_WORDS[kind]}"
    return "it is outside every collective and shows no activity"


def _no_words(what: str, still_s: float) -> str:
    """Return for how long something was not seen. None at all may be unknown, too."""
    return f"no {what} for {seconds_words(still_s)}" if still_s > 0 else f"{what} in use or unknown"


def evidence_of(case: Case, ranks: Iterable[int], blocks: Sequence[Block]) -> tuple[Evidence, ...]:
    """Return what was seen of the ranks that are waited for, and of the first that wait."""
    facts = []
    for rank in ranks:
        view = case.views[rank]
        process, thread = view.process, main_thread(view)
        inside = f" in {process.in_kernel}" if process.in_kernel else ""
        facts.append(
            Evidence(
                source="proc",
                rank=rank,
                fact=f"process {process.state.value}{inside}, {_no_words('CPU', process.cpu_still_s)}, "
                f"{'I/O unknown' if process.io_unknown else _no_words('I/O', process.io_still_s)}",
            )
        )
        if thread is not None and thread.leaf:
            facts.append(
                Evidence(
                    source="ring",
                    rank=rank,
                    fact=f"innermost frame {thread.leaf}, the same for {seconds_words(thread.same_s)}",
                )
            )
        facts += source_evidence(view, place_of(case, view))
    return tuple(facts + [block_evidence(block) for block in blocks[:16]])
