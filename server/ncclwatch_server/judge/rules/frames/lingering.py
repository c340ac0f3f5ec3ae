"""Tells of ranks that neither train nor end when others have ended well."""

from ncclwatch.contract.model.rank import CallSite, StackDump
from ncclwatch.contract.model.verdict import Cause, Severity
from ncclwatch.contract.stacks.ownership import is_users_by_path
from ncclwatch.contract.words.text import ranks_words, seconds_words
from ncclwatch_server.judge.explanation import Explanation
from ncclwatch_server.judge.rules.frames.ends import end_evidence
from ncclwatch_server.judge.rules.frames.standstill import evidence_of
from ncclwatch_server.judge.telling.evidence import culprit
from ncclwatch_server.judge.telling.words import at, at_line
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.places import place_of
from ncclwatch_server.judge.theory.roots import LingeringRoot, Stay

_ADVICE = {
    Stay.EXIT_HANDLERS: (
        "Look at what this process runs at its exit: a multiprocessing queue, child processes, atexit functions. Empty "
        "the queue first or call cancel_join_thread() on it, join or end children, give atexit functions a deadline."
    ),
    Stay.THREADS: (
        "End that thread before the program ends (an event, a sentinel in its queue), or start it with daemon=True."
    ),
    Stay.FILES: (
        "Let the rank that writes the file do so before it exits, on every path, or use a broadcast instead. Give the "
        "loop that waits for the file a deadline."
    ),
    Stay.PROGRAM: (
        "Look at what that line waits for: a rank that has exited may have had to send, write or set it. Give the wait "
        "a deadline, and let all ranks meet in a barrier before any of them exits."
    ),
}
THREADS_MAX = 4


def tell(case: Case, root: LingeringRoot, cause: Cause) -> Explanation:
    """Return what is told of ranks that are left."""
    own, others, views = ranks_words(root.ranks), ranks_words(root.ended), case.views
    many = len(root.ranks) > 1
    known = all(end.exit_code is not None for rank in root.ended if (end := views[rank].ending) is not None)
    ended = "exited with code 0" if known else f"{'have' if len(root.ended) > 1 else 'has'} ended"
    inside = root.stay in (Stay.PROGRAM, Stay.FILES)
    site = place_of(case, views[root.ranks[0]]) if inside else None
    doing = _doing(root.stay, site, many=many)
    return Explanation(
        cause=cause,
        severity=Severity.CRITICAL if root.stay is Stay.EXIT_HANDLERS else Severity.WARNING,
        summary=(
            f"{own} {'have' if many else 'has'} made no progress for {seconds_words(root.still_s)} and not exited, "
            f"although {others} {ended}: {doing}."
        ),
        explanation=" ".join(part for part in (_explanation(root), _threads(case, root)) if part),
        advice=_ADVICE[root.stay],
        culprits=tuple(
            culprit(views[rank], place if inside else None, _doing(root.stay, place if inside else None, many=False))
            for rank in root.ranks
            for place in (place_of(case, views[rank]),)
        ),
        evidence=(*evidence_of(case, root.ranks, ()), *end_evidence(case, root.ended)),
    )


def _doing(stay: Stay, site: CallSite | None, *, many: bool) -> str:
    own = "their programs have" if many else "its program has"
    if stay is Stay.EXIT_HANDLERS:
        return f"{own} finished, and an exit handler does not return"
    if stay is Stay.THREADS:
        return f"{own} finished, and the interpreter waits for a non-daemon thread"
    where = f"{'they are' if many else 'it is'}{at_line(site)}"
    return where + (", checking for a file again and again" if stay is Stay.FILES else "")


def _explanation(root: LingeringRoot) -> str:
    beside = f" {ranks_words(root.beside).capitalize()} make no progress either." if root.beside else ""
    return f"No collective is pending, so no backend timeout ends this job.{beside}"


def _threads(case: Case, root: LingeringRoot) -> str:
    """Return where the other threads stand that run the user's own code, as py-spy shows them."""
    dump = case.snapshot.stacks.get(root.ranks[0])
    if dump is None or root.stay is not Stay.THREADS:
        return ""
    found = [f"{name}{at(site)}" for name, site in _own_threads(dump)]
    return f"Its other threads: {'; '.join(found[:THREADS_MAX])}." if found else ""


def _own_threads(dump: StackDump) -> list[tuple[str, CallSite]]:
    found = []
    for name, frames in dump.threads:
        own = next((frame for frame in frames if frame.line > 0 and is_users_by_path(frame.file)), None)
        if name != "MainThread" and own is not None:
            found.append((name, CallSite(file=own.file, line=own.line, function=own.function)))
    return found
