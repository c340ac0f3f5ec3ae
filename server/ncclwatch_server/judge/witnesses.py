"""Compares what torch's Flight Recorder and NCCL's RAS say of the operation of a verdict.

They count for themselves: other numbers than ncclwatch's, but the same for all members of a group. So nothing is
compared with a number of ncclwatch's own. The recorder's number of the operation is that of what a waiting rank has not
finished by the recorder either; then the question is whether a rank that ncclwatch calls absent has come as far. Where
the recorder holds no such operation (one it does not know, as monitored_barrier, or one it writes down only once a
communicator is there) it says nothing.

Only ranks are compared that stood still: what ncclwatch had seen of them was the same before the witness was
asked, after it had answered, and is so now.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import Op, OpView, RankView
from ncclwatch.contract.model.testimony import Communicator, WitnessedGroup, WitnessedOp
from ncclwatch.contract.model.verdict import Certainty, Evidence, Severity, Verdict
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.theory.histories.signatures import op_named
from ncclwatch_server.judge.theory.pulse import is_lost
from ncclwatch_server.judge.theory.waits.rank_standing import group_of

LAUNCHES = frozenset((Op.BROADCAST, Op.REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_REDUCE, Op.BARRIER))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Who has a part in the operation of a verdict, as ncclwatch sees it."""

    group: str
    seq: int
    members: tuple[int, ...]
    waiting: Mapping[int, OpView]  # it is their oldest unfinished operation
    absent: tuple[int, ...]  # they live and have not issued it
    views: Mapping[int, RankView]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Account:
    """What one witness says."""

    objection: str = ""  # sentences; "" if it does not disagree
    evidence: tuple[Evidence, ...] = ()


def heard(snapshot: JobSnapshot, verdict: Verdict) -> Verdict:
    """Return a verdict with what other witnesses say of its operation: less certain where one of them disagrees."""
    if not snapshot.testimonies:
        return verdict
    hang = verdict.severity is Severity.CRITICAL and verdict.certainty is not Certainty.LATE
    parts = _parts(snapshot, verdict) if hang and verdict.seq else None
    if parts is None or not parts.waiting:
        return verdict
    culprits = frozenset(culprit.rank for culprit in verdict.culprits)
    accounts = (_recorder(snapshot, parts, culprits), _ras(snapshot, parts, culprits))
    objections = [account.objection for account in accounts if account.objection]
    evidence = verdict.evidence + tuple(fact for account in accounts for fact in account.evidence)
    if not objections:
        return replace(verdict, evidence=evidence) if evidence != verdict.evidence else verdict
    return replace(
        verdict,
        certainty=Certainty.STALLED if verdict.certainty is Certainty.PROVEN else verdict.certainty,
        disputed=True,
        explanation=" ".join([verdict.explanation, *objections, "That makes this verdict less certain."]),
        evidence=evidence,
    )


def _parts(snapshot: JobSnapshot, verdict: Verdict) -> _Parts | None:
    """Return who has a part in a collective, None if the verdict is about nothing of the kind."""
    if verdict.op in (Op.SEND.value, Op.RECV.value):
        return None
    groups = {rank: group_of(view, verdict.group) for rank, view in snapshot.ranks.items() if view.ending is None}
    known = {rank: group for rank, group in groups.items() if group is not None and not group.destroyed}
    if not known:
        return None
    still = {
        rank: group
        for rank, group in known.items()
        if rank in snapshot.testimonies and snapshot.testimonies[rank].seen.get(verdict.group) == group.enqueued
    }
    return _Parts(
        group=verdict.group,
        seq=verdict.seq,
        members=next(iter(known.values())).ranks,
        waiting={
            rank: group.pending
            for rank, group in still.items()
            if group.pending is not None and group.pending.seq == verdict.seq
        },
        absent=tuple(rank for rank, group in still.items() if group.enqueued < verdict.seq),
        views=snapshot.ranks,
    )


def _recorder(snapshot: JobSnapshot, parts: _Parts, culprits: frozenset[int]) -> _Account:
    """Return what torch's Flight Recorder says."""
    held = {
        rank: group
        for rank in (*parts.waiting, *parts.absent)
        for group in snapshot.testimonies[rank].groups
        if group.name == parts.group
    }
    inside = {
        rank: group.pending
        for rank, group in held.items()
        if rank in parts.waiting and group.pending is not None and _is_same(group.pending, parts.waiting[rank])
    }
    if not inside:
        return _Account()
    number = min(op.seq for op in inside.values())
    come = tuple(rank for rank in parts.absent if rank in held and held[rank].enqueued >= number)
    behind = tuple(rank for rank in parts.absent if rank in held and held[rank].enqueued < number)
    through = tuple(
        rank
        for rank in parts.waiting
        if rank in held
        and rank not in inside
        and held[rank].completed >= number
        and not is_lost(parts.views[rank])  # else ncclwatch does not learn that an operation is through
    )
    if len(inside) + len(come) + len(behind) < 2:
        return _Account()
    objections = _objections(inside, come=tuple(set(come) & culprits), through=through, culprits=culprits, held=held)
    facts = {rank: f"has issued operation {op.seq} ({op.name}) and not finished it" for rank, op in inside.items()}
    facts |= {rank: _newest_words(held[rank]) for rank in (*come, *behind)}
    return _Account(
        objection=f"torch's Flight Recorder disagrees: {'; '.join(objections)}." if objections else "",
        evidence=tuple(
            Evidence(source="flight recorder", rank=rank, fact=fact) for rank, fact in sorted(facts.items())
        ),
    )


