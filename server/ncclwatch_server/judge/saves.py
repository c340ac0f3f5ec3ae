"""Do several ranks write one file at one time, and can a save succeed at all? And how far has one come?

That ranks save to one file one after the other is no fault: only times that overlap are one. Times of two views are
compared only as exactly as it is known when the views were taken.
"""

import re
from collections.abc import Iterable

from ncclwatch.contract.model import Cause, Certainty, Evidence, RankView, SaveView, Severity, Verdict
from ncclwatch.contract.text import ADVICE, bytes_words, ranks_words, seconds_words
from ncclwatch_server.judge.case import Case, at, culprit, main_thread, source_evidence
from ncclwatch_server.judge.standing import GONE_STATES

UNANSWERED_S = 5.0  # without an answer of its file system, before that is told
STILL_S = 3.0  # a file that cannot be written and has grown no further for so long
RATE_MIN = 1.0  # bytes per second; below, nothing moves
# What storage says when it takes no more, by the words of the C library, Python and torch.
_STORAGE = re.compile(
    r"No space left|quota exceeded|Permission denied|Read-only file system|File too large|Is a directory|"
    r"Input/output error|Stale file handle|No such file or directory|does not exist|cannot be opened|"
    r"unexpected pos|file write failed|iostream error|Errno (5|13|27|28|30|116|122)\b"
)
_Saving = tuple[RankView, SaveView]


def bad_saves(case: Case) -> tuple[Verdict, ...]:
    """Warn of ranks that write one file at one time, and of saves that failed or cannot succeed."""
    saving = [(view, save) for view in case.views.values() for save in view.saves if _is_known(view, save)]
    return (*_conflicts(saving), *_failures(saving))


def save_words(view: RankView) -> str:
    """Return what the save of a rank's main thread is and how far it has come, "" if it is in none."""
    thread = main_thread(view)
    save = next(
        (each for each in view.saves if thread is not None and each.tid == thread.tid and each.ended_s is None), None
    )
    if save is None:
        return ""
    words = _call_words(save)
    if save.written_bytes >= 0:
        words += f": {bytes_words(save.written_bytes)} written"
        if save.bytes_per_s >= RATE_MIN and save.still_s < STILL_S:
            words += f", {bytes_words(save.bytes_per_s)}/s"
        elif save.still_s >= STILL_S:
            words += f", none for {seconds_words(save.still_s)}"
    if save.refused:
        words += f" ({save.refused})"
    elif save.unanswered_s >= UNANSWERED_S:
        words += f" (its file system has not answered for {seconds_words(save.unanswered_s)})"
    return words


def _is_known(view: RankView, save: SaveView) -> bool:
    """Say whether it is known until when a save was under way: one that death has broken off ended some time before."""
    return save.ended_s is not None or (view.ending is None and view.process.state not in GONE_STATES)


def _call_words(save: SaveView) -> str:
    return f"{save.call} to {save.path}" if save.path else save.call


# -- one file, several writers ---------------------------------------------------------------------


def _conflicts(saving: Iterable[_Saving]) -> tuple[Verdict, ...]:
    by_file: dict[str, list[_Saving]] = {}
    for view, save in saving:
        if save.identity and not save.appends:
            by_file.setdefault(save.identity, []).append((view, save))
    found = []
    for writers in by_file.values():
        at_once = {
            one[0].rank: one
            for one in writers
            for other in writers
            if one[0].rank != other[0].rank and _overlap(one, other)
        }
        if at_once:
            found.append(_conflict([at_once[rank] for rank in sorted(at_once)]))
    return tuple(found)


def _overlap(one: _Saving, other: _Saving) -> bool:
    """Say whether two saves certainly were under way at one moment.

    Ages of views that were taken at one moment of one node's clock are exact; any other view was taken at most
    `taken_s` before it came.
    """
    (mine, _), (theirs, _) = one, other
    at_once = (mine.host, mine.news_age_s, mine.taken_s) == (theirs.host, theirs.news_age_s, theirs.taken_s)
    spans = [_span(view, save, exact=at_once) for view, save in (one, other)]
    return min(began_s for began_s, _ in spans) > max(ended_s for _, ended_s in spans)


