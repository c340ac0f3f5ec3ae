"""A rank left training with exit code 0 while others still had collectives to run."""

from ncclwatch.contract.model.verdict import Cause
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.frames.ends import end_evidence
from ncclwatch_server.judge.telling.evidence import culprit
from ncclwatch_server.judge.telling.words import at, waiting_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.endings import Went, end_site, last_site
from ncclwatch_server.judge.theory.roots import GoneRoot, Root

ADVICE = (
    "Let all ranks leave training together: this one returned or called exit while the others still had "
    "collectives to run."
)


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain ranks that are gone without an error and are still needed."""
    if not isinstance(root, GoneRoot) or root.ends.went is not Went.LEFT:
        return None
    ranks, views = root.ranks, case.views
    verb = "have" if len(ranks) > 1 else "has"
    return Explanation(
        cause=Cause.RANK_EXITED,
        summary=(
            f"{ranks_words(ranks)} {verb} left training with exit code 0 (last operation{at(end_site(views[ranks[0]]))}"
            f"), while {waiting_words(views, root.blocks) or f'{ranks_words(root.victims)} still trained'}."
        ),
        explanation=(
            f"A collective completes only when all members make the call; {ranks_words(ranks)} "
            "ended without an error and will not come."
        ),
        advice=ADVICE,
        culprits=tuple(culprit(views[rank], last_site(views[rank]), "exited with code 0") for rank in ranks),
        victims=root.victims,
        evidence=end_evidence(case, ranks),
    )


RULE = Rule(cause=Cause.RANK_EXITED, advice=ADVICE, recognise=recognise)
