"""Ranks write one file at one time.

That ranks save to one file one after the other is no fault: only times that overlap are one. Times of two views are
compared only as exactly as it is known when the views were taken.
"""

from collections.abc import Iterator

from ncclwatch.contract.model.rank import RankView, SaveView
from ncclwatch.contract.model.verdict import Cause, Severity
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation, Rule, Told, When
from ncclwatch_server.judge.rules.frames.saves import Saving, save_evidence, saves_of
from ncclwatch_server.judge.telling.evidence import culprit
from ncclwatch_server.judge.telling.words import at_line
from ncclwatch_server.judge.theory.case import Case

ADVICE = (
    "Let one rank write the file (`if rank == 0`, with the barrier outside of the if), or put the rank into its name. "
    "Do not resume from the file as it is: it may be a mixture."
)


def warn(case: Case) -> Iterator[Told]:
    """Warn of each file that several ranks write at one time."""
    by_file: dict[str, list[Saving]] = {}
    for view, save in saves_of(case):
        if save.identity and not save.appends:
            by_file.setdefault(save.identity, []).append((view, save))
    for writers in by_file.values():
        at_once = {
            one[0].rank: one
            for one in writers
            for other in writers
            if one[0].rank != other[0].rank and _overlap(one, other)
        }
        if at_once:
            yield Told(said=_conflict([at_once[rank] for rank in sorted(at_once)]))


def _overlap(one: Saving, other: Saving) -> bool:
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


def _conflict(writers: list[Saving]) -> Explanation:
    ranks = [view.rank for view, _ in writers]
    first = writers[0][1]
    paths = sorted({save.path for _, save in writers})
    also = f" (by {len(paths)} different paths, one of them {paths[-1]})" if len(paths) > 1 else ""
    places = dict.fromkeys(f"{save.call}{at_line(save.site)}" for _, save in writers)
    return Explanation(
        cause=Cause.CONFLICTING_SAVE,
        severity=Severity.WARNING,
        summary=(
            f"{ranks_words(ranks)} write the same file at the same time: {first.path}{also}, in "
            f"{'; '.join(list(places)[:3])}."
        ),
        explanation=(
            "Each of them empties the file and writes its own beginning over what another has written. Which bytes "
            "stay is chance: the file may be whole by luck today and torn at the next save."
        ),
        advice=ADVICE,
        culprits=tuple(culprit(view, save.site, f"writes {save.path}") for view, save in writers),
        evidence=save_evidence(writers),
    )


RULE = Rule(cause=Cause.CONFLICTING_SAVE, advice=ADVICE, warn=warn, when=When.NO_HANG)
