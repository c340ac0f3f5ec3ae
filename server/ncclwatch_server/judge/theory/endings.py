"""Finds ranks that are gone: which of them ended by itself, and which only lost a peer or was told to stop.

A launcher ends all ranks within seconds of the first failure, and every neighbour of a lost rank
raises an error of its own. Those are victims, whatever torchrun calls the root cause.
"""

import re
import signal
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from ncclwatch.contract.model.rank import CallSite, Ending, GroupView, OpView, ProcessState, RankView, WaitKind
from ncclwatch_server.judge.theory.case import Case, device_patience_s
from ncclwatch_server.judge.theory.histories.own_calls import unfinished
from ncclwatch_server.judge.theory.waits.mismatches import Mismatch
from ncclwatch_server.judge.theory.waits.proof import seen_after_s
from ncclwatch_server.judge.theory.waits.rank_standing import (
    GONE_STATES,
    Operation,
    find_issued,
    group_of,
    op_key,
    sides_of,
)
from ncclwatch_server.judge.theory.waits.wait_graph import able_to_come, victims_of

# What a rank says when a peer is gone. The words of one cause vary with timing and transport.
_LOST_PEER = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection was likely closed",
    "connection refused",
    "socket closed",
    "remote process exited",
    "timed out waiting",
    "timeout waiting",
    "nccl communicator was aborted",
    "failed to recv, got 0 bytes",
    "application timeout caused pair closure",
)
_STORE_ERROR = re.compile(r"^(DistNetworkError|DistStoreError)|TCPStore")
# What Python raises for the program's own pipes and sockets. No backend of collectives raises these.
_PIPE_ERROR = re.compile(r"^(ConnectionResetError|ConnectionRefusedError|ConnectionAbortedError|BrokenPipeError)")
_BACKEND_ERROR = re.compile(r"^(RuntimeError|Dist\w*Error|AcceleratorError)")
_OF_A_CHECKPOINT = re.compile(r"\bCheckpointException ranks:dict_keys\(\[([\d, ]+)\]\)")
_TIMED_OUT = re.compile(r"time[d ]*out", re.IGNORECASE)
NEWS_OF_AN_END_S = 5.0  # a rank seen alive so long after another's end had not ended before it
SAME_TIME_S = 1.0  # what clocks of two nodes may differ by
LAST_WORD_S = 6.0  # in which a process that has left its program ends, and the kernel tells the code
_LEFT_AGAIN = (WaitKind.INIT, WaitKind.NEW_GROUP, WaitKind.STORE)
KILL_AFTER_S = 2.0  # launchers leave at least this between SIGTERM and SIGKILL
_TOLD_TO_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Went(Enum):
    """How ranks that are gone went."""

    FAILED = "failed"  # with an error of their own, or by a signal that nobody sent to all
    LEFT = "left"  # with exit code 0, while others needed them
    LOST = "lost"  # as if they had lost a rank, though none was gone before: it was the store, or a pipe of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Ranks whose end is not the consequence of another one's."""

    went: Went
    ranks: tuple[int, ...]  # those that ended in the same way, the first among them
    first: int = -1  # who ended first
    failed: tuple[int, ...] = ()  # all that ended with an error of their own


def find_ends(case: Case) -> Ends | Mismatch | None:
    """Return which ranks are gone by themselves, or the mismatch that a backend ended them for; None if none is."""
    gone = {rank: view.ending for rank, view in case.views.items() if view.ending is not None}
    if not gone:  # nearly always
        return None
    if case.told:
        gone = _before_what_was_told(case, gone)
    suspects = _told_or_missed(case, gone, _own_endings(gone))
    if not suspects:
        return None if case.told else _lost_no_rank(case, gone)
    failed = tuple(rank for rank in suspects if not is_clean(gone[rank]))
    if failed:
        mismatch = _mismatch_at_the_end(case) if not case.told else None
        if mismatch is not None:
            return mismatch
        first = _first(case, failed)
        left = _left_before(case, first, suspects) or _missed_before(case, first, suspects)
        if left:
            return Ends(went=Went.LEFT, ranks=left)
        alike = tuple(r for r in failed if _same_end(gone[r], gone[first]) or r == first)
        return Ends(went=Went.FAILED, ranks=alike, first=first, failed=failed)
    if any(_is_still_ending(case.views[rank]) for rank in suspects):
        return None
    # Where a backend raises at the loss of a peer, nobody waits any more, but somebody has lost one.
    lost, waited_for = any(lost_peer(ending) for ending in gone.values()), _waited_for(case, suspects)
    left = tuple(suspects) if lost else tuple(rank for rank in suspects if rank in waited_for)
    return Ends(went=Went.LEFT, ranks=left) if left else None


