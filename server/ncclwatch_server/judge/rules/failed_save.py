"""Saves that failed or cannot succeed, and saves for which there is no room."""

import re
from collections.abc import Iterator

from ncclwatch.contract.model.rank import SaveView
from ncclwatch.contract.model.verdict import Cause, Certainty, Severity
from ncclwatch.contract.words.text import bytes_words, ranks_words
from ncclwatch_server.judge.explanation import Explanation, Rule, Told, When
from ncclwatch_server.judge.rules.frames.saves import STILL_S, Saving, call_words, save_evidence, saves_of
from ncclwatch_server.judge.telling.evidence import culprit
from ncclwatch_server.judge.telling.words import at_line
from ncclwatch_server.judge.theory.case import Case

# What storage says when it takes no more, by the words of the C library, Python and torch.
_STORAGE = re.compile(
    r"No space left|quota exceeded|Permission denied|Read-only file system|File too large|Is a directory|"
    r"Input/output error|Stale file handle|No such file or directory|does not exist|cannot be opened|"
    r"unexpected pos|file write failed|iostream error|Errno (5|13|27|28|30|116|122)\b"
)
# By the words of the C library and of Rust, and of what we say ourselves.
_QUOTA = re.compile(r"quota exceeded|quota of .* is used up|rrno 122\b|os error 122\b", re.DOTALL)

ADVICE = (
    "Free space on that file system, or correct the path or its permissions, before the next checkpoint is due. Do "
    "not resume from what was left at the path: it is incomplete."
)
ADVICE_QUOTA = (
    "Remove old checkpoints of the same user, group or directory, or have the quota raised. Commands that show the "
    "use: quota -s, lfs quota -h, xfs_quota, mmlsquota; df shows space that this job may not use. What was left at "
    "the path is incomplete."
)


def warn(case: Case) -> Iterator[Told]:
    """Warn of saves that storage refused, or is about to, and of too little room for others."""
    saves = saves_of(case)
    failed = [(view, save) for view, save in saves if _fails(save)]
    if failed:
        yield Told(said=_failure(failed))
    short = [(view, save) for view, save in saves if save.lacks_bytes > 0 and not _fails(save) and not save.error]
    if short:
        yield _shortage(short)


def _fails(save: SaveView) -> bool:
    """Say whether storage refused a save, or is about to: that a save raises for its own reasons is no news here."""
    if save.ended_s is not None:
        return bool(save.error) and (bool(save.refused) or bool(_STORAGE.search(save.error)))
    return bool(save.refused) and (save.written_bytes < 0 or save.still_s >= STILL_S) and save.began_s >= STILL_S


def _failure(failed: list[Saving]) -> Explanation:
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
    return Explanation(
        cause=Cause.FAILED_SAVE,
        severity=Severity.WARNING,
        summary=f"{ranks_words(ranks)} {what}: {call_words(save)}{at_line(save.site)}: {why}.",
        explanation=(
            f"That save left no complete checkpoint.{free} Later ones to the same place will fail in the same way."
        ),
        advice=ADVICE_QUOTA if over_quota else ADVICE,
        culprits=tuple(culprit(view, each.site, f"saves to {each.path}") for view, each in failed),
        evidence=save_evidence(failed),
    )


def _shortage(short: list[Saving]) -> Told:
    """Return a warning that was given before anything failed: somebody may still make room."""
    ranks = sorted({view.rank for view, _ in short})
    save = max((each for _, each in short), key=lambda each: each.lacks_bytes)
    whose, verb = ranks_words(ranks), "has" if len(ranks) == 1 else "have"
    place = f"{call_words(save)}{at_line(save.site)}"
    room = f"{bytes_words(max(0, save.free_bytes))} are free there"
    if save.ended_s is not None:
        summary = f"{whose} {verb} no space for the next checkpoint: {place} took "
        summary += f"{bytes_words(save.total_bytes)}, and {room}."
        then = "Unless space is freed before it, the next save fails and is incomplete."
    else:
        had = "the last one like it had" if save.as_before else "its tensors alone have"
        summary = f"{whose} {verb} no space for the save in progress: {place}: {had} {bytes_words(save.total_bytes)}, "
        summary += f"and {room}."
        then = "Unless space is freed while it writes, it fails and is incomplete."
    return Told(
        certainty=Certainty.LATE,
        predicted=True,
        about=f"room for {save.call}",
        said=Explanation(
            cause=Cause.FAILED_SAVE,
            severity=Severity.WARNING,
            summary=summary,
            explanation=f"{then} {bytes_words(save.lacks_bytes)} are missing.",
            advice=ADVICE,
            culprits=tuple(culprit(view, each.site, f"saves to {each.path}") for view, each in short),
            evidence=save_evidence(short),
        ),
    )


RULE = Rule(cause=Cause.FAILED_SAVE, advice=ADVICE, warn=warn, when=When.NO_HANG)
