"""Do several ranks write one file at one time, and can a save succeed at all? And how far has one come?

That ranks save to one file one after the other is no fault: only times that overlap are one. Times of two views are
compared only as exactly as it is known when the views were taken.
"""

import re
from collections.abc import Iterable

from ncclwatch.contract.model.rank import RankView, SaveView
from ncclwatch.contract.model.verdict import Cause, Certainty, Evidence, Severity, Verdict
from ncclwatch.contract.words.text import ADVICE, ADVICE_QUOTA, bytes_words, ranks_words, seconds_words
from ncclwatch_server.judge.theory.case import Case, at, culprit, main_thread, source_evidence
from ncclwatch_server.judge.theory.waits.rank_standing import GONE_STATES

UNANSWERED_S = 5.0  # without an answer of its file system, before that is told
STILL_S = 3.0  # a file that cannot be written and has grown no further for so long
RATE_MIN = 1.0  # bytes per second; below, nothing moves
# What storage says when it takes no more, by the words of the C library, Python and torch.
_STORAGE = re.compile(
    r"No space left|quota exceeded|Permission denied|Read-only file system|File too large|Is a directory|"
    r"Input/output error|Stale file handle|No such file or directory|does not exist|cannot be opened|"
    r"unexpected pos|file write failed|iostream error|Errno (5|13|27|28|30|116|122)\b"
)
# By the words of the C library and of Rust, and of what we say ourselves.
_QUOTA = re.compile(r"quota exceeded|quota of .* is used up|rrno 122\b|os error 122\b", re.DOTALL)
_Saving = tuple[RankView, SaveView]


def bad_saves(case: Case) -> tuple[Verdict, ...]:
    """Warn of ranks that write one file at one time, of saves that failed or cannot succeed, and of too little room."""
    saving = [(view, save) for view in case.views.values() for save in view.saves if _is_known(view, save)]
    return (*_conflicts(saving), *_failures(saving), *_shortages(saving))


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
        left_bytes = save.total_bytes - save.written_bytes
        total = _total_words(save) if left_bytes > 0 else ""
        words += f": {bytes_words(save.written_bytes)}{total} written"
        if save.bytes_per_s >= RATE_MIN and save.still_s < STILL_S:
            words += f", {bytes_words(save.bytes_per_s)}/s"
            if left_bytes > 0:
                words += f", {seconds_words(left_bytes / save.bytes_per_s)} to go at that rate"
        elif save.still_s >= STILL_S:
            words += f", none for {seconds_words(save.still_s)}"
    if save.refused:
        words += f" ({save.refused})"
    elif save.unanswered_s >= UNANSWERED_S:
        words += f" (its file system has not answered for {seconds_words(save.unanswered_s)})"
    return words


def _total_words(save: SaveView) -> str:
    """Return of how many bytes a save has written some: those of its tensors, or those of the last one like it."""
    return f" of {bytes_words(save.total_bytes)}{', as the last one had,' * save.as_before}"


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
    over_quota = bool(_QUOTA.search(save.error) or _QUOTA.search(save.refused))
    # What is seen of a file system under a quota is that it is full, or nothing at all: who was refused knows better.
    refused = save.refused if not over_quota or _QUOTA.search(save.refused) else ""
    why = "; ".join(words for words in (save.error, refused) if words)
    free = f" {bytes_words(save.free_bytes)} are free there." if save.free_bytes >= 0 else ""
    if over_quota:
        free = " The quota of this user, group or directory is used up"
        free += f"; its file system has {bytes_words(save.free_bytes)} free." * (save.free_bytes > 0) or "."
    what = ("could not write its save" if save.error else "cannot write its save") + ", over quota" * over_quota
    return Verdict(
        cause=Cause.FAILED_SAVE,
        certainty=Certainty.PROVEN,
        severity=Severity.WARNING,
        summary=f"{ranks_words(ranks)} {what}: {_call_words(save)}{at(save.site)}: {why}.",
        explanation=(
            f"There is no whole checkpoint of that save.{free} Later ones to the same place will fail in the same way."
        ),
        advice=ADVICE_QUOTA if over_quota else ADVICE[Cause.FAILED_SAVE],
        culprits=tuple(culprit(view, each.site, f"saves to {each.path}") for view, each in failed),
        victims=(),
        evidence=_evidence(failed),
    )


# -- saves for which there is no room --------------------------------------------------------------


def _shortages(saving: Iterable[_Saving]) -> tuple[Verdict, ...]:
    short = [(view, save) for view, save in saving if save.lacks_bytes > 0 and not _fails(save) and not save.error]
    return (_shortage(short),) if short else ()


def _shortage(short: list[_Saving]) -> Verdict:
    """Return a warning that was given before anything failed: somebody may still make room."""
    ranks = sorted({view.rank for view, _ in short})
    save = max((each for _, each in short), key=lambda each: each.lacks_bytes)
    whose, verb = ranks_words(ranks), "has" if len(ranks) == 1 else "have"
    place = f"{_call_words(save)}{at(save.site)}"
    room = f"{bytes_words(max(0, save.free_bytes))} are free there"
    if save.ended_s is not None:
        summary = f"{whose} {verb} no room for a next checkpoint beside this one: {place} took "
        summary += f"{bytes_words(save.total_bytes)}, and {room}."
        then = "Unless something is removed before it, the next one fails half-way, and is not whole."
    else:
        had = "the last one like it had" if save.as_before else "its tensors alone have"
        summary = f"{whose} {verb} no room for a save that has begun: {place}: {had} {bytes_words(save.total_bytes)}, "
        summary += f"and {room}."
        then = "Unless something is removed while it writes, it fails half-way, and is not whole."
    return Verdict(
        cause=Cause.FAILED_SAVE,
        certainty=Certainty.LATE,
        severity=Severity.WARNING,
        predicted=True,
        about=f"room for {save.call}",
        summary=summary,
        explanation=f"{then} {bytes_words(save.lacks_bytes)} are wanting.",
        advice=ADVICE[Cause.FAILED_SAVE],
        culprits=tuple(culprit(view, each.site, f"saves to {each.path}") for view, each in short),
        victims=(),
        evidence=_evidence(short),
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