def _is_still_ending(view: RankView) -> bool:
    """Say whether a rank is about to end, and nobody knows yet with which code: its process is there still."""
    ending, state = view.ending, view.process.state
    if ending is None or ending.kind != "exited" or ending.exit_code is not None or state in GONE_STATES:
        return False
    return state is not ProcessState.UNKNOWN and ended_s_ago(view) < LAST_WORD_S


def _left_before(case: Case, first: int, suspects: Iterable[int]) -> tuple[int, ...]:
    """Return the ranks that had ended well when the first one failed, if that one needed them in a collective.

    Whoever catches an exception and exits (torch.multiprocessing.spawn, hydra) leaves an exit code and no exception:
    such a rank may have lost its peer.
    """
    view = case.views[first]
    if view.ending is None or not _says_nothing(view.ending):
        return ()
    since_s = ended_s_ago(view)
    earlier = (
        (rank, since_s if case.views[rank].host == view.host else since_s + SAME_TIME_S)
        for rank in suspects
        if (ending := case.views[rank].ending) is not None and is_clean(ending)
    )
    left = tuple(rank for rank, after_s in earlier if ended_s_ago(case.views[rank]) > after_s)
    return left if left and unfinished(case.views, left, (first,)) else ()


def _missed_before(case: Case, first: int, suspects: Iterable[int]) -> tuple[int, ...]:
    """Return the ranks that had ended well, and were waited for already, long before the first one was killed.

    Somebody kills the ranks of a job that hangs.
    """
    view = case.views[first]
    if view.ending is None or view.ending.signal != signal.SIGKILL:
        return ()
    since_s = ended_s_ago(view) + NEWS_OF_AN_END_S
    waits = ((case.views[rank].news_age_s, block) for rank in case.blocked for block in case.found[rank].blocks)
    missed = {
        rank
        for age_s, block in waits
        if age_s + block.wait.age_s > since_s
        for rank in case.graph.absent[block.operation]
    }
    clean = ((rank, case.views[rank]) for rank in suspects if rank in missed)
    return tuple(r for r, each in clean if each.ending and is_clean(each.ending) and ended_s_ago(each) > since_s)


def _says_nothing(ending: Ending) -> bool:
    """Say whether all that is known of an end is an exit code."""
    return bool(ending.exit_code) and not ending.exception and ending.signal is None


def _is_mute(ending: Ending) -> bool:
    """Say whether nothing is known of an end that tells a failure from a launcher that needs the rank no longer.

    `ray.kill` ends a worker with exit code 1, whatever it was doing, and so does the end of a trainer of Ray.
    """
    return _says_nothing(ending) or ending.kind == "vanished"


def _told_or_missed(case: Case, gone: Mapping[int, Ending], own: list[int]) -> list[int]:
    """Return the ranks whose end says something, or was missed by another rank.

    That one waits for it, or ended after it for the loss of a peer, or had ended well without a call that it made.
    """
    mute = [rank for rank in own if _is_mute(gone[rank])]
    if not mute:
        return own
    missed = set(_waited_for(case, mute))
    lost_s = [ended_s_ago(case.views[rank]) for rank, ending in gone.items() if is_victim(ending)]
    if lost_s:
        since_s = min(lost_s) - SAME_TIME_S
        missed.update(rank for rank in mute if ended_s_ago(case.views[rank]) >= since_s)
    missed.update(unfinished(case.views, [rank for rank, ending in gone.items() if is_clean(ending)], mute))
    return [rank for rank in own if rank in missed or not _is_mute(gone[rank])]


