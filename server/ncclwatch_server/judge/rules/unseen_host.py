"""Ranks that have not come, and whose host nobody saw: a file tells what they recorded, and no more.

Those that others wait for in one operation are one root; each independent root is told.
"""

from collections.abc import Callable, Iterable, Sequence

from ncclwatch.contract.model.rank import RankView
from ncclwatch.contract.model.verdict import Cause, Certainty, Culprit, Evidence, Severity
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation, Told
from ncclwatch_server.judge.rules import ADVICE
from ncclwatch_server.judge.rules.frames.hosts_in_files import Whereabouts, last_words, whereabouts
from ncclwatch_server.judge.telling.evidence import block_evidence
from ncclwatch_server.judge.telling.words import at, operation_words, waiting_words
from ncclwatch_server.judge.theory.case import Case, explained, main_thread
from ncclwatch_server.judge.theory.majority import majority
from ncclwatch_server.judge.theory.moments import WAITING_S_MIN, Lasted, lasted, may_go_on, perhaps_older
from ncclwatch_server.judge.theory.roots import Place
from ncclwatch_server.judge.theory.waits.rank_standing import Block, Operation, Standing, find_issued, group_of
from ncclwatch_server.judge.theory.waits.settled import is_settled
from ncclwatch_server.judge.theory.waits.wait_graph import victims_of

NAMED_MAX = 8  # ranks of which the evidence is told


def unseen_hosts(case: Case) -> tuple[Told, ...]:
    """Judge ranks that keep others waiting, are in no operation themselves, and of whose host a file tells nothing."""
    if not case.has_files:
        return ()
    waits = _waits(case)
    doubtful = perhaps_older(case.views)
    verdicts = _roots(case, waits, lambda rank: _is_free(case, rank) and rank not in doubtful)
    # Whose file may be older than the others' is a root only if nobody else explains all that wait for it.
    seen = {culprit.rank for verdict in verdicts for culprit in verdict.said.culprits}
    explained_by_others = case.explained.union(victims_of(case.graph, seen)) if seen else case.explained
    left = {
        operation: [block for block in blocks if block.rank not in explained_by_others]
        for operation, blocks in waits.items()
    }
    verdicts += _roots(case, left, lambda rank: _is_free(case, rank) and rank in doubtful)
    return tuple(verdicts)


def _roots(case: Case, waits: dict[Operation, list[Block]], may_be: Callable[[int], bool]) -> list[Told]:
    """Return the verdicts on ranks that may be roots and are waited for, those of one operation together."""
    needed = {
        operation: frozenset(rank for rank in case.graph.absent[operation] if may_be(rank))
        for operation, blocks in waits.items()
        if blocks
    }
    verdicts = []
    for ranks in _clusters(needed.values()):
        blocks = [block for operation, free in needed.items() if free & ranks for block in waits[operation]]
        verdicts += _judge(case, tuple(sorted(ranks)), blocks)
    return verdicts


def _waits(case: Case) -> dict[Operation, list[Block]]:
    """Return who is in which unfinished operation, those left out whose file is older than that of others."""
    found: dict[Operation, list[Block]] = {}
    for each in case.found.values():
        for block in (*each.blocks, *each.queued) if each.view.file is not None else ():
            group = group_of(each.view, block.operation.group)
            if not (group is not None and group.untold):
                found.setdefault(block.operation, []).append(block)
    return found


def _is_free(case: Case, rank: int) -> bool:
    each = case.found[rank]
    if each.view.file is None or rank in case.told:
        return False
    return each.standing is Standing.OUTSIDE or _was_cut_short(case, rank)


def _was_cut_short(case: Case, rank: int) -> bool:
    """Say whether a rank's pulse stopped before others', in a call that others have completed, as all had come to it.

    Nobody holds it up there: it ended, or was stopped, before it could note that it was through.
    """
    each = case.found[rank]
    if each.standing is not Standing.BLOCKED or not each.view.pulse_age_s:
        return False
    return all(not block.on_device and is_settled(case.found, block) for block in each.blocks)


def _clusters(needed: Iterable[frozenset[int]]) -> list[frozenset[int]]:
    """Put ranks that are needed by one operation together, the larger sets first."""
    clusters: list[frozenset[int]] = []
    for ranks in filter(None, needed):
        touched = [cluster for cluster in clusters if cluster & ranks]
        clusters = [cluster for cluster in clusters if cluster not in touched]
        clusters.append(ranks.union(*touched))
    return sorted(clusters, key=lambda each: (-len(each), sorted(each)))


