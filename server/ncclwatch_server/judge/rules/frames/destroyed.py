"""Tells of a group that a member took down while others wait in it. Why it did, says the rule of the cause."""

from collections.abc import Mapping, Sequence

from ncclwatch.contract.model.rank import CallSite, RankView
from ncclwatch.contract.model.verdict import Cause, Evidence
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation
from ncclwatch_server.judge.rules.frames.ends import end_evidence
from ncclwatch_server.judge.telling.evidence import block_evidence, culprit, source_evidence
from ncclwatch_server.judge.telling.words import (
    at_line,
    either_words,
    group_words,
    lies_words,
    wait_words,
    waiting_words,
)
from ncclwatch_server.judge.theory.case import Case, main_thread
from ncclwatch_server.judge.theory.ends.kinds import end_site
from ncclwatch_server.judge.theory.roots import DestroyedRoot
from ncclwatch_server.judge.theory.waits.rank_standing import Block


def tell(case: Case, root: DestroyedRoot, cause: Cause, *, advice: str, reason: str = "") -> Explanation:
    """Return what is told of a group that was destroyed for a cause; `reason` adds what is known of why."""
    ranks, views = root.ranks, case.views
    group = group_words(views, root.place.group)
    waiters = () if root.decided else root.waiters
    if waiters:
        reason = f"Either that was too early, or {ranks_words(waiters)} made a call too many."
    if root.note is not None:
        reason = f"The call that it waits in now is made {lies_words(root.note.condition)}, so not by all ranks."
    either = f"{either_words((ranks, waiters))}: " if waiters else ""
    return Explanation(
        cause=cause,
        summary=(
            f"{either}{ranks_words(ranks)} destroyed {group} and {_then(views, ranks)} "
            f"{_doing(views[ranks[0]])}; {waiting_words(case, root.blocks, ranks) or _lost_words(case, root)}."
        ),
        explanation=(
            f"Operation #{root.place.seq} of {group} needs all its members, and {ranks_words(ranks)} destroyed "
            f"the group before entering it.{f' {reason}' if reason else ''}"
        ),
        advice=advice,
        culprits=tuple(culprit(views[rank], _site(views[rank]), _doing(views[rank])) for rank in (*ranks, *waiters)),
        victims=tuple(rank for rank in root.victims if rank not in waiters),
        one_of=not root.decided,
        evidence=(*_evidence(case, ranks, root.blocks), *(() if root.blocks else end_evidence(case, root.victims))),
    )


def _then(views: Mapping[int, RankView], ranks: Sequence[int]) -> str:
    one = len(ranks) == 1
    if views[ranks[0]].ending is not None:
        return "was then" if one else "were then"
    return "is now" if one else "are now"


def _lost_words(case: Case, root: DestroyedRoot) -> str:
    """Return who has ended in that group, where nobody waits any more."""
    site = end_site(case.views[root.victims[0]])
    return f"{ranks_words(root.victims)} lost the connection in {root.place.op}{at_line(site)}, and ended"


def _doing(view: RankView) -> str:
    thread = main_thread(view)
    if thread is not None and thread.wait is not None:
        return f"in {wait_words(thread.wait)}{at_line(thread.wait.site)}"
    return f"elsewhere{at_line(_site(view))}"


def _site(view: RankView) -> CallSite | None:
    thread = main_thread(view)
    if thread is not None and thread.wait is not None and thread.wait.site is not None:
        return thread.wait.site
    return thread.doing if thread is not None else None


def _evidence(case: Case, ranks: tuple[int, ...], blocks: Sequence[Block]) -> tuple[Evidence, ...]:
    facts = [
        Evidence(source="ring", rank=rank, fact=f"destroyed the group; {_doing(case.views[rank])}") for rank in ranks
    ]
    for rank in ranks:
        facts += source_evidence(case.views[rank], _site(case.views[rank]))
    return (*facts, *(block_evidence(block) for block in blocks[:16]))
