"""Ranks that are gone: which of them ended by itself, and which only lost a peer or was told to stop?

A launcher ends all ranks within seconds of the first failure, and every neighbour of a lost rank
raises an error of its own. Those are victims, whatever torchrun calls the root cause.
"""

import re
import signal
from collections.abc import Iterable, Mapping

from ncclwatch.contract.model.rank import CallSite, Ending, OpView, RankView, WaitKind
from ncclwatch.contract.model.verdict import Cause, Certainty, Evidence, Severity, Verdict
from ncclwatch.contract.words.text import (
    ADVICE,
    ADVICE_EXCEPTION,
    ADVICE_KILLED,
    ADVICE_PIPE,
    ADVICE_STORE,
    ranks_words,
    seconds_words,
)
from ncclwatch_server.judge.rules.crash_causes import known_end
from ncclwatch_server.judge.rules.known_ends import closer
from ncclwatch_server.judge.rules.mismatch import judge_mismatch
from ncclwatch_server.judge.theory.case import (
    Case,
    at,
    block_evidence,
    culprit,
    explained,
    onset_s,
    source_evidence,
    waiting_words,
)
from ncclwatch_server.judge.theory.waits.proof import seen_after_s
from ncclwatch_server.judge.theory.waits.rank_standing import Operation, find_issued, group_of, op_key, sides_of
from ncclwatch_server.judge.theory.waits.wait_graph import Mismatch, victims_of

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
_TIMED_OUT = re.compile(r"time[d ]*out", re.IGNORECASE)
NEWS_OF_AN_END_S = 5.0  # a rank seen alive so long after another's end had not ended before it
_LEFT_AGAIN = (WaitKind.INIT, WaitKind.NEW_GROUP, WaitKind.STORE)
KILL_AFTER_S = 2.0  # launchers leave at least this between SIGTERM and SIGKILL
_TOLD_TO_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def endings(case: Case) -> tuple[Verdict, ...]:
    """Judge ranks that are gone while others need them, or that went with an error."""
    if case.told:
        return ()  # a job that hangs is ended in the end, by its backend or by somebody
    gone = {rank: view.ending for rank, view in case.views.items() if view.ending is not None}
    suspects = _own_endings(gone)
    if not suspects:
        return _lost_no_rank(case, gone)
    abnormal = [rank for rank in suspects if not _is_clean(gone[rank])]
    if abnormal:
        mismatch = _mismatch_at_the_end(case)
        if mismatch is not None:
            return judge_mismatch(case, mismatch)
        first = _first(case, abnormal)
        ranks = tuple(r for r in abnormal if _same_end(gone[r], gone[first]) or r == first)
        known = known_end(case, abnormal, first)
        return (closer(_crash(case, known.ranks), known) if known is not None else _crash(case, ranks),)
    # Where a backend raises at the loss of a peer, nobody waits any more, but somebody has lost one.
    lost = any(_lost_peer(ending) for ending in gone.values())
    waited_for = [rank for rank in suspects if lost or _is_waited_for(case, rank)]
    return (_exit(case, tuple(waited_for)),) if waited_for else ()


def _lost_no_rank(case: Case, gone: dict[int, Ending]) -> tuple[Verdict, ...]:
    """Judge ranks that ended as if they had lost a rank, though none was gone before them.

    What they lost was the store, or the other end of a pipe of the program's own: to a loader process, a service.

    That none was gone is known once each rank has ended, or has been seen alive long after the first end. Whoever
    was told to stop may have taken the store along, and a timeout has a reason of its own.
    """
    raised = [rank for rank, ending in gone.items() if ending.exception and _lost_peer(ending)]
    if not raised or len(case.views) < case.snapshot.world_size:
        return ()
    first = _first(case, raised)
    error = gone[first].exception
    if first != _first(case, gone) or not _is_no_ranks(error) or _TIMED_OUT.search(error):
        return ()
    since_s = _ending_age_s(case.views[first]) - NEWS_OF_AN_END_S
    if any(view.news_age_s >= since_s for rank, view in case.views.items() if rank not in gone):
        return ()
    return (_crash(case, tuple(rank for rank in raised if rank == first or _same_end(gone[rank], gone[first]))),)


def _is_no_ranks(error: str) -> bool:
    return bool(_STORE_ERROR.search(error) or _PIPE_ERROR.search(error))