def _judge(case: Case, ranks: tuple[int, ...], blocks: list[Block]) -> list[Told]:
    long = lasted(case.views, blocks, ranks)
    if long.known and long.seconds < WAITING_S_MIN:
        return []
    open_end = long.known and may_go_on(case.found)
    alone = _made_alone(case, blocks) if not open_end else None
    if alone is not None:
        return [] if long.too_short or alone[0].rank in case.told else [_extra(case, ranks, alone, long)]
    return [_absent(case, ranks, blocks, long, open_end)]


def _absent(case: Case, ranks: tuple[int, ...], blocks: list[Block], long: Lasted, open_end: bool) -> Told:
    """Return the verdict on ranks that have not come; `open_end`: they may have come later."""
    first = _longest(blocks)
    direct = [block for block in blocks if block.operation == first.operation]
    late = tuple(rank for rank in ranks if rank in case.graph.absent[first.operation]) or ranks
    places = {rank: whereabouts(case.views[rank]) for rank in ranks}
    telling = next((rank for rank in ranks if places[rank].cause is not None), late[0])
    doing = f"rank {telling}: {places[telling].doing}" if len(late) > 1 else places[telling].doing
    # That one of them stood still says nothing of the others: a cause is told if it is that of all.
    alike = len({place.cause for place in places.values()}) == 1
    stalled = places[telling].cause if alike and not open_end else None
    cause = Cause.STRAGGLER if long.too_short else stalled or Cause.UNDETERMINED
    severity = Severity.WARNING if open_end else Severity.CRITICAL
    victims = tuple(sorted({*victims_of(case.graph, ranks), *(block.rank for block in blocks)} - set(ranks)))
    waiters = tuple(sorted({block.rank for block in direct}))
    # A stop is far more common than a call too many, but nothing tells them apart.
    is_open = cause is Cause.UNDETERMINED and not open_end and not first.wait.op.is_p2p
    doubt = is_open and majority((late, waiters)) is not waiters
    rest = sorted(set(victims) - {block.rank for block in direct})
    has = "have" if len(late) > 1 else "has"
    behind = f"; {ranks_words(rest)} {'wait' if len(rest) > 1 else 'waits'} behind them" if rest else ""
    return Told(
        said=Explanation(
            cause=cause,
            severity=Severity.INFO if long.too_short else severity,
            summary=(
                f"{ranks_words(late)} {has} not entered {operation_words(case.views, first)} ({doing}); "
                f"{waiting_words(case, direct, late)}{behind}."
            ),
            explanation=_explanation(case, late, victims, stalled, open_end)
            + (f" Or {ranks_words(waiters)} made that call once too often." if doubt else ""),
            advice=ADVICE[cause] if cause is not Cause.UNDETERMINED else _advice(late),
            culprits=tuple(
                Culprit(rank=r, host=case.views[r].host, call_site=places[r].site, doing=places[r].doing) for r in ranks
            ),
            victims=victims,
            evidence=_evidence(case, ranks, places, [*direct, *(block for block in blocks if block not in direct)]),
        ),
        certainty=Certainty.LATE if long.too_short or open_end else Certainty.STALLED,
        place=Place(group=first.operation.group, seq=first.operation.seq, op=first.wait.op.value),
        onset_s=long.seconds,
        explained=explained(case, victims),
    )


def _longest(blocks: list[Block]) -> Block:
    """Return a wait in the operation that was waited in longest, and of those in the one with most ranks."""
    inside: dict[Operation, int] = {}
    for block in blocks:
        inside[block.operation] = inside.get(block.operation, 0) + 1
    return max(blocks, key=lambda each: (each.wait.age_s, inside[each.operation], -each.operation.seq))


def _explanation(
    case: Case, late: tuple[int, ...], victims: tuple[int, ...], stalled: Cause | None, open_end: bool
) -> str:
    who, many = ranks_words(late).capitalize(), len(late) > 1
    said = [
        f"{who} {'are' if many else 'is'} {_where_words(case, late)}, so nobody holds {'them' if many else 'it'} up.",
        f"{ranks_words(victims).capitalize()} cannot go on before.",
    ]
    if open_end:
        who = "they worked or stood" if len(late) > 1 else "it worked or stood"
        said.append(f"Whether {who} still at that moment, no file tells, and no wait had lasted to its timeout.")
    elif stalled is None:
        said.append(_why_words(case, late))
    cut = [rank for rank in late if (file := case.views[rank].file) is not None and not file.whole]
    if cut:
        said.append(f"The buffer of {ranks_words(cut)} has lost its older entries, or leaves out what is through.")
    return " ".join(said)


