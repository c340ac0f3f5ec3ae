"""Finds ranks whose devices keep the job from going on: a library refused them, or they have stopped inside a call."""

from collections.abc import Iterable

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.model.verdict import Certainty
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.moments import is_outdated, is_timed, lasted, may_go_on, perhaps_older
from ncclwatch_server.judge.theory.roots import Found, RefusedRoot, StoppedRoot, place_of
from ncclwatch_server.judge.theory.waits.rank_standing import Block, Operation, find_issued, group_of, timeout_of
from ncclwatch_server.judge.theory.waits.settled import is_alone
from ncclwatch_server.judge.theory.waits.wait_graph import victims_of

LONG_S = 300.0  # as for a transfer that does not end: a device that computes before it communicates looks alike
LONG_OF_TIMEOUT = 0.5  # share of the group's timeout, where that is known
STILL_S = 15.0  # without a change of the host's stack


def find_refused(case: Case) -> RefusedRoot | None:
    """Return the ranks that a library has refused, as it said: nothing comes after that."""
    said = case.snapshot.shared_devices
    if not said or case.told:
        return None
    ranks = tuple(sorted({rank for each in said for rank in each.ranks}))
    return RefusedRoot(
        hangs=Certainty.PROVEN,
        ranks=ranks,
        victims=tuple(rank for rank in range(case.snapshot.world_size) if rank not in ranks),
        devices=said,
    )


def find_stopped(case: Case) -> Found:
    """Return the ranks that are still in what others have completed, those of one operation together."""
    if not case.graph.stopped:
        return ()
    doubtful = _doubtful(case)
    return _stopped_in(case, [block for rank, block in case.graph.stopped.items() if rank not in doubtful])


def find_perhaps_stopped(case: Case) -> Found:
    """Return those whose records tell less, where no other root explains who waits for them."""
    if not case.graph.stopped:
        return ()
    doubtful = _doubtful(case) - case.explained
    return _stopped_in(case, [block for rank, block in case.graph.stopped.items() if rank in doubtful])


def _doubtful(case: Case) -> frozenset[int]:
    """Return ranks whose files may be older than the others', and those that are alone in what they are still in."""
    alone = (rank for rank, block in case.graph.stopped.items() if is_alone(block))
    return perhaps_older(case.views).union(alone)


def _stopped_in(case: Case, stopped: Iterable[Block]) -> Found:
    together: dict[tuple[str, int], list[Block]] = {}
    for block in stopped:
        if block.rank not in case.told:
            together.setdefault((block.operation.group, block.operation.seq), []).append(block)
    return [(root,) for each in together.values() if (root := _root_of(case, each)) is not None]


def _root_of(case: Case, stopped: list[Block]) -> StoppedRoot | None:
    """Return the root in those of some ranks, still in one operation, for which others wait."""
    held_up = {block.rank: _held_up(case, block) for block in stopped}
    stopped = [block for block in stopped if held_up[block.rank]]
    waits = tuple(wait for block in stopped for wait in held_up[block.rank])
    long = lasted(case.views, (*stopped, *waits), [block.rank for block in stopped])
    if not stopped or long.too_short or not all(_stands(case, block) for block in stopped):
        return None
    ranks = tuple(block.rank for block in stopped)
    return StoppedRoot(
        hangs=Certainty.STALLED,
        ranks=ranks,
        victims=tuple(sorted({*victims_of(case.graph, ranks), *(wait.rank for wait in waits)} - set(ranks))),
        blocks=waits,
        place=place_of(stopped),
        onset_s=long.seconds,
        still_in=tuple(stopped),
        through=_through(case, stopped[0].operation),
    )


def _stands(case: Case, block: Block) -> bool:
    """Say whether a rank has been there for so long that the others have not completed it just now."""
    view = case.views[block.rank]
    if is_outdated(view, block.wait.age_s):
        return False
    if not is_timed(view) and is_alone(block):  # nobody else tells that it ought to be through
        return False
    if view.file is not None and not (view.file.timed and may_go_on(case.found)):
        return True
    long_s = timeout_of(view, block.operation.group) * LONG_OF_TIMEOUT or LONG_S
    return block.wait.age_s >= long_s and (view.file is not None or block.thread.same_s >= STILL_S)


def _through(case: Case, operation: Operation) -> tuple[int, ...]:
    if operation.kind is WaitKind.SEND:
        return (operation.target,)
    return tuple(
        rank
        for rank in operation.members
        if rank in case.views
        and (group := group_of(case.views[rank], operation.group)) is not None
        and group.completed >= operation.seq
    )


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
    if operation.source >= 0:
        return True
    group = group_of(view, operation.group)
    if group is None or group.completed >= operation.seq:
        return False
    issued = find_issued(view, operation.group, operation.seq) or group.pending
    return issued is not None and issued.age_s <= stopped.wait.age_s
