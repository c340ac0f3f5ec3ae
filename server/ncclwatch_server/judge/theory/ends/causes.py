"""Finds ranks that are gone: which of them ended by itself, and which only lost a peer or was told to stop.

A launcher ends all ranks within seconds of the first failure, and every neighbour of a lost rank
raises an error of its own. Those are victims, whatever torchrun calls the root cause.
"""

import re
import signal
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from ncclwatch.contract.model.preflight import BACKEND
from ncclwatch.contract.model.rank import Ending, GroupView, OpView, ProcessState, RankView, WaitKind
from ncclwatch_server.judge.theory.case import Case, device_patience_s
from ncclwatch_server.judge.theory.ends.kinds import (
    SAME_TIME_S,
    ended_s_ago,
    has_given_up,
    has_words_of_a_loss,
    is_clean,
    is_mute,
    is_of_a_backend,
    is_of_a_pipe,
    is_of_the_store,
    is_timeout,
    lost_peer,
    raised_the_same,
    says_nothing,
    was_told,
)
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

_OF_A_CHECKPOINT = re.compile(r"\bCheckpointException ranks:dict_keys\(\[([\d, ]+)\]\)")
NEWS_OF_AN_END_S = 5.0  # a rank seen alive so long after another's end had not ended before it
LAST_WORD_S = 6.0  # in which a process that has left its program ends, and the kernel tells the code
_LEFT_AGAIN = (WaitKind.INIT, WaitKind.NEW_GROUP, WaitKind.STORE)
KILL_AFTER_S = 2.0  # launchers leave at least this between SIGTERM and SIGKILL
KILL_UNTIL_S = 600.0  # and hardly any leaves more
STOPPING_S = 60.0  # a rank still there so long after another one was told to stop was hardly told the same
ABORT_AFTER_S = 60.0  # no watchdog of a backend aborts a rank for a shorter wait


class Went(Enum):
    """How ranks that are gone went."""

    FAILED = "failed"  # with an error of their own, or by a signal that nobody sent to all
    LEFT = "left"  # with exit code 0, while others needed them
    LOST = "lost"  # as if they had lost a rank, though none was gone before: it was the store


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
    echoes = find_echoes(case).intersection(gone)
    suspects = _told_or_missed(case, gone, echoes, _own_endings(gone, echoes))
    if not suspects:
        return None if case.told else _told_alone(case, gone) or _lost_no_rank(case, gone, echoes)
    failed = tuple(rank for rank in suspects if not is_clean(gone[rank]))
    if failed:
        mismatch = _mismatch_at_the_end(case) if not case.told else None
        if mismatch is not None:
            return mismatch
        first = _first(case, failed)
        left = _left_before(case, first, suspects) or _missed_before(case, first, suspects)
        if left:
            return Ends(went=Went.LEFT, ranks=left)
        return Ends(went=Went.FAILED, ranks=_alike(case, failed, first), first=first, failed=failed)
    if any(_is_still_ending(case.views[rank]) for rank in suspects):
        return None
    # Where a backend raises at the loss of a peer, nobody waits any more, but somebody has lost one that went before.
    lost_s = max((ended_s_ago(case.views[rank]) for rank in echoes if lost_peer(gone[rank])), default=float("inf"))
    waited_for = _waited_for(case, suspects)
    left = tuple(r for r in suspects if r in waited_for or ended_s_ago(case.views[r]) + SAME_TIME_S >= lost_s)
    return Ends(went=Went.LEFT, ranks=left) if left else None


