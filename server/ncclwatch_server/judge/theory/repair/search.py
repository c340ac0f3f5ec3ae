"""Finds the smallest edits after which a replay passes every recorded wait.

Edits are compared by their number, then by how many pairs of ranks still disagree, then by how often ranks still break
their own routine. Comparing is cheap and replaying is not, so edits are replayed in that order, and a rank is left out
whose best possible edit would not be good enough. Of ranks that may take the place of each other one is tried for all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ncclwatch_server.judge.theory.repair.batches import odd_ranks
from ncclwatch_server.judge.theory.repair.edits import Change, Edit, edits
from ncclwatch_server.judge.theory.repair.hang import Failure, Hang, Score
from ncclwatch_server.judge.theory.repair.tapes import Tapes

REPLAYS_MAX = 400  # for each rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """An edit after which the job goes on."""

    edit: Edit
    score: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Repairs:
    """The best edits of one job, at most one for each rank; with several it is one of these ranks."""

    hang: Hang
    best: tuple[Repair, ...] = ()
    by_batches: bool = False  # others are as good, but drew as many batches as the rest
    failure: Failure | None = None


def search(tapes: Tapes) -> Repairs:
    """Return the smallest edits of one rank after which every recorded wait ends."""
    hang = Hang(tapes)
    if hang.failure is not None:
        return Repairs(hang=hang, failure=hang.failure)
    found: list[tuple[Repair, Sequence[int]]] = []
    best: Score | None = None
    candidates = hang.candidates()
    tried = [ranks for ranks in hang.alike() if ranks[0] in candidates]
    for ranks in sorted(tried, key=lambda each: (hang.bound(each[0]), each[0])):
        if best is not None and hang.bound(ranks[0]) > best:
            break
        repair = _repair_of(hang, ranks[0], best)
        if repair is not None:
            best = repair.score if best is None else min(best, repair.score)
            found.append((repair, ranks))
    kept = [_as_made_by(hang, repair, rank) for repair, ranks in found if repair.score == best for rank in ranks]
    return _narrowed(hang, tuple(sorted(kept, key=lambda each: each.edit.rank)))


def _narrowed(hang: Hang, kept: tuple[Repair, ...]) -> Repairs:
    """Return those of several ranks that drew another number of batches than all others, if any did."""
    odd = odd_ranks(hang.roles, hang.cut) if len(kept) > 1 else frozenset()
    narrowed = tuple(each for each in kept if each.edit.rank in odd)
    if narrowed and len(narrowed) < len(kept):
        return Repairs(hang=hang, best=narrowed, by_batches=True)
    return Repairs(hang=hang, best=kept, failure=None if kept else Failure.UNEXPLAINED)


def _as_made_by(hang: Hang, repair: Repair, rank: int) -> Repair:
    """Return the same edit for a rank that does the same in its own groups."""
    edit = repair.edit
    if rank == edit.rank:
        return repair
    put = (hang.roles.as_made_by(rank, edit.rank, number) for number in edit.put)
    return replace(repair, edit=replace(edit, rank=rank, put=tuple(number for number in put if number is not None)))


def _repair_of(hang: Hang, rank: int, best: Score | None) -> Repair | None:
    """Return the best edit of a rank that is a repair and no worse than `best`."""
    scored = {}
    for edit in edits(hang.roles, hang.departed(rank), hang.wanted_of(rank)):
        if edit not in scored:
            scored[edit] = hang.score(edit)
    order = sorted(scored, key=lambda edit: (scored[edit], *_size_of(hang, edit), -edit.at))
    for edit in order[:REPLAYS_MAX]:
        if best is not None and scored[edit] > best:
            return None
        if hang.passes(edit):
            return Repair(edit=edit, score=scored[edit])
    return None


def _size_of(hang: Hang, edit: Edit) -> tuple[bool, int, int]:
    """Return how much an edit supposes; of several edits of one rank that explain as much, the smallest is told."""
    if edit.change is Change.REWIND:
        return True, len(Change), 0
    calls = hang.tapes.by_rank[edit.rank].calls
    is_block = edit.change is not Change.SWAP and max(len(edit.put), edit.out) > 1
    return is_block, _kind(hang, edit, calls), edit.out


def _kind(hang: Hang, edit: Edit, calls: Sequence[int]) -> int:
    if edit.change is Change.REPLACE:
        same = hang.roles.calls[calls[edit.at]].site == hang.roles.calls[edit.put[0]].site
        return 0 if same else 5
    if edit.change is Change.LEAVE_OUT:
        # Whoever stands in a call that is known from elsewhere may have missed another one before it.
        last = edit.at + edit.out > hang.tapes.by_rank[edit.rank].stop
        return 4 if last and _is_known(hang, edit.rank, calls[edit.at]) else 2
    return {Change.SWAP: 1, Change.PUT_IN: 3}.get(edit.change, 0)


def _is_known(hang: Hang, rank: int, number: int) -> bool:
    """Say whether anybody has made a call apart from the last one of this rank."""
    site = hang.roles.calls[number].site
    own = hang.tapes.by_rank[rank]
    if number in own.calls[: own.stop]:
        return True
    return any(
        hang.roles.calls[call].site == site
        for ranks in hang.peers.classes
        for call in set(hang.tapes.by_rank[ranks[0]].calls)
        if rank not in ranks
    )