def _is_same(held: WitnessedOp, issued: OpView) -> bool:
    return op_named(held.name) is issued.op and issued.op is not Op.UNKNOWN


def _objections(
    inside: Mapping[int, WitnessedOp],
    *,
    come: tuple[int, ...],
    through: tuple[int, ...],
    culprits: frozenset[int],
    held: Mapping[int, WitnessedGroup],
) -> list[str]:
    """Return in what the recorder contradicts a verdict on these culprits."""
    found = []
    number = min(op.seq for op in inside.values())
    name = inside[min(inside)].name
    if come:
        state = "finished" if all(held[rank].completed >= number for rank in come) else "not finished"
        found.append(
            f"by its count {ranks_words(come)} {_has(come)} issued operation {number} too ({name}, {state}), which "
            "ncclwatch did not see, as it sees no call that is made on a backend object"
        )
    numbers = {op.seq for op in inside.values()}
    if len(numbers) > 1 and culprits & inside.keys():
        sides = [f"{n} of {ranks_words(r for r, op in inside.items() if op.seq == n)}" for n in sorted(numbers)]
        found.append(f"by its count what they wait in is operation {' and '.join(sides)}, so not the same one")
    if through:
        found.append(f"by its account {ranks_words(through)} {_has(through)} finished the operation")
    return found


def _has(ranks: tuple[int, ...]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _newest_words(group: WitnessedGroup) -> str:
    if not group.enqueued:
        return "has issued no operation"
    name = f" ({group.newest[-1].name})" if group.newest else ""
    return f"has issued up to operation {group.enqueued}{name}"


def _ras(snapshot: JobSnapshot, parts: _Parts, culprits: frozenset[int]) -> _Account:
    """Return what NCCL's RAS says. It counts launches of all kinds together, and neither sends nor all_to_all."""
    comm = _communicator(snapshot, parts)
    if comm is None:
        return _Account()
    told = {parts.members[each.rank]: each for each in comm.ranks}
    facts = {
        rank: f"{'is taken for dead by' if each.dead else 'does not answer to'} NCCL's RAS"
        for rank, each in told.items()
        if each.missing
    }
    counts = {rank: each.launched for rank, each in told.items() if not each.missing}
    newest = {
        rank: counts[rank]
        for rank, op in parts.waiting.items()
        if rank in counts and op.op in LAUNCHES and _has_nothing_later(parts, rank)
    }
    absent = {rank: counts[rank] for rank in parts.absent if rank in counts}
    objection = ""
    if newest and absent:
        facts |= {rank: f"has launched {count} collectives" for rank, count in (newest | absent).items()}
        come = tuple(rank for rank, count in absent.items() if rank in culprits and count >= min(newest.values()))
        if come:
            objection = (
                f"NCCL's RAS disagrees: it counts as many collectives launched by {ranks_words(come)} as by "
                f"{ranks_words(newest)}, {'who waits' if len(newest) == 1 else 'who wait'}."
            )
    evidence = tuple(Evidence(source="nccl ras", rank=rank, fact=fact) for rank, fact in sorted(facts.items()))
    return _Account(objection=objection, evidence=evidence)


def _has_nothing_later(parts: _Parts, rank: int) -> bool:
    """Whether the operation is the newest that a rank has issued: later launches would be counted with it."""
    group = group_of(parts.views[rank], parts.group)
    return group is not None and group.enqueued == parts.seq


def _communicator(snapshot: JobSnapshot, parts: _Parts) -> Communicator | None:
    """Return the one communicator that serves the group, None if none or several may be it."""
    found = [comm for comm in snapshot.communicators if _serves(comm, parts)]
    return found[0] if len(found) == 1 else None


def _serves(comm: Communicator, parts: _Parts) -> bool:
    if comm.size != len(parts.members) or not comm.ranks:
        return False
    if any(not 0 <= each.rank < comm.size for each in comm.ranks):
        return False
    views = [parts.views.get(parts.members[each.rank]) for each in comm.ranks]
    return all(
        view is not None and (view.pid == each.pid or each.missing)
        for view, each in zip(views, comm.ranks, strict=True)
    ) and not all(each.missing for each in comm.ranks)