def find_echoes(case: Case) -> frozenset[int]:
    """Return the ranks that are gone and may have ended for another one: told to stop, aborted, or by a lost peer.

    What the program raises may have the words of a lost peer as well, of a service or a pipe. That is an echo only of
    a rank that had failed before, or in the same moment: a connection is closed before anybody sees the end. And that
    none had failed is known once each other rank has ended as well, or has been seen alive long after.
    """
    gone = {rank: view.ending for rank, view in case.views.items() if view.ending is not None}
    told = {rank for rank, ending in gone.items() if was_told(ending)}
    worded = {rank for rank, ending in gone.items() if rank not in told and lost_peer(ending)}
    programs = {rank for rank in worded if not is_of_a_backend(gone[rank].exception)}
    failed = (r for r, ending in gone.items() if r not in told | programs and not is_clean(ending))
    before_s = max((ended_s_ago(case.views[rank]) + SAME_TIME_S for rank in failed), default=0.0)
    before_s = max((before_s, *(ended_s_ago(case.views[rank]) for rank in told)))
    there_s = max((view.news_age_s for rank, view in case.views.items() if rank not in gone), default=0.0)
    there_s += NEWS_OF_AN_END_S if len(gone) < len(case.views) else 0.0
    if len(case.views) < case.snapshot.world_size:
        there_s = float("inf")
    own = {rank for rank in programs if ended_s_ago(case.views[rank]) >= max(before_s, there_s)}
    aborted = (rank for rank, ending in gone.items() if _was_aborted(case, rank, ending))
    return frozenset((*told, *(worded - own), *aborted))


def _was_aborted(case: Case, rank: int, ending: Ending) -> bool:
    """Say whether a watchdog ended a rank because another one did not come to the collective in which it waited."""
    if ending.signal != signal.SIGABRT or ending.exception:
        return False
    view = case.views[rank]
    op = next((op for op in reversed(view.history) if not op.op.is_p2p and not op.completed), None)
    group = group_of(view, op.group) if op is not None else None
    if op is None or group is None or op.age_s - ending.age_s < ABORT_AFTER_S:
        return False
    others = (group_of(case.views[other], op.group) for other in group.ranks if other in case.views)
    return any(other is not None and not other.blind and other.enqueued < op.seq for other in others)


def _alike(case: Case, failed: tuple[int, ...], first: int) -> tuple[int, ...]:
    """Return who failed as the first one did: raised the same, or was killed with all that failed, by one signal."""
    ending = case.views[first].ending
    ends = {rank: end for rank in failed if (end := case.views[rank].ending) is not None}
    if ending is None or ending.exception:
        return tuple(r for r, end in ends.items() if r == first or (ending and raised_the_same(end, ending)))
    since_s = ended_s_ago(case.views[first]) - SAME_TIME_S
    together = [r for r, end in ends.items() if end.signal == ending.signal and ended_s_ago(case.views[r]) >= since_s]
    return tuple(together) if ending.signal and len(together) == len(failed) else (first,)


def _told_alone(case: Case, gone: Mapping[int, Ending]) -> Ends | None:
    """Return the ranks that were told to stop while others were not, and waited for them long after."""
    there_s = (*(case.views[r].news_age_s for r in case.blocked), *(ended_s_ago(case.views[r]) for r in gone))
    told = [r for r, e in gone.items() if was_told(e) and ended_s_ago(case.views[r]) - min(there_s) >= STOPPING_S]
    if not told:
        return None
    others = [rank for rank in gone if rank not in told]
    ranks = tuple(sorted(_waited_for(case, told))) or (tuple(told) if unfinished(case.views, told, others) else ())
    return Ends(went=Went.FAILED, ranks=ranks, first=_first(case, ranks), failed=ranks) if ranks else None


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
    if view.ending is None or not says_nothing(view.ending):
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


def _told_or_missed(case: Case, gone: Mapping[int, Ending], echoes: frozenset[int], own: list[int]) -> list[int]:
    """Return the ranks whose end says something, or was missed by another rank.

    That one waits for it, or ended after it for the loss of a peer, or had ended well without a call that it made.
    """
    mute = [rank for rank in own if is_mute(gone[rank])]
    if not mute:
        return own
    missed = set(_waited_for(case, mute))
    lost_s = [ended_s_ago(case.views[rank]) for rank in echoes]
    if lost_s:
        since_s = min(lost_s) - SAME_TIME_S
        missed.update(rank for rank in mute if ended_s_ago(case.views[rank]) >= since_s)
    missed.update(unfinished(case.views, [rank for rank, ending in gone.items() if is_clean(ending)], mute))
    return [rank for rank in own if rank in missed or not is_mute(gone[rank])]


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
    told = was_told(ending) or has_words_of_a_loss(error) or is_timeout(ending)
    return bool(error) and not (told or is_of_a_backend(error) or is_of_the_store(error) or is_of_a_pipe(error))