def _was_seen(view: RankView) -> bool:
    """Say whether a file tells where the main thread of a rank stood, apart from operations."""
    thread = main_thread(view)
    return (view.file is not None and view.file.saw_host) or (thread is not None and bool(thread.leaf))


def _why_words(case: Case, late: tuple[int, ...]) -> str:
    """Return why no cause is known."""
    why = "Why they do" if len(late) > 1 else "Why it does"
    views = [case.views[rank] for rank in late]
    if not any(_was_seen(view) for view in views):
        return f"{why} not come, a dump cannot tell: it holds operations, not stacks."
    shown = "that all of them stood still in one thing" if len(late) > 1 else "that it stood still"
    return f"{why} not come, no file tells: none shows {shown}."


def _advice(late: tuple[int, ...]) -> str:
    return (
        f"Look at what {ranks_words(late)} did after that last operation: its log, or its stack from `py-spy dump "
        "--json --pid PID` while the job still hangs. Give either to `ncclwatch analyze` together with these files."
    )


def _where_words(case: Case, ranks: Sequence[int]) -> str:
    """Return why nobody holds these up: nobody completes an operation before all of its members have come to it."""
    if all(case.found[rank].standing is Standing.OUTSIDE for rank in ranks):
        return "in no operation"
    none = any(case.found[rank].standing is Standing.OUTSIDE for rank in ranks)
    return f"in {'no operation, or in ' if none else ''}an operation that another member has completed"


def _evidence(
    case: Case, ranks: tuple[int, ...], places: dict[int, Whereabouts], blocks: list[Block]
) -> tuple[Evidence, ...]:
    facts = []
    for rank in ranks[:NAMED_MAX]:
        last = last_words(case.views[rank])
        fact = f"{_where_words(case, (rank,))}; the last one was {last}" if last else places[rank].doing
        facts.append(Evidence(source="ring", rank=rank, fact=fact))
        facts += places[rank].evidence
    return (*facts, *(block_evidence(block) for block in blocks[:16]))


def _made_alone(case: Case, blocks: list[Block]) -> list[Block] | None:
    """Return the waits in an operation that few have entered, at a line that none of the others ever used.

    Then those few made a call of their own; ranks that are merely late have been at that line before.
    """
    operation = blocks[0].operation
    absent = case.graph.absent[operation]
    if any(block.operation != operation for block in blocks) or operation.source >= 0 or len(blocks) >= len(absent):
        return None
    frontiers = [group_of(case.views[rank], operation.group) for rank in absent]
    level = all(group is not None and group.completed == operation.seq - 1 for group in frontiers)
    if not level or len(blocks) + len(absent) < operation.size:
        return None
    used = {op.site for rank in absent for op in case.views[rank].history}
    return None if used & {block.wait.site for block in blocks} or not used else blocks


def _extra(case: Case, others: tuple[int, ...], blocks: list[Block], long: Lasted) -> Told:
    """Return the verdict on a call that only few members of a group make."""
    first = blocks[0]
    few = tuple(sorted(block.rank for block in blocks))
    known = first.wait.site is not None
    what = operation_words(case.views, first)
    own = {r: find_issued(case.views[r], first.operation.group, first.operation.seq) for r in few}
    return Told(
        said=Explanation(
            cause=Cause.RANK_CONDITIONAL_COLLECTIVE,
            summary=(
                f"only {ranks_words(few)} entered {what}{at(first.wait.site)}; {ranks_words(others)} completed "
                "everything before it and wait in nothing."
            ),
            explanation=(
                f"A collective completes only when all {first.operation.size} members make the call. The others "
                + ("were never at that line." if known else "never came to it; the dumps hold no call sites.")
            ),
            advice=ADVICE[Cause.RANK_CONDITIONAL_COLLECTIVE],
            culprits=tuple(
                Culprit(rank=r, call_site=op.site if op is not None else None, doing=f"in {what}, alone")
                for r, op in own.items()
            ),
            victims=victims_of(case.graph, few),
            one_of=not known,
            evidence=tuple(block_evidence(block) for block in blocks[:16]),
        ),
        certainty=Certainty.STALLED,
        place=Place(group=first.operation.group, seq=first.operation.seq, op=first.wait.op.value),
        onset_s=long.seconds,
        explained=explained(case, few),
    )
