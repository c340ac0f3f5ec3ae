"""Tells of ranks that are still in a collective which others have completed, while their peers wait for them.

No member is through before all have come, so such a rank waits for nobody: its device has stopped, a transfer to it
alone has, or what tells of its end. Nothing that is recorded tells these apart, so the cause stays open.
Where fewer members are through than are still in it, the few may as well have made another call under that number: a
kernel that was given calls that do not match may end on some ranks, and hang on others. Where their calls are recorded,
and match, it may be the link between the few and the others.
"""

from collections.abc import Sequence

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.model.verdict import Cause, Culprit
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation
from ncclwatch_server.judge.telling.evidence import block_evidence
from ncclwatch_server.judge.telling.words import at_line, operation_words, wait_words, waiting_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.roots import StoppedRoot
from ncclwatch_server.judge.theory.waits.rank_standing import find_issued

ADVICE = (
    "Look at the GPU and the kernel log of that node first (nvidia-smi, dmesg: Xid), then at the links to it. If the "
    "device is well, its watchdog thread is what hangs: take a native stack of the process (py-spy dump --native)."
)


def tell(case: Case, root: StoppedRoot, cause: Cause) -> Explanation:
    """Return what is told of ranks that are still in what others have completed."""
    first, many = root.still_in[0], len(root.ranks) > 1
    sends = first.operation.kind is WaitKind.SEND
    group, seq = first.operation.group, first.operation.seq
    # A file may leave out whatever is through.
    through_by = [case.views[rank] for rank in root.through]
    forgotten = not sends and not any(view.file is not None or find_issued(view, group, seq) for view in through_by)
    odd = root.through if len(root.through) < len(root.ranks) or forgotten else ()
    what = wait_words(first.wait) if sends else operation_words(case.views, first)
    through = _through_words(root)
    others = [block for block in root.blocks if block.rank not in root.ranks] or root.blocks
    return Explanation(
        cause=cause,
        summary=(
            f"{ranks_words(root.ranks)} {'are' if many else 'is'} still in {what}{at_line(first.wait.site)}, "
            f"{through}; {waiting_words(case, others, root.ranks)}."
        ),
        explanation=(
            f"{_law(root)}, so {ranks_words(root.ranks)} "
            f"{'wait' if many else 'waits'} for no rank there: the device has stopped, the transfer to it has, "
            f"or what tells of its end. {_odd_words(case, root, odd)}Which of these, the records do not tell."
        ),
        advice=ADVICE,
        culprits=(
            *(
                Culprit(
                    rank=block.rank,
                    host=case.views[block.rank].host,
                    call_site=block.wait.site,
                    doing=f"still in {what}, {through}",
                )
                for block in root.still_in
            ),
            *(Culprit(rank=rank, host=case.views[rank].host, doing=f"completed {what}") for rank in odd),
        ),
        one_of=bool(odd),
        victims=tuple(rank for rank in root.victims if rank not in odd),
        evidence=tuple(block_evidence(block) for block in (*root.still_in, *root.blocks)[:24]),
    )


def _law(root: StoppedRoot) -> str:
    if root.still_in[0].operation.kind is WaitKind.SEND:
        return "What was received had been sent"
    return "Nobody completes it before all members have come"


def _odd_words(case: Case, root: StoppedRoot, odd: Sequence[int]) -> str:
    if not odd:
        return ""
    operation = root.still_in[0].operation
    if all(find_issued(case.views[rank], operation.group, operation.seq) is not None for rank in odd):
        return f"Or the link between {ranks_words(odd)} and the others has failed, as most are still in it. "
    verb = "has" if len(odd) == 1 else "have"
    return f"Or {ranks_words(odd)} {verb} made another call under that number, which does not match theirs. "


def _through_words(root: StoppedRoot) -> str:
    if root.still_in[0].operation.kind is WaitKind.SEND:
        return f"which {ranks_words(root.through)} received"
    others = len(root.still_in[0].operation.members) - 1
    if not others:
        return "of which it is the only member"
    return f"which {'all other members' if len(root.through) == others else ranks_words(root.through)} completed"