def _own_endings(gone: dict[int, Ending]) -> list[int]:
    """Return the ranks that did not end because of another one."""
    own = [rank for rank, ending in gone.items() if not is_victim(ending)]
    told = [e.age_s for e in gone.values() if e.signal in _TOLD_TO_STOP and not e.exception]
    killed_before_s = max(told, default=0.0) - KILL_AFTER_S
    # SIGKILL long after somebody was told to stop is the launcher's second word, not a failure.
    return [rank for rank in own if not (gone[rank].signal == signal.SIGKILL and gone[rank].age_s <= killed_before_s)]


def is_victim(ending: Ending) -> bool:
    """Say whether a rank ended because a peer was lost or it was told to stop."""
    told = ending.signal in _TOLD_TO_STOP or ending.exception.startswith(("KeyboardInterrupt", "SignalException"))
    return told or _lost_peer(ending)


def _lost_peer(ending: Ending) -> bool:
    return any(words in ending.exception.lower() for words in _LOST_PEER)


def _is_clean(ending: Ending) -> bool:
    return ending.kind == "exited" or (ending.kind != "signalled" and ending.exit_code == 0)


def _first(case: Case, ranks: Iterable[int]) -> int:
    """Return the rank that ended first; ages on one node are comparable, across nodes to about a second."""
    return max(ranks, key=lambda rank: (_ending_age_s(case.views[rank]), -rank))


def _ending_age_s(view: RankView) -> float:
    return view.ending.age_s + view.news_age_s if view.ending is not None else 0.0


def _is_waited_for(case: Case, rank: int) -> bool:
    return any(rank in absent for absent in _absent_of_blocked(case, _ending_age_s(case.views[rank])))


def _absent_of_blocked(case: Case, ended_s: float) -> list[tuple[int, ...]]:
    """Return whom the blocked ranks wait for, as far as that still holds for a rank that ended so long ago.

    Who has come to a collective has come for ever. Who has come to a rendezvous may have left it again before it
    ended: then only a view that was taken after its end shows that it is still missing.
    """
    return [
        case.graph.absent[block.operation]
        for rank in case.blocked
        for block in case.found[rank].blocks
        if block.operation.kind not in _LEFT_AGAIN or seen_after_s(case.views[rank]) <= ended_s
    ]


def _mismatch_at_the_end(case: Case) -> Mismatch | None:
    """Return the newest collective if its signatures differ: a backend then aborts a rank, often an innocent one."""
    names = {group.name for view in case.views.values() for group in view.groups}
    endings = [view.ending for view in case.views.values() if view.ending is not None]
    aborted = any(ending.signal == signal.SIGABRT for ending in endings)
    for name in sorted(names):
        members = [rank for rank, view in case.views.items() if group_of(view, name) is not None]
        seqs = {group.enqueued for rank in members if (group := group_of(case.views[rank], name)) is not None}
        for seq in sorted(seqs):
            issued = {r: op for r in members if (op := find_issued(case.views[r], name, seq)) is not None}
            # all_gather may have its sizes, as NCCL takes them; gloo answers unequal ones with SIGABRT.
            sides = _sides_by_size(issued) if aborted else sides_of(issued)
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


def _crash(case: Case, ranks: tuple[int, ...]) -> Verdict:
    view = case.views[ranks[0]]
    ending = view.ending or Ending(kind="vanished")
    site = ending.site or _last_site(view)
    where = at(ending.site) if ending.site else f"; its last operation was{at(site)}" if site else ""
    host = f" on {view.host}" if len(ranks) == 1 else ""
    victims = _others(case, ranks)
    return Verdict(
        cause=Cause.RANK_CRASHED,
        certainty=Certainty.PROVEN,
        severity=Severity.CRITICAL,
        summary=f"{ranks_words(ranks)}{host} {ending_words(ending)}{where}.",
        explanation=_crash_explanation(case, ranks, victims),
        advice=_crash_advice(ending),
        culprits=tuple(culprit(case.views[rank], _end_site(case.views[rank]), ending_words(ending)) for rank in ranks),
        victims=victims,
        group="",
        onset_s=_ending_age_s(view),
        explained=explained(case, (*ranks, *victims)),
        evidence=_evidence(case, ranks),
    )


def _end_site(view: RankView) -> CallSite | None:
    return (view.ending.site if view.ending is not None else None) or _last_site(view)


