"""Ranks of which no file tells, or one that is older than those of others: unknown, and never absent.

All whose files are here have come. Whether the others did cannot be told, and where nothing hangs that a record ends
early is a fact for the reader.
"""

from ncclwatch.contract.model.verdict import Cause, Certainty, Culprit, Evidence, Severity
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation, Told
from ncclwatch_server.judge.rules.frames.hosts_in_files import last_words
from ncclwatch_server.judge.telling.evidence import block_evidence
from ncclwatch_server.judge.telling.words import group_words, operation_words, waiting_words
from ncclwatch_server.judge.theory.case import Case, explained
from ncclwatch_server.judge.theory.moments import AT_WORK_S, completed_by_all, lasted, may_go_on
from ncclwatch_server.judge.theory.roots import Place
from ncclwatch_server.judge.theory.waits.rank_standing import Block, group_of
from ncclwatch_server.judge.theory.waits.wait_graph import victims_of


def without_file(case: Case) -> tuple[Told, ...]:
    """Judge operations to which all have come whose files are here, and that are not over."""
    if not case.has_files:
        return ()
    blocks = [block for rank in case.unexplained for block in case.graph.blocks[rank] if _unknown(case, block)]
    if not blocks:
        return ()
    first = max(blocks, key=lambda each: (each.wait.age_s, len(each.operation.members), -each.operation.seq))
    blocks = [block for block in blocks if block.operation == first.operation]
    ranks = _unknown(case, first)
    long = lasted(case.views, blocks)
    if long.too_short:
        return ()
    lost = tuple(rank for rank in ranks if rank not in case.views)
    who = ranks_words(lost or ranks)
    why = f"no file of {who} from this hang is here" if lost else _why_unknown(case, ranks)
    dead = ": a rank that died or was killed writes none" if lost else ""
    what = operation_words(case.views, first)
    victims = tuple(sorted({*victims_of(case.graph, ranks), *(block.rank for block in blocks)} - set(ranks)))
    open_end = long.known and may_go_on(case.found)
    return (
        Told(
            said=Explanation(
                cause=Cause.UNDETERMINED,
                severity=Severity.WARNING if open_end else Severity.CRITICAL,
                summary=f"{waiting_words(case, blocks)}; {why}.",
                explanation=(
                    f"Whether {who} came to {what} is unknown, since {why}{dead}. Either it never came, or all are "
                    "inside and the transfer does not end."
                    + (" No wait had lasted to its timeout, so the job may have gone on." if open_end else "")
                ),
                advice=(
                    f"Find the log or the file of {who} and give it to analyze too. If it ended early, fix what ended "
                    "it; if it is as far as the others, look at the network between the hosts."
                ),
                culprits=tuple(Culprit(rank=rank, doing=f"unknown: {why}") for rank in lost or ranks),
                victims=victims,
                one_of=True,
                evidence=tuple(block_evidence(block) for block in blocks[:16]),
            ),
            certainty=Certainty.LATE if open_end else Certainty.STALLED,
            place=Place(group=first.operation.group, seq=first.operation.seq, op=first.wait.op.value),
            onset_s=long.seconds,
            explained=explained(case, victims),
        ),
    )


def _unknown(case: Case, block: Block) -> tuple[int, ...]:
    """Return the members of an operation nobody can tell of, where all others have come."""
    operation = block.operation
    if case.views[block.rank].file is None or case.graph.absent[operation] or operation.unnamed:
        return ()
    ranks = {*case.graph.unseen[operation], *case.graph.untold[operation]} - case.told
    # One that waits elsewhere is on the way, unless that was told at an earlier moment.
    return tuple(sorted(rank for rank in ranks if rank not in case.graph.blocks or _is_older(case, rank)))


def _is_older(case: Case, rank: int) -> bool:
    file = case.views[rank].file
    return file is not None and file.older


def _why_unknown(case: Case, ranks: tuple[int, ...]) -> str:
    who = ranks_words(ranks)
    if any(_is_older(case, rank) and case.views[rank].history for rank in ranks):
        return f"the files of {who} are older than those of the others"
    return f"the buffers of {who} have lost what they did in that group"


def records_that_end(case: Case) -> tuple[Told, ...]:
    """Tell of ranks whose record lacks collectives that others completed, where no rank waits for another."""
    if case.blocked or not case.has_files:
        return ()
    through = completed_by_all(case.views)
    behind: dict[str, list[int]] = {}
    for rank, view in case.views.items():
        for group in view.groups:
            if view.file is not None and group.enqueued < through.get(group.name, 0) and not _is_fresh(case, rank):
                behind.setdefault(group.name, []).append(rank)
    if not behind:
        return ()
    name, ranks = max(behind.items(), key=lambda each: (_size(case, each), -len(each[1]), each[0]))
    frontiers = (group_of(case.views[rank], name) for rank in ranks)
    ends = min(frontier.enqueued for frontier in frontiers if frontier is not None)
    who, called = ranks_words(ranks), group_words(case.views, name)
    return (
        Told(
            said=Explanation(
                cause=Cause.UNDETERMINED,
                severity=Severity.INFO,
                summary=(
                    f"the record of {who} ends at #{ends} of {called}, while others completed up to #{through[name]}; "
                    "no rank waits for another in these files."
                ),
                explanation=(
                    f"They could not complete these without {who}. So its file is older than theirs, or its recorder "
                    "stopped there."
                ),
                advice=f"If the job hung afterwards, take dumps of all ranks anew, {who} first.",
                culprits=tuple(Culprit(rank=rank, doing=_last(case, rank)) for rank in ranks),
                victims=(),
                evidence=tuple(Evidence(source="ring", rank=rank, fact=_last(case, rank)) for rank in ranks[:16]),
            ),
            certainty=Certainty.LATE,
            place=Place(group=name, seq=ends + 1),
        ),
    )


def _last(case: Case, rank: int) -> str:
    return f"last recorded {last_words(case.views[rank])}"


def _size(case: Case, found: tuple[str, list[int]]) -> int:
    group = group_of(case.views[found[1][0]], found[0])
    return len(group.ranks) if group is not None else 0


def _is_fresh(case: Case, rank: int) -> bool:
    """Say whether a rank was at work when its file was written: then a little behind is what all ranks are."""
    view = case.views[rank]
    return view.file is not None and view.file.timed and bool(view.history) and view.history[-1].age_s < AT_WORK_S