def _before_what_was_told(case: Case, gone: Mapping[int, Ending]) -> dict[int, Ending]:
    """Return the ends that are no consequence of a root that was told.

    They came before anybody waited in it, for a job that hangs is ended in the end, by its backend or by somebody. Or
    others wait for that rank who wait for no root, and its program came to its end, or raised what neither of those
    two raises.
    """
    waits = (block for rank in case.told for block in case.graph.blocks.get(rank, ()))
    since_s = max((case.views[block.rank].news_age_s + block.wait.age_s for block in waits), default=float("inf"))
    awaited = {
        absent
        for rank in case.unexplained
        for block in case.graph.blocks[rank]
        for absent in case.graph.absent[block.operation]
    }
    earlier = {rank for rank in gone if ended_s_ago(case.views[rank]) > since_s + SAME_TIME_S}
    own = {rank for rank in awaited.intersection(gone) if _is_of_the_program(case.views[rank], gone[rank])}
    return {rank: ending for rank, ending in gone.items() if rank in earlier | own and rank not in case.told}


def _is_of_the_program(view: RankView, ending: Ending) -> bool:
    """Say whether a rank ended well, or raised what only its own code raises: no backend, no lost peer, no timeout."""
    if is_clean(ending):
        return not has_given_up(view)
    error = ending.exception
    told = is_victim(ending) or is_timeout(ending) or _is_no_ranks(error)
    return bool(error) and not told and not _BACKEND_ERROR.search(error)


def _lost_no_rank(case: Case, gone: Mapping[int, Ending]) -> Ends | None:
    """Return the ranks that ended as if they had lost a rank, though none was gone before them.

    What they lost was the store, or the other end of a pipe of the program's own: to a loader process, a service.

    That none was gone is known once each rank has ended, or has been seen alive long after the first end. Whoever
    was told to stop may have taken the store along, and a timeout has a reason of its own.
    """
    raised = [rank for rank, ending in gone.items() if ending.exception and lost_peer(ending)]
    if not raised or len(case.views) < case.snapshot.world_size:
        return None
    first = _first(case, raised)
    error = gone[first].exception
    if first != _first(case, gone) or not _is_no_ranks(error) or _TIMED_OUT.search(error):
        return None
    since_s = ended_s_ago(case.views[first]) - NEWS_OF_AN_END_S
    if any(view.news_age_s >= since_s for rank, view in case.views.items() if rank not in gone):
        return None
    alike = tuple(rank for rank in raised if rank == first or _same_end(gone[rank], gone[first]))
    return Ends(went=Went.LOST, ranks=alike, first=first)


def _is_no_ranks(error: str) -> bool:
    return bool(_STORE_ERROR.search(error) or _PIPE_ERROR.search(error))


def _own_endings(gone: Mapping[int, Ending]) -> list[int]:
    """Return the ranks that did not end because of another one."""
    own = [rank for rank, ending in gone.items() if not is_victim(ending)]
    told = [e.age_s for e in gone.values() if e.signal in _TOLD_TO_STOP and not e.exception]
    killed_before_s = max(told, default=0.0) - KILL_AFTER_S
    # SIGKILL long after somebody was told to stop is the launcher's second word, not a failure.
    late = {rank for rank in own if gone[rank].signal == signal.SIGKILL and gone[rank].age_s <= killed_before_s}
    return [rank for rank in own if rank not in late or gone[rank].exception]


def is_victim(ending: Ending) -> bool:
    """Say whether a rank ended because a peer was lost or it was told to stop."""
    return was_told(ending) or lost_peer(ending)


def was_told(ending: Ending) -> bool:
    """Say whether somebody told a rank to stop, other than a launcher that told one that had raised already."""
    if ending.exception:
        return ending.exception.startswith(("KeyboardInterrupt", "SignalException"))
    return ending.signal in _TOLD_TO_STOP


