"""Tells of ranks that are gone: how each ended, and who ended or waits because of it."""

import signal
from dataclasses import replace

from ncclwatch.contract.model.rank import Ending, RankView
from ncclwatch.contract.model.verdict import Cause, Certainty, Evidence, Severity
from ncclwatch.contract.words.text import ranks_words, seconds_words
from ncclwatch_server.judge.explanation import Explanation
from ncclwatch_server.judge.telling.evidence import block_evidence, culprit, source_evidence
from ncclwatch_server.judge.telling.words import at_line, either_words, waiting_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.ends.causes import find_echoes, followers
from ncclwatch_server.judge.theory.ends.kinds import (
    end_site,
    ended_s_ago,
    has_torn_down,
    is_clean,
    last_site,
    lost_peer,
    without_numbers,
)
from ncclwatch_server.judge.theory.roots import GoneRoot

ADVICE_INSIDE = (
    "Wait for everything that was issued with async_op=True, by work.wait(), before a rank ends; and let all ranks "
    "leave training together."
)


ADVICE_KEY = (
    "Let a rank set the key before it ends. If it did, compare the names of the keys that are set and waited for: a "
    "counter, a step or a rank in a name differs between ranks."
)


def tell(case: Case, ranks: tuple[int, ...], *, advice: str) -> Explanation:
    """Return what is told of ranks that crashed."""
    views = [case.views[rank] for rank in ranks]
    view = views[0]
    ending = view.ending or Ending(kind="vanished")
    site = ending.site or last_site(view)
    last = f"; {'its' if len(ranks) == 1 else 'their'} last operation was{at_line(site)}" if site else ""
    where = at_line(ending.site) if ending.site else last
    host = f" on {view.host}" if len(ranks) == 1 else ""
    victims = followers(case, ranks)
    return Explanation(
        cause=Cause.RANK_CRASHED,
        summary=f"{ranks_words(ranks)}{host} {_ended_words(case, ranks)}{where}.",
        explanation=_explanation(case, ranks, victims),
        advice=advice,
        culprits=tuple(culprit(view, end_site(view), ending_words(_ending(view))) for view in views),
        victims=victims,
        onset_s=ended_s_ago(view),
        evidence=end_evidence(case, ranks),
    )


def tell_closer(
    case: Case,
    known: Explanation,
    ranks: tuple[int, ...],
) -> Explanation:
    """Return what is told of ranks that crashed of something that is known more closely than its exception says.

    `known` are the words for it, `ranks` whom it is about, and its victims who crashed of it, too.
    """
    crash = tell(case, ranks, advice=known.advice)
    return replace(
        crash,
        cause=known.cause,
        victims=tuple(sorted({*crash.victims, *known.victims})),
        summary=known.summary,
        explanation=f"{known.explanation} {crash.explanation}",
        evidence=(*known.evidence, *crash.evidence),
    )


def tell_left(case: Case, root: GoneRoot, cause: Cause, *, advice: str, reason: str = "") -> Explanation:
    """Return what is told of ranks that are gone without an error; `reason` adds what is known of why."""
    ranks, views = root.ranks, case.views
    waiters = () if root.decided else root.waiters
    if root.of_keys:
        advice = ADVICE_KEY
        reason = reason if root.decided else f"{reason} Who should have set it is not recorded.".lstrip()
    elif waiters:
        reason = f"Either that was too early, or {ranks_words(waiters)} made a call too many."
    site = end_site(views[ranks[0]])
    last = f" (last operation{at_line(site)})" if site is not None else ""
    either = f"{either_words((ranks, waiters))}: " if waiters else ""
    others = waiting_words(case, root.blocks, ranks) or f"{ranks_words(root.victims)} still trained"
    law = (
        "A key of the store is there once a rank has set it"
        if root.of_keys
        else "A collective completes only when all members make the call"
    )
    why = f"{law}; {ranks_words(ranks)} {_ended(views[ranks[0]])} "
    if _are_inside(case, root):
        why += "before its own was complete."
        advice = ADVICE_INSIDE
    else:
        why += "and will not come."
    needs = "may have left the key out, or looks for another name" if root.of_keys else "needs ranks that have left"
    return Explanation(
        cause=cause,
        severity=Severity.WARNING if root.hangs is Certainty.LATE else Severity.CRITICAL,
        summary=f"{either}{ranks_words(ranks)} {_how(views[ranks[0]])}{last}; {others}.",
        explanation=f"{why}{f' {reason}' if reason else ''}",
        advice=advice,
        culprits=(
            *(culprit(views[rank], last_site(views[rank]), ending_words(_ending(views[rank]))) for rank in ranks),
            *(culprit(views[rank], last_site(views[rank]), needs) for rank in waiters),
            *(culprit(views[rank], last_site(views[rank]), "left its loop early, too") for rank in root.short),
        ),
        victims=tuple(rank for rank in root.victims if rank not in waiters),
        one_of=not root.decided,
        evidence=end_evidence(case, ranks),
    )


