"""Ranks that wait in a group of which not all members are known, or not all can be told to be outside.

All that are known have entered, and the others may have, or not: for whom they wait, nobody can say. That is worth a
line, and no accusation.
"""

from ncclwatch.contract import config
from ncclwatch.contract.model.verdict import Cause, Certainty, Severity, Verdict
from ncclwatch.contract.words.text import ADVICE, ranks_words, seconds_words
from ncclwatch_server.judge.theory.case import Case, block_evidence, explained, group_words, onset_s, waiting_words
from ncclwatch_server.judge.theory.moments import has_lasted
from ncclwatch_server.judge.theory.waits.rank_standing import Block, Operation, timeout_of
from ncclwatch_server.judge.theory.waits.wait_graph import victims_of

PATIENCE_S = 30.0  # of an unknown rank nobody can say whether it works
WARNING_S = 300.0  # of such a wait, or
WARNING_OF_TIMEOUT = 0.5  # this share of the group's timeout
ADVICE_FILES = (
    "Give the logs or the Flight Recorder dumps of all ranks to analyze. NCCL writes dumps at a timeout with "
    "TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1, to TORCH_FR_DUMP_TEMP_FILE."
)


def unnamed(case: Case) -> tuple[Verdict, ...]:
    """Tell of operations that all known members have entered, where others belong to the group."""
    blocks = [
        block for rank in case.unexplained for block in case.graph.blocks[rank] if _waits_for_unnamed(case, block)
    ]
    if not blocks or not has_lasted(case.views, blocks, PATIENCE_S):
        return ()
    first = blocks[0]
    ranks = tuple(sorted({block.rank for block in blocks}))
    operation = first.operation
    group = group_words(case.views, operation.group)
    untold = case.graph.untold[operation]
    over = all(case.views[rank].file is not None for rank in ranks)  # nothing more will come of it
    return (
        Verdict(
            cause=Cause.UNDETERMINED,
            certainty=Certainty.STALLED if over else Certainty.LATE,
            severity=Severity.CRITICAL if over else _severity(case, blocks),
            summary=(
                f"{waiting_words(case.views, blocks)} for {seconds_words(onset_s(blocks))}; for whom, nobody can say: "
                f"{_lack(untold)}."
            ),
            explanation=_words_of_files(ranks) if over else _explanation(operation, group, untold),
            advice=ADVICE_FILES if over else ADVICE[Cause.UNDETERMINED],
            culprits=(),
            victims=tuple(sorted({*ranks, *victims_of(case.graph, ranks)})),
            one_of=True,
            group=operation.group,
            seq=operation.seq,
            op=first.wait.op.value,
            onset_s=onset_s(blocks),
            explained=explained(case, ranks),
            evidence=tuple(block_evidence(block) for block in blocks[:16]),
        ),
    )


def _severity(case: Case, blocks: list[Block]) -> Severity:
    return Severity.WARNING if any(_is_long(case, block) for block in blocks) else Severity.INFO


def _words_of_files(ranks: tuple[int, ...]) -> str:
    return (
        f"That {ranks_words(ranks)} report it says only that they waited. Who else belongs to that group, or what the "
        "others did, is not recorded."
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


def _waits_for_unnamed(case: Case, block: Block) -> bool:
    operation = block.operation
    not_known = operation.unnamed or case.graph.untold[operation]
    return bool(not_known) and not case.graph.absent[operation] and not case.graph.unseen[operation]


def _is_long(case: Case, block: Block) -> bool:
    timeout_s = timeout_of(case.views[block.rank], block.operation.group)
    return block.wait.age_s >= min(WARNING_S, timeout_s * WARNING_OF_TIMEOUT or WARNING_S)
