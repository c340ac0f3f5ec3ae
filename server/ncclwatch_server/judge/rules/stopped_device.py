"""Ranks that are still in a collective which others have completed, while their peers wait for them.

No member is through before all have come, so such a rank waits for nobody: its device has stopped, a transfer to it
alone has, or what tells of its end. Nothing that is recorded tells these apart, so the cause stays open.
"""

from collections.abc import Iterable

from ncclwatch.contract.model.verdict import Cause, Certainty, Culprit
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation, Told
from ncclwatch_server.judge.telling.evidence import block_evidence
from ncclwatch_server.judge.telling.words import at, operation_words, waiting_words
from ncclwatch_server.judge.theory.case import Case, explained
from ncclwatch_server.judge.theory.moments import lasted, perhaps_older
from ncclwatch_server.judge.theory.roots import Place
from ncclwatch_server.judge.theory.waits.rank_standing import Block, find_issued, group_of, timeout_of
from ncclwatch_server.judge.theory.waits.wait_graph import victims_of

ADVICE = (
    "Look at the GPU and the kernel log of that node first (nvidia-smi, dmesg: Xid), then at the links to it. If the "
    "device is well, its watchdog thread is what hangs: take a native stack of the process (py-spy dump --native)."
)
LONG_S = 300.0  # as for a transfer that does not end: a device that computes before it communicates looks alike
LONG_OF_TIMEOUT = 0.5  # share of the group's timeout, where that is known
STILL_S = 15.0  # without a change of the host's stack


def stopped_devices(case: Case) -> tuple[Told, ...]:
    """Judge ranks that are still in what others have completed, those of one operation together."""
    doubtful = _doubtful(case)
    return _of(case, [block for rank, block in case.graph.stopped.items() if rank not in doubtful])


def perhaps_stopped(case: Case) -> tuple[Told, ...]:
    """Judge those whose records tell less, where no other root explains who waits for them."""
    doubtful = _doubtful(case) - case.explained
    return _of(case, [block for rank, block in case.graph.stopped.items() if rank in doubtful])


def _doubtful(case: Case) -> frozenset[int]:
    """Return ranks whose files may be older than the others', and those that are alone in what they are still in."""
    alone = (rank for rank, block in case.graph.stopped.items() if len(block.operation.members) == 1)
    return perhaps_older(case.views).union(alone)


def _of(case: Case, stopped: list[Block]) -> tuple[Told, ...]:
    together: dict[tuple[str, int], list[Block]] = {}
    for block in stopped:
        if block.rank not in case.told:
            together.setdefault((block.operation.group, block.operation.seq), []).append(block)
    return tuple(verdict for each in together.values() for verdict in _judge(case, each))


def _judge(case: Case, stopped: list[Block]) -> tuple[Told, ...]:
    held_up = {block.rank: _held_up(case, block) for block in stopped}
    stopped = [block for block in stopped if held_up[block.rank]]
    waits = [wait for block in stopped for wait in held_up[block.rank]]
    long = lasted(case.views, (*stopped, *waits))
    if not stopped or long.too_short or not all(_stands(case, block) for block in stopped):
        return ()
    ranks = tuple(block.rank for block in stopped)
    first, many = stopped[0], len(stopped) > 1
    victims = tuple(sorted({*victims_of(case.graph, ranks), *(wait.rank for wait in waits)} - set(ranks)))
    what = operation_words(case.views, first)
    return (
        Told(
            said=Explanation(
                cause=Cause.UNDETERMINED,
                summary=(
                    f"{ranks_words(ranks)} {'are' if many else 'is'} still in {what}{at(first.wait.site)}, "
                    f"{_through_words(case, first)}; {waiting_words(case.views, waits)}."
                ),
                explanation=(
                    f"Nobody completes it before all members have come, so {ranks_words(ranks)} "
                    f"{'wait' if many else 'waits'} for no rank there: the device has stopped, the transfer to it has, "
                    "or what tells of its end. Which of these, the records do not tell."
                ),
                advice=ADVICE,
                culprits=tuple(
                    Culprit(
                        rank=block.rank,
                        host=case.views[block.rank].host,
                        call_site=block.wait.site,
                        doing=f"still in {what}, {_through_words(case, first)}",
                    )
                    for block in stopped
                ),
                victims=victims,
                evidence=tuple(block_evidence(block) for block in (*stopped, *waits)[:24]),
            ),
            certainty=Certainty.STALLED,
            place=Place(group=first.operation.group, seq=first.operation.seq, op=first.wait.op.value),
            onset_s=long.seconds,
            explained=explained(case, {*ranks, *victims}),
        ),
    )


def _stands(case: Case, block: Block) -> bool:
    """Say whether a rank has been there for so long that the others have not completed it just now."""
    view = case.views[block.rank]
    if view.file is not None:
        return True
    long_s = timeout_of(view, block.operation.group) * LONG_OF_TIMEOUT or LONG_S
    return block.wait.age_s >= long_s and block.thread.same_s >= STILL_S


def _through_words(case: Case, block: Block) -> str:
    through = _through(case, block)
    others = [rank for rank in block.operation.members if rank != block.rank]
    if not others:
        return "of which it is the only member"
    return f"which {'all others' if len(through) == len(others) else ranks_words(through)} have completed"


def _through(case: Case, block: Block) -> list[int]:
    operation = block.operation
    return [
        rank
        for rank in operation.members
        if rank in case.views
        and (group := group_of(case.views[rank], operation.group)) is not None
        and group.completed >= operation.seq
    ]


def _held_up(case: Case, stopped: Block) -> list[Block]:
    """Return the waits of others that need a stopped rank: it has not issued its part, or issued it after the stop."""
    rank = stopped.rank
    return [
        block
        for block in _waits(case)
        if block.rank != rank
        and rank in block.operation.members
        and block.operation != stopped.operation
        and block.rank not in case.explained
        and case.graph.stopped.get(block.rank, stopped).operation != block.operation
        and (rank in case.graph.absent[block.operation] or _comes_later(case, stopped, block))
    ]


def _waits(case: Case) -> Iterable[Block]:
    return (block for each in case.found.values() for block in (*each.blocks, *each.queued))


def _comes_later(case: Case, stopped: Block, block: Block) -> bool:
    """Say whether a stopped rank has issued its part of an operation after what it is still in."""
    operation, view = block.operation, case.views[stopped.rank]
    group = group_of(view, operation.group)
    if group is None or operation.source >= 0:
        return operation.source >= 0
    if group.completed >= operation.seq:
        return False
    issued = find_issued(view, operation.group, operation.seq) or group.pending
    return issued is not None and issued.age_s <= stopped.wait.age_s
