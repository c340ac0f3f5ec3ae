"""Says why some ranks have left a group in which others wait: too early, or the others came to a call too many."""

from collections.abc import Mapping
from dataclasses import dataclass

from ncclwatch.contract.model.verdict import Certainty
from ncclwatch_server.judge.theory.case import Case, onset_s
from ncclwatch_server.judge.theory.ends.kinds import ended_s_ago, has_given_up, lost_peer, was_told
from ncclwatch_server.judge.theory.histories.batches import odd_in_pass, uneven_counts
from ncclwatch_server.judge.theory.histories.own_calls import OwnCall, own_call, unfinished
from ncclwatch_server.judge.theory.histories.skipped_calls import Shift, find_shift, who_shifted
from ncclwatch_server.judge.theory.majority import majority
from ncclwatch_server.judge.theory.roots import AloneRoot, DestroyedRoot, Place, place_of
from ncclwatch_server.judge.theory.waits.rank_standing import group_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """Why ranks have left, as far as histories tell."""

    counts: Mapping[int, int] | None = None  # batches drawn by rank, where they ran out of them
    shift: Shift | None = None  # the call that they left out before
    long: tuple[int, ...] = ()  # who drew more, where most ranks of the job ran out of batches as these did
    call: OwnCall | None = None  # that the others make alone
    surplus: Shift | None = None  # the call that the others made too often before

    @property
    def alone(self) -> tuple[int, ...]:
        """Who is in a call too many; nobody, where those who left did so too early."""
        if self.surplus is not None:
            return self.surplus.ranks
        return self.call.ranks if self.call is not None else self.long


STAYED = Leaving()


def left_before(case: Case, left: tuple[int, ...], victims: tuple[int, ...]) -> Leaving:
    """Return why ranks have left a group in which these victims wait, or waited when they ended."""
    others = tuple(rank for rank in victims if rank in case.views)
    counts = uneven_counts(case.views, left, others, gone=True)
    if counts is not None:
        return Leaving(counts=counts, long=_who_drew_more(case, left, others, counts))
    # Members that are through have a say as well.
    members = {
        op.group: group_of(case.views[rank], op.group) for rank, op in unfinished(case.views, left, others).items()
    }
    for name, group in sorted(members.items()):
        ranks = group.ranks if group is not None else ()
        found = find_shift(case.views, name, ranks)
        shift = who_shifted(case.views, ranks, found) if found is not None else None
        if shift is not None and shift.skipped > 0 and set(shift.ranks) <= set(left):
            return Leaving(shift=shift)
        if shift is not None and shift.skipped < 0 and set(shift.ranks) <= set(others):
            return Leaving(surplus=shift)
    return Leaving(call=own_call(case.views, left, others))


def _who_drew_more(
    case: Case, left: tuple[int, ...], others: tuple[int, ...], counts: Mapping[int, int]
) -> tuple[int, ...]:
    """Return who still waits for those who ran out of batches, if most ranks of the job ran out there."""
    most = max(counts[rank] for rank in left)
    long = tuple(rank for rank in unfinished(case.views, left, others) if counts[rank] > most)
    return long if long and odd_in_pass(case.views, left, long) == long else ()


def alone_root(case: Case, left: tuple[int, ...], why: Leaving, victims: tuple[int, ...]) -> AloneRoot:
    """Return the root of ranks in a call too many, which those who have left never make."""
    blocks = tuple(block for rank in why.alone for block in case.found[rank].blocks)
    op = next(iter(unfinished(case.views, left, why.alone).values()), None)
    return AloneRoot(
        hangs=Certainty.PROVEN,
        ranks=why.alone,
        victims=tuple(rank for rank in victims if rank not in why.alone),
        blocks=blocks,
        place=Place(op.group, op.seq, op.op.value) if op is not None else place_of(blocks),
        onset_s=onset_s(blocks) or max(ended_s_ago(case.views[rank]) for rank in left),
        left=left,
        ended=all(case.views[rank].ending is not None for rank in left),
        call=why.call,
        shift=why.surplus,
        counts=why.counts,
    )


def left_a_group(case: Case) -> DestroyedRoot | AloneRoot | None:
    """Return the ranks that lived on, and destroyed a group in which others made a call and then lost a peer.

    Where a backend raises as soon as a connection is closed, nobody waits: all others are gone at once.
    """
    if case.told:
        return None
    lost = tuple(rank for rank, view in case.views.items() if view.ending is not None and lost_peer(view.ending))
    leavers = [
        rank
        for rank, view in case.views.items()
        if lost
        and (view.ending is None or was_told(view.ending))  # a launcher ends those that are left
        and not has_given_up(view)
        and any(group.destroyed for group in view.groups)
    ]
    calls = unfinished(case.views, leavers, lost) if leavers else {}
    if not calls:
        return None
    first = max(calls, key=lambda rank: ended_s_ago(case.views[rank]))
    op = calls[first]
    groups = {rank: group_of(case.views[rank], op.group) for rank in leavers}
    ranks = tuple(rank for rank, group in groups.items() if group and group.destroyed and group.enqueued < op.seq)
    if not ranks:
        return None
    why = left_before(case, ranks, lost)
    if why.alone:
        return alone_root(case, ranks, why, lost)
    waiters = tuple(calls) if why == STAYED else ()
    return DestroyedRoot(
        hangs=Certainty.PROVEN,
        ranks=ranks,
        decided=not waiters or majority((waiters, ranks)) is waiters,
        victims=lost,
        blocks=(),
        place=Place(op.group, op.seq, op.op.value),
        onset_s=ended_s_ago(case.views[first]),
        counts=why.counts,
        waiters=waiters,
        note=None,
    )