def is_timeout(ending: Ending) -> bool:
    """Say whether a rank raised because something took too long."""
    return bool(_TIMED_OUT.search(ending.exception))


def lost_peer(ending: Ending) -> bool:
    """Say whether a rank ended with what is raised at the loss of a peer."""
    return any(words in ending.exception.lower() for words in _LOST_PEER)


def is_clean(ending: Ending) -> bool:
    """Say whether a rank ended with exit code 0, as far as anybody knows."""
    return ending.kind == "exited" or (ending.kind != "signalled" and ending.exit_code == 0)


def _first(case: Case, ranks: Iterable[int]) -> int:
    """Return the rank that ended first; ages on one node are comparable, across nodes to about a second."""
    return max(ranks, key=lambda rank: (ended_s_ago(case.views[rank]), -rank))


def ended_s_ago(view: RankView) -> float:
    """Return how long ago a rank ended, 0 if it has not."""
    return view.ending.age_s + view.news_age_s if view.ending is not None else 0.0


def _waited_for(case: Case, ranks: Iterable[int]) -> frozenset[int]:
    """Return those of these ranks, which have ended, that blocked ranks wait for, as far as that still holds.

    Who has come to a collective has come for ever, and holds it up if it ended before it was through. Who has come to a
    rendezvous may have left it again before it ended: then only a view that was taken after its end shows that it
    is still missing. Whose key or message others could have given as well is missed only where no other end is.
    """
    seen_s: dict[Operation, float] = {}
    waited_in: set[Operation] = set()  # what devices count may be through, once a member is gone
    for block in (block for rank in case.blocked for block in case.found[rank].blocks):
        if not block.on_device or block.wait.age_s >= device_patience_s(case, block):
            waited_in.add(block.operation)
        ago_s = seen_after_s(case.views[block.rank])
        seen_s[block.operation] = min(seen_s.get(block.operation, ago_s), ago_s)
    missed = _missed(case, ranks, {each: s for each, s in seen_s.items() if not each.from_anyone}, waited_in)
    if missed:
        return missed
    alone = {each: s for each, s in seen_s.items() if each.from_anyone and not able_to_come(case.graph, each)}
    return _missed(case, ranks, alone, waited_in)


def _missed(
    case: Case, ranks: Iterable[int], seen_s: Mapping[Operation, float], waited_in: Collection[Operation]
) -> frozenset[int]:
    """Return those of these ranks that operations lack. `seen_s`: how long ago somebody was seen in each."""
    for_ever: set[int] = set()
    until_s: dict[int, float] = {}  # of those that a rendezvous lacks: how long ago it did so at the latest
    for operation, ago_s in seen_s.items():
        if operation.kind not in _LEFT_AGAIN:
            for_ever.update(case.graph.absent[operation])
            if operation in waited_in:
                for_ever.update(rank for rank in ranks if _ended_inside(case, rank, operation))
            continue
        for rank in case.graph.absent[operation]:
            until_s[rank] = min(until_s.get(rank, ago_s), ago_s)
    never = float("inf")
    return frozenset(r for r in ranks if r in for_ever or until_s.get(r, never) <= ended_s_ago(case.views[r]))


def _ended_inside(case: Case, rank: int, operation: Operation) -> bool:
    """Say whether a rank has come to a collective and ended before its part was through, as with async_op=True."""
    if operation.kind is not WaitKind.COLLECTIVE or rank not in operation.members:
        return False
    group = group_of(case.views[rank], operation.group)
    if group is None or group.blind or group.untold:
        return False
    return group.completed < operation.seq <= group.enqueued


