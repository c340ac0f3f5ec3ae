"""All ranks are inside one collective with the same arguments, and it makes no progress."""

from ncclwatch.contract.model.verdict import Cause
from ncclwatch.contract.words.text import WAIT_WORDS, ranks_words, seconds_words
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.telling.evidence import block_evidence, culprit, source_evidence
from ncclwatch_server.judge.telling.words import at_line
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.roots import InsideRoot, Root

CAUSE = Cause.TRANSPORT
ADVICE = (
    "Look at the network between these hosts first (interface chosen, firewall, link errors), then at the code. All "
    "ranks are inside the same collective, and it makes no progress."
)
ADVICE_P2P = (
    "Compare the tags of this call and of the other side's. If they are equal, look at the network between the two "
    "hosts (interface chosen, firewall, link errors)."
)


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain an operation that all have entered alike, and that does not end."""
    if not isinstance(root, InsideRoot):
        return None
    ranks, first = root.ranks, root.blocks[0]
    what = WAIT_WORDS.get(first.wait.kind) or first.wait.op.value
    verb = "have all" if len(ranks) > 1 else "has"
    return Explanation(
        cause=CAUSE,
        summary=f"{ranks_words(ranks)} {verb} entered {what}{at_line(first.wait.site)}, and it makes no progress.",
        explanation=_words(root),
        advice=ADVICE_P2P if first.wait.op.is_p2p else ADVICE,
        culprits=tuple(culprit(case.views[rank], first.wait.site, f"inside {what}") for rank in ranks),
        one_of=True,
        evidence=tuple(
            [block_evidence(b) for b in root.blocks[:16]] + source_evidence(case.views[first.rank], first.wait.site)
        ),
    )


def _words(root: InsideRoot) -> str:
    if root.by_files:
        return (
            "Every member has entered it and is blocked in nothing earlier, as far as recorded with the same arguments:"
            " the code agrees (reduce ops and roots may not be recorded), the transfer does not end. A kernel "
            "before it may be what hangs, where start times are not recorded."
        )
    if root.blocks[0].wait.op.is_p2p:
        return (
            f"The other side has called as well, and none has used CPU for {seconds_words(root.onset_s)}: the transfer "
            "does not finish. Tags are not recorded: a send and a recv with different tags never meet."
        )
    return (
        f"Every member has entered with the same arguments and none has used CPU for "
        f"{seconds_words(root.onset_s)}: the calls match, and the transfer does not finish."
    )


RULE = Rule(cause=CAUSE, advice=ADVICE, recognise=recognise)
