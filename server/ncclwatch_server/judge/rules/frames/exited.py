"""Tells of ranks that ended with exit code 0 while others needed them. Why they did, says the rule of the cause."""

from ncclwatch.contract.model.rank import Ending, RankView
from ncclwatch.contract.model.verdict import Cause
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation
from ncclwatch_server.judge.rules.frames.ends import end_evidence, ending_words
from ncclwatch_server.judge.telling.evidence import culprit
from ncclwatch_server.judge.telling.words import at, waiting_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.endings import end_site, last_site
from ncclwatch_server.judge.theory.roots import GoneRoot


def tell(case: Case, root: GoneRoot, cause: Cause, *, advice: str, reason: str = "") -> Explanation:
    """Return what is told of ranks that are gone without an error; `reason` adds what is known of why."""
    ranks, views = root.ranks, case.views
    verb = "have" if len(ranks) > 1 else "has"
    last = f"(last operation{at(end_site(views[ranks[0]]))})"
    others = waiting_words(views, root.blocks) or f"{ranks_words(root.victims)} still trained"
    return Explanation(
        cause=cause,
        summary=f"{ranks_words(ranks)} {verb} left training {_how(views[ranks[0]])} {last}, while {others}.",
        explanation=(
            f"A collective completes only when all members make the call; {ranks_words(ranks)} "
            f"{_ended(views[ranks[0]])} and will not come.{f' {reason}' if reason else ''}"
        ),
        advice=advice,
        culprits=tuple(
            culprit(views[rank], last_site(views[rank]), ending_words(_ending(views[rank]))) for rank in ranks
        ),
        victims=root.victims,
        evidence=end_evidence(case, ranks),
    )


def _ending(view: RankView) -> Ending:
    return view.ending or Ending(kind="exited")


def _how(view: RankView) -> str:
    ending = _ending(view)
    if ending.exit_code is not None:
        return "with exit code 0"
    return f"after {ending.exception}" if ending.exception else "without an exception"


def _ended(view: RankView) -> str:
    return "ended without an error" if _ending(view).exit_code is not None else "has left its program"