def _crash_advice(ending: Ending) -> str:
    if is_victim(ending) and not _PIPE_ERROR.search(ending.exception):
        return ADVICE_STORE
    if is_victim(ending):
        return ADVICE_PIPE
    if ending.exception:
        return ADVICE_EXCEPTION
    return ADVICE_KILLED if ending.signal is not None else ADVICE[Cause.RANK_CRASHED]


def _crash_explanation(case: Case, ranks: tuple[int, ...], victims: tuple[int, ...]) -> str:
    errors = [v for v in victims if (e := case.views[v].ending) is not None and is_victim(e)]
    after = f" {ranks_words(errors).capitalize()} ended after it, as a consequence." if errors else ""
    if len(ranks) == len(case.views):
        return "All ranks raised the same at the same line."
    if all(is_victim(view.ending) for view in case.views.values() if view.ending is not None):
        ending = case.views[ranks[0]].ending
        own = ending is not None and _PIPE_ERROR.search(ending.exception)
        lost = (
            "the other end of a pipe or socket of the program's own (a loader process, a service)"
            if own
            else "the store, the process through which ranks find each other"
        )
        return f"{ranks_words(ranks).capitalize()} lost {lost}: no rank had ended before.{after}"
    gone = "it is gone" if len(ranks) == 1 else "they are gone"
    return f"The other ranks need {ranks_words(ranks)} for every further collective, and {gone}.{after}"


def _exit(case: Case, ranks: tuple[int, ...]) -> Verdict:
    victims = _others(case, ranks)
    blocks = [block for rank in victims for block in case.found[rank].blocks]
    view = case.views[ranks[0]]
    site = _end_site(view)
    verb = "have" if len(ranks) > 1 else "has"
    return Verdict(
        cause=Cause.RANK_EXITED,
        certainty=Certainty.PROVEN,
        severity=Severity.CRITICAL,
        summary=(
            f"{ranks_words(ranks)} {verb} left training with exit code 0 (last operation{at(site)}), while "
            f"{waiting_words(case.views, blocks) or f'{ranks_words(victims)} still trained'}."
        ),
        explanation=(
            f"A collective completes only when all members make the call; {ranks_words(ranks)} "
            "ended without an error and will not come."
        ),
        advice=ADVICE[Cause.RANK_EXITED],
        culprits=tuple(culprit(case.views[rank], _last_site(case.views[rank]), "exited with code 0") for rank in ranks),
        victims=victims,
        group=blocks[0].operation.group if blocks else "",
        seq=blocks[0].operation.seq if blocks else 0,
        op=blocks[0].wait.op.value if blocks else "",
        onset_s=onset_s(blocks) or max(_ending_age_s(case.views[rank]) for rank in ranks),
        explained=explained(case, victims),
        evidence=_evidence(case, ranks),
    )


def _others(case: Case, ranks: tuple[int, ...]) -> tuple[int, ...]:
    waiting = set(victims_of(case.graph, ranks))
    ended = {rank for rank, view in case.views.items() if view.ending is not None and is_victim(view.ending)}
    return tuple(sorted((waiting | ended) - set(ranks)))


def _last_site(view: RankView) -> CallSite | None:
    return view.history[-1].site if view.history else None


def ending_words(ending: Ending) -> str:
    """Return how a rank ended, in words."""
    if ending.signal is not None:
        try:
            name = signal.Signals(ending.signal).name
        except ValueError:
            name = f"signal {ending.signal}"
        return f"was killed by {name}"
    if ending.exception:
        return f"ended with {ending.exception}"
    if ending.exit_code:
        return f"ended with exit code {ending.exit_code}"
    if ending.kind == "vanished":
        return "vanished without a trace"
    return "exited with code 0"


def _evidence(case: Case, ranks: tuple[int, ...]) -> tuple[Evidence, ...]:
    facts = []
    for rank, view in case.views.items():
        if view.ending is not None:
            ago = seconds_words(_ending_age_s(view))
            facts.append(Evidence(source="agent", rank=rank, fact=f"{ending_words(view.ending)}, {ago} ago"))
    for rank in ranks:
        view = case.views[rank]
        facts += source_evidence(view, _end_site(view))
    facts += [block_evidence(block) for rank in case.blocked[:8] for block in case.found[rank].blocks]
    return tuple(facts[:40])