def _are_inside(case: Case, root: GoneRoot) -> bool:
    """Say whether the ranks that are gone had come to all that others wait for them in."""
    theirs = [block.operation for block in root.blocks if not set(root.ranks).isdisjoint(block.operation.members)]
    return bool(theirs) and all(set(root.ranks).isdisjoint(case.graph.absent[each]) for each in theirs)


def _ending(view: RankView) -> Ending:
    return view.ending or Ending(kind="exited")


def _how(view: RankView) -> str:
    ending = _ending(view)
    if ending.exit_code is not None:
        return "exited with code 0"
    return f"left its program after {_raised(ending)}" if ending.exception else "left its program without an exception"


def _ended(view: RankView) -> str:
    return "ended without an error" if _ending(view).exit_code is not None else "has left its program"


def _explanation(case: Case, ranks: tuple[int, ...], victims: tuple[int, ...]) -> str:
    errors = [v for v in victims if (end := case.views[v].ending) is not None and not is_clean(end)]
    after = f" {ranks_words(errors).capitalize()} ended after it, as a consequence." if errors else ""
    ending, known = _ending(case.views[ranks[0]]), len(case.views) == case.snapshot.world_size
    if len(ranks) == len(case.views):
        return _of_all(ending, len(ranks), known=known)
    if lost_peer(ending) and ranks[0] in find_echoes(case):
        lost = "the store, the process through which ranks find each other"
        return f"{ranks_words(ranks).capitalize()} lost {lost}: no rank had ended before.{after}"
    others = [view.ending for rank, view in case.views.items() if rank not in ranks]
    if known and not victims and all(end is not None and is_clean(end) for end in others):
        return "All other ranks had ended well, or did so after it."
    if not victims and all(has_torn_down(case.views[rank]) for rank in ranks):
        had = "it had destroyed its" if len(ranks) == 1 else "they had destroyed their"
        return f"No rank that is known waits for {ranks_words(ranks)}: {had} process groups."
    gone = "it is gone" if len(ranks) == 1 else "they are gone"
    return f"The other ranks need {ranks_words(ranks)} for every further collective, and {gone}.{after}"


def _of_all(ending: Ending, count: int, *, known: bool) -> str:
    """Explain an end that all ranks had which are known, or the only one."""
    all_ranks = "All ranks" if known else "All ranks that are known"
    if count == 1:
        return "The job has no other rank." if known else "Nothing is known of the other ranks."
    if ending.exception:
        return f"{all_ranks} raised the same error at the same line."
    return f"{all_ranks} were killed by the same signal at the same time."


def _ended_words(case: Case, ranks: tuple[int, ...]) -> str:
    """Return how some ranks ended in one way; what they raised without the numbers, where these differ."""
    endings = [case.views[rank].ending or Ending(kind="vanished") for rank in ranks]
    said = endings[0]
    if len({ending.exception for ending in endings}) > 1:
        said = replace(said, exception=without_numbers(said.exception))
    words = ending_words(said)
    return words.replace("was killed", "were killed", 1) if len(ranks) > 1 else words


def ending_words(ending: Ending) -> str:
    """Return how a rank ended, in words."""
    if ending.exception:  # whoever sent a signal sent it to a rank that was ending
        return f"ended with {_raised(ending)}"
    if ending.signal is not None:
        try:
            name = signal.Signals(ending.signal).name
        except ValueError:
            name = f"signal {ending.signal}"
        return f"was killed by {name}"
    if ending.exit_code:
        return f"ended with exit code {ending.exit_code}"
    if ending.kind == "vanished":
        return "vanished without a trace"
    return "exited with code 0" if ending.exit_code is not None else "left its program without an exception"


def _raised(ending: Ending) -> str:
    """Return the exception without the full stop that some messages end with: a line may follow."""
    return ending.exception.rstrip(". ")


def end_evidence(case: Case, ranks: tuple[int, ...]) -> tuple[Evidence, ...]:
    """Return how and when ranks ended, and the source lines of those that a verdict is about."""
    facts = []
    for rank, view in case.views.items():
        if view.ending is not None:
            s_ago = ended_s_ago(view)
            # A log does not tell when a rank ended.
            ago = f", {seconds_words(s_ago)} ago" if s_ago or view.file is None else ""
            facts.append(Evidence(source="agent", rank=rank, fact=ending_words(view.ending) + ago))
    for rank in ranks:
        view = case.views[rank]
        facts += source_evidence(view, end_site(view))
    facts += [block_evidence(block) for rank in case.blocked[:8] for block in case.found[rank].blocks]
    return tuple(facts[:40])