def _span(view: RankView, save: SaveView, *, exact: bool) -> tuple[float, float]:
    """Return how long ago a save had certainly begun, and had certainly not ended."""
    unsure_s = 0.0 if exact else view.taken_s
    return view.news_age_s + save.began_s, view.news_age_s + unsure_s + (save.ended_s or 0.0)


def _conflict(writers: list[_Saving]) -> Verdict:
    ranks = [view.rank for view, _ in writers]
    first = writers[0][1]
    paths = sorted({save.path for _, save in writers})
    also = f" (by {len(paths)} different paths, one of them {paths[-1]})" if len(paths) > 1 else ""
    places = dict.fromkeys(f"{save.call}{at(save.site)}" for _, save in writers)
    return Verdict(
        cause=Cause.CONFLICTING_SAVE,
        certainty=Certainty.PROVEN,
        severity=Severity.WARNING,
        summary=(
            f"{ranks_words(ranks)} write one file at one time: {first.path}{also}, in {'; '.join(list(places)[:3])}."
        ),
        explanation=(
            "Each of them empties the file and writes its own beginning over what the others have written. Which bytes "
            "stay is chance: the file may be whole by luck today and torn at the next save."
        ),
        advice=ADVICE[Cause.CONFLICTING_SAVE],
        culprits=tuple(culprit(view, save.site, f"writes {save.path}") for view, save in writers),
        victims=(),
        evidence=_evidence(writers),
    )


# -- saves that come to nothing --------------------------------------------------------------------


def _failures(saving: Iterable[_Saving]) -> tuple[Verdict, ...]:
    failed = [(view, save) for view, save in saving if _fails(save)]
    return (_failure(failed),) if failed else ()


def _fails(save: SaveView) -> bool:
    """Say whether storage refused a save, or is about to: that a save raises for its own reasons is no news here."""
    if save.ended_s is not None:
        return bool(save.error) and (bool(save.refused) or bool(_STORAGE.search(save.error)))
    return bool(save.refused) and (save.written_bytes < 0 or save.still_s >= STILL_S) and save.began_s >= STILL_S


def _failure(failed: list[_Saving]) -> Verdict:
    ranks = sorted({view.rank for view, _ in failed})
    save = failed[0][1]
    why = "; ".join(words for words in (save.error, save.refused) if words)
    free = f" {bytes_words(save.free_bytes)} are free there." if save.free_bytes >= 0 else ""
    what = "could not write its save" if save.error else "cannot write its save"
    return Verdict(
        cause=Cause.FAILED_SAVE,
        certainty=Certainty.PROVEN,
        severity=Severity.WARNING,
        summary=f"{ranks_words(ranks)} {what}: {_call_words(save)}{at(save.site)}: {why}.",
        explanation=(
            f"There is no whole checkpoint of that save.{free} Later ones to the same place will fail in the same way."
        ),
        advice=ADVICE[Cause.FAILED_SAVE],
        culprits=tuple(culprit(view, each.site, f"saves to {each.path}") for view, each in failed),
        victims=(),
        evidence=_evidence(failed),
    )


def _evidence(writers: list[_Saving]) -> tuple[Evidence, ...]:
    facts = []
    for view, save in writers[:16]:
        ended = f", ended {seconds_words(save.ended_s)} ago" if save.ended_s is not None else ", under way"
        raised = f", raised {save.error}" if save.error else ""
        began = f"{_call_words(save)}{at(save.site)} began {seconds_words(save.began_s)} ago{ended}{raised}"
        facts.append(Evidence(source="ring", rank=view.rank, fact=began))
        if save.file or save.inode:
            kind = f" on {save.filesystem}" if save.filesystem else ""
            fact = f"file {save.file or save.path}, inode {save.inode}{kind}"
            facts.append(Evidence(source="proc", rank=view.rank, fact=fact))
        facts += source_evidence(view, save.site)
    return tuple(facts)