def _mismatch_at_the_end(case: Case) -> Mismatch | None:
    """Return the newest collective if its signatures differ: a backend then aborts a rank, often an innocent one.

    Also the last one that has ended: NCCL fails in the next one of what a mismatch left behind.
    """
    by_name: dict[str, dict[int, GroupView]] = {}  # the newest of each name
    for rank, view in case.views.items():
        for group in view.groups:
            by_name.setdefault(group.name, {})[rank] = group
    endings = [view.ending for view in case.views.values() if view.ending is not None]
    aborted = any(ending.signal == signal.SIGABRT for ending in endings)
    for name, members in sorted(by_name.items()):
        newest = {group.enqueued for group in members.values()}
        told = (group.completed for group in members.values() if not (group.blind or group.untold))
        ended = max(told, default=0) if aborted else 0
        for seq in sorted(newest | {ended}):
            issued = {r: op for r in members if (op := find_issued(case.views[r], name, seq)) is not None}
            # all_gather may have its sizes, as NCCL takes them; gloo answers unequal ones with SIGABRT.
            sides = _sides_by_size(issued) if aborted and seq in newest else sides_of(issued)
            if seq and len(sides) > 1:
                operation = Operation(group=name, seq=seq, members=tuple(sorted(members)))
                return Mismatch(operation=operation, sides=sides)
    return None


def _sides_by_size(issued: Mapping[int, OpView]) -> tuple[tuple[int, ...], ...]:
    sizes: dict[tuple[object, ...], list[int]] = {}
    for rank, op in issued.items():
        sizes.setdefault((*op_key(op), op.numel), []).append(rank)
    return tuple(map(tuple, sizes.values()))


def _same_end(one: Ending, other: Ending) -> bool:
    """Say whether two ranks raised the same at the same line: then it is the program's error, not one rank's."""
    return bool(one.exception) and (one.exception, one.site) == (other.exception, other.site)


def failed_for_all(case: Case, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return whose exceptions a checkpoint has raised on all ranks of the job, () if that is not told.

    It names them by their places in its group. The first is its coordinator, which also fails in what it does for all.
    """
    endings = (case.views[rank].ending for rank in ranks)
    told = {match[1] for end in endings if end and (match := _OF_A_CHECKPOINT.search(end.exception))}
    if len(ranks) < case.snapshot.world_size or len(told) != 1:
        return ()
    named = tuple(sorted(int(each) for each in told.pop().split(",")))
    last = [(view, view.history[-1].group) for rank in ranks if (view := case.views[rank]).history]
    groups = [group for view, name in last if (group := group_of(view, name)) is not None]
    of_all = len(groups) == len(ranks) and all(len(group.ranks) == len(ranks) for group in groups)
    return named if of_all and named != (0,) and set(named) < set(ranks) else ()


def followers(case: Case, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return who waits for ranks that are gone, and who ended because of them."""
    waiting = set(victims_of(case.graph, ranks))
    ended = {rank for rank, view in case.views.items() if view.ending is not None and is_victim(view.ending)}
    mute = [rank for rank, v in case.views.items() if v.ending is not None and _says_nothing(v.ending)]
    if all((end := case.views[rank].ending) is not None and is_clean(end) for rank in ranks):
        ended.update(unfinished(case.views, ranks, mute))
    return tuple(sorted((waiting | ended) - set(ranks)))


def has_given_up(view: RankView) -> bool:
    """Say whether a rank caught that a wait took too long, or that a peer was lost, and made no call since."""
    error, since_s = view.last_exception, view.last_exception_s
    of_a_wait = any(words in error.lower() for words in _LOST_PEER) or _TIMED_OUT.search(error) is not None
    return bool(error) and of_a_wait and not any(op.completed and op.age_s < since_s for op in view.history)


def has_torn_down(view: RankView) -> bool:
    """Say whether a rank has destroyed the groups that it had."""
    newest = {group.name: group.destroyed for group in view.groups}
    return bool(newest) and all(newest.values())


def end_site(view: RankView) -> CallSite | None:
    """Return where a rank ended, else where it made its last call."""
    return (view.ending.site if view.ending is not None else None) or last_site(view)


def last_site(view: RankView) -> CallSite | None:
    """Return where a rank made its last call."""
    return view.history[-1].site if view.history else None


def is_of_a_pipe(ending: Ending) -> bool:
    """Say whether what a rank lost was the other end of a pipe or socket of the program's own."""
    return bool(_PIPE_ERROR.search(ending.exception))
