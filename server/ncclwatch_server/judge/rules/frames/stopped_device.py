"""Tells of ranks that are still in a collective which others have completed, while their peers wait for them.

No member is through before all have come, so such a rank waits for nobody: its device has stopped, a transfer to it
alone has, or what tells of its end. Nothing that is recorded tells these apart, so the cause stays open.
"""

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.model.verdict import Cause, Culprit
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation
from ncclwatch_server.judge.telling.evidence import block_evidence
from ncclwatch_server.judge.telling.words import at_line, operation_words, waiting_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.roots import StoppedRoot

ADVICE = (
    "Look at the GPU and the kernel log of that node first (nvidia-smi, dmesg: Xid), then at the links to it. If the "
    "device is well, its watchdog thread is what hangs: take a native stack of the process (py-spy dump --native)."
)


def tell(case: Case, root: StoppedRoot, cause: Cause) -> Explanation:
    """Return what is told of ranks that are still in what others have completed."""
    first, many = root.still_in[0], len(root.ranks) > 1
    what, through = operation_words(case.views, first), _through_words(root)
    return Explanation(
        cause=cause,
        summary=(
            f"{ranks_words(root.ranks)} {'are' if many else 'is'} still in {what}{at_line(first.wait.site)}, "
            f"{through}; {waiting_words(case, root.blocks, root.ranks)}."
        ),
        explanation=(
            f"{_law(root)}, so {ranks_words(root.ranks)} "
            f"{'wait' if many else 'waits'} for no rank there: the device has stopped, the transfer to it has, "
            "or what tells of its end. Which of these, the records do not tell."
        ),
        advice=ADVICE,
        culprits=tuple(
            Culprit(
                rank=block.rank,
                host=case.views[block.rank].host,
                call_site=block.wait.site,
                doing=f"still in {what}, {through}",
            )
            for block in root.still_in
        ),
        victims=root.victims,
        evidence=tuple(block_evidence(block) for block in (*root.still_in, *root.blocks)[:24]),
    )


def _law(root: StoppedRoot) -> str:
    if root.still_in[0].operation.kind is WaitKind.SEND:
        return "What was received had been sent"
    return "Nobody completes it before all members have come"


def _through_words(root: StoppedRoot) -> str:
    if root.still_in[0].operation.kind is WaitKind.SEND:
        return f"which {ranks_words(root.through)} received"
    others = len(root.still_in[0].operation.members) - 1
    if not others:
        return "of which it is the only member"
    return f"which {'all other members' if len(root.through) == others else ranks_words(root.through)} completed"