def _lost_no_rank(case: Case, gone: Mapping[int, Ending], echoes: frozenset[int]) -> Ends | None:
    """Return the ranks that ended as if they had lost a rank, though none was gone before them: they lost the store.

    That none was gone is known once each rank has ended, or has been seen alive long after the first end. Whoever
    was told to stop may have taken the store along, and a timeout has a reason of its own.
    """
    raised = [rank for rank in echoes if gone[rank].exception and lost_peer(gone[rank])]
    if not raised or len(case.views) < case.snapshot.world_size:
        return None
    first = _first(case, raised)
    if first != _first(case, gone) or not is_of_the_store(gone[first].exception) or is_timeout(gone[first]):
        return None
    since_s = ended_s_ago(case.views[first]) - NEWS_OF_AN_END_S
    if any(view.news_age_s >= since_s for rank, view in case.views.items() if rank not in gone):
        return None
    alike = tuple(sorted(rank for rank in raised if rank == first or raised_the_same(gone[rank], gone[first])))
    return Ends(went=Went.LOST, ranks=alike, first=first)


def _own_endings(gone: Mapping[int, Ending], echoes: frozenset[int]) -> list[int]:
    """Return the ranks that did not end because of another one."""
    told_s = [end.age_s for end in gone.values() if was_told(end) and not end.exception]
    own = [rank for rank in gone if rank not in echoes]
    return [rank for rank in own if not _was_killed_after(gone[rank], told_s)]


def _was_killed_after(ending: Ending, told_s: Iterable[float]) -> bool:
    """Say whether SIGKILL came long after somebody was told to stop: the launcher's second word, not a failure."""
    if ending.signal != signal.SIGKILL or ending.exception:
        return False
    return any(KILL_AFTER_S <= told - ending.age_s <= KILL_UNTIL_S for told in told_s)


def _first(case: Case, ranks: Iterable[int]) -> int:
    """Return the rank that ended first; ages on one node are comparable, across nodes to about a second."""
    return max(ranks, key=lambda rank: (ended_s_ago(case.views[rank]), -rank))


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
    backends = [case.snapshot.setup.of(rank).get(BACKEND) for rank in case.views]
    by_nccl = any("nccl" in backend and "gloo" not in backend for backend in backends)
    for name, members in sorted(by_name.items()):
        newest = {group.enqueued for group in members.values()}
        told = (group.completed for group in members.values() if not (group.blind or group.untold))
        ended = max(told, default=0) if aborted else 0
        for seq in sorted(newest | {ended}):
            issued = {r: op for r in members if (op := find_issued(case.views[r], name, seq)) is not None}
            # all_gather may have its sizes, as NCCL takes them; gloo answers unequal ones with SIGABRT.
            sides = _sides_by_size(issued) if aborted and seq in newest and not by_nccl else sides_of(issued)
            if seq and len(sides) > 1:
                operation = Operation(group=name, seq=seq, members=tuple(sorted(members)))
                return Mismatch(operation=operation, sides=sides)
    return None


def _sides_by_size(issued: Mapping[int, OpView]) -> tuple[tuple[int, ...], ...]:
    sizes: dict[tuple[object, ...], list[int]] = {}
    for rank, op in issued.items():
        sizes.setdefault((*op_key(op), op.numel), []).append(rank)
    return tuple(map(tuple, sizes.values()))


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
    """Return who waits for ranks that are gone, and who ended because of them, and so no earlier."""
    waiting = set(victims_of(case.graph, ranks))
    first_s = max(ended_s_ago(case.views[rank]) for rank in ranks) + SAME_TIME_S
    ended = set(find_echoes(case))
    mute = [rank for rank, v in case.views.items() if v.ending is not None and says_nothing(v.ending)]
    if all((end := case.views[rank].ending) is not None and is_clean(end) for rank in ranks):
        ended.update(unfinished(case.views, ranks, mute))
    later = {rank for rank in ended if ended_s_ago(case.views[rank]) <= first_s}
    return tuple(sorted((waiting | later) - set(ranks)))
