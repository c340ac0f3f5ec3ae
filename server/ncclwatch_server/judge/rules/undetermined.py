"""Ranks wait for others, and nothing that is recorded says why these do not come, or who they are.

Of a group not all members are known, or not all can be told to be outside: for whom its ranks wait, nobody can say.
That is worth a line, and no accusation. Or it is known who: ranks are still in what others have completed.
"""

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import OpView
from ncclwatch.contract.model.verdict import Cause, Severity
from ncclwatch.contract.words.text import ranks_words, seconds_words
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.frames import stopped_device
from ncclwatch_server.judge.telling.evidence import block_evidence
from ncclwatch_server.judge.telling.words import group_words, waiting_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.roots import Root, StoppedRoot, UnseenRoot, UntoldRoot
from ncclwatch_server.judge.theory.waits.rank_standing import Operation

CAUSE = Cause.UNDETERMINED
ADVICE = (
    "Compare the stacks and the last operations of the ranks below where they differ. The evidence alone does not "
    "decide."
)

ADVICE_FILES = (
    "Give the logs or the Flight Recorder dumps of all ranks to analyze. NCCL writes dumps at a timeout with "
    "TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1, to TORCH_FR_DUMP_TEMP_FILE."
)


def recognise(root: Root, case: Case) -> Explanation | None:
    """Tell of operations that do not end, where nothing tells why, or who has not come."""
    if isinstance(root, StoppedRoot):
        return stopped_device.tell(case, root, CAUSE)
    if isinstance(root, UnseenRoot):
        return _unwatched(case, root, root.met) if root.met is not None else None
    return _untold(case, root) if isinstance(root, UntoldRoot) else None


def _unwatched(case: Case, root: UnseenRoot, met: OpView) -> Explanation:
    """Explain a wait for ranks that have trained with the others, though no process of theirs has ever reported."""
    lost, one = ranks_words(root.ranks), len(root.ranks) == 1
    are, they, them, their = ("is", "it", "it", "its") if one else ("are", "they", "them", "their")
    collective = f"{met.op.value} #{met.seq} of {group_words(case.views, met.group)}"
    return Explanation(
        cause=CAUSE,
        severity=Severity.WARNING,
        summary=(
            f"{waiting_words(case, root.blocks)} for {seconds_words(root.onset_s)}; {lost} {are} not watched, "
            f"and whether {they} entered is not known."
        ),
        explanation=(
            f"No process of {lost} reports to this server, but {collective} was completed with {them}. Either {they} "
            f"never called ncclwatch.attach(), or {their} node does not reach this server, or {they} ended before this "
            "server watched the job."
        ),
        advice=(
            f"See whether the processes of {lost} live, and where they are (py-spy dump). If they do, look for "
            "attach() in their program, and at the log of the agent on their node."
        ),
        culprits=(),
        victims=root.victims,
        one_of=True,
        evidence=tuple(block_evidence(block) for block in root.blocks[:16]),
    )


def _untold(case: Case, root: UntoldRoot) -> Explanation:
    explanation = _explanation(root.operation, group_words(case.views, root.place.group), root.untold)
    severity = Severity.WARNING if root.long else Severity.INFO
    they_wait = "they wait" if len({block.rank for block in root.blocks}) > 1 else "it waits"
    return Explanation(
        cause=CAUSE,
        severity=Severity.CRITICAL if root.over else severity,
        summary=(
            f"{waiting_words(case, root.blocks)} for {seconds_words(root.onset_s)}; which rank {they_wait} for is "
            f"unknown: {_lack(root.untold)}."
        ),
        explanation=_words_of_files(root) if root.over else explanation,
        advice=ADVICE_FILES if root.over else ADVICE,
        culprits=(),
        victims=root.victims,
        one_of=True,
        evidence=tuple(block_evidence(block) for block in root.blocks[:16]),
    )


def _words_of_files(root: UntoldRoot) -> str:
    ranks = sorted({block.rank for block in root.blocks})
    report, they = ("report", "they") if len(ranks) > 1 else ("reports", "it")
    return (
        f"That {ranks_words(ranks)} {report} it says only that {they} waited. Who else belongs to that group, or what "
        "the others did, is not recorded."
    )


def _lack(untold: tuple[int, ...]) -> str:
    if untold:
        return f"whether {ranks_words(untold)} {'has' if len(untold) == 1 else 'have'} entered is not known"
    return "not all members of the group are known"


def _explanation(operation: Operation, group: str, untold: tuple[int, ...]) -> str:
    inside = [rank for rank in operation.members if rank not in untold]
    if untold:
        why = (
            f"The ring of {ranks_words(untold)} is full: it has room for {config.GROUPS_MAX} groups, "
            f"{config.PEERS_MAX} peers and {config.THREADS_MAX} threads, and what came after those is not in it."
        )
    else:
        why = (
            f"Of {group} {operation.unnamed} of its {operation.size} members are not known: their list found no room "
            "in the rings of these ranks, or could not be read."
        )
    return f"{why} Inside {'is' if len(inside) == 1 else 'are'} {ranks_words(inside)}."


RULE = Rule(cause=CAUSE, advice=ADVICE, recognise=recognise)
