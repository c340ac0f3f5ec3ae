"""Finds the smallest edits after which a replay passes every recorded wait.

Edits are compared by their number, then by how many pairs of ranks still disagree, then by how often ranks still break
their own routine. Comparing is cheap and replaying is not, so edits are replayed in that order, and a rank is left out
whose best possible edit would not be good enough. Of ranks that may take the place of each other one is tried for all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ncclwatch_server.judge.theory.repair.batches import odd_ranks
from ncclwatch_server.judge.theory.repair.edits import Change, Edit, edits
from ncclwatch_server.judge.theory.repair.hang import Failure, Hang, Score, TooCostlyError
from ncclwatch_server.judge.theory.repair.tapes import End, Tapes

REPLAYS_MAX = 400  # for each rank
STANDING_MAX = 64  # ranks that stand outside or were ended, and are told together
JOINT_RANKS_MAX = 8  # ranks of which two may be wrong together
JOINT_EDITS_MAX = 12  # for each of them
JOINT_REPLAYS_MAX = 400
STANDS_IN_KNOWN = 4  # kind of an edit that takes the call in which a rank stands, which is known from elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """An edit after which the job goes on."""

    edit: Edit
    score: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Repairs:
    """The best edits of one job, at most one for each rank; with several it is one of these ranks.

    Where no edit of one rank is enough, `joint` has edits of two ranks, or of all that stand, that are enough together;
    with several such sets it is one of these.
    """

    hang: Hang
    best: tuple[Repair, ...] = ()
    joint: tuple[tuple[Repair, ...], ...] = ()
    by_batches: bool = False  # others are as good, but drew as many batches as the rest
    failure: Failure | None = None


def search(tapes: Tapes) -> Repairs:
    """Return the smallest edits of one rank after which every recorded wait ends."""
    hang = Hang(tapes)
    if hang.failure is not None:
        return Repairs(hang=hang, failure=hang.failure)
    try:
        return _searched(hang)
    except TooCostlyError:
        return Repairs(hang=hang, failure=Failure.COSTLY)


def _searched(hang: Hang) -> Repairs:
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
    if best is None or best[0] > 0:
        standing = _all_come_back(hang)
        if standing:
            return Repairs(hang=hang, joint=(standing,))
    if best is None or best[1] > 0:
        joint = _joint(hang, [rank for ranks in tried for rank in ranks[:2]])
        if joint and (best is None or joint[0][0].score[1] == 0):
            return Repairs(hang=hang, joint=joint)
    return _narrowed(hang, tuple(sorted(kept, key=lambda each: each.edit.rank)))


def _all_come_back(hang: Hang) -> tuple[Repair, ...]:
    """Return that all ranks go on that stand outside or were ended, if the job then goes on: no call was wrong."""
    ranks = sorted(rank for rank in hang.candidates() if hang.tapes.by_rank[rank].end in (End.STANDS, End.FAILED))
    changes = [
        Edit(rank=rank, change=Change.COME_BACK, at=len(hang.tapes.by_rank[rank].calls)) for rank in ranks
    ]  # fmt: skip
    if not 1 < len(changes) <= STANDING_MAX or not hang.passes(*changes):
        return ()
    return tuple(Repair(edit=edit, score=(0, hang.peers.total, hang.breaks, hang.off_beat)) for edit in changes)


def _joint(hang: Hang, ranks: Sequence[int]) -> tuple[tuple[Repair, ...], ...]:
    """Return the best pairs of edits of two ranks after which every recorded wait ends; both bear the joint score."""
    options: list[_Option] = []
    for rank in sorted(ranks, key=lambda each: (hang.bound(each), each))[:JOINT_RANKS_MAX]:
        scored = _scored(hang, rank)
        order = sorted(scored, key=lambda edit: (scored[edit], *_size_of(hang, edit), -edit.at))
        options += [_Option(hang, edit) for edit in order[:JOINT_EDITS_MAX]]
    pairs = [
        (one.score_with(other), at, one, other)
        for at, one in enumerate(options)
        for other in options[at + 1 :]
        if one.edit.rank != other.edit.rank
    ]
    found: dict[tuple[int, int], tuple[Repair, ...]] = {}
    best: Score | None = None
    for score, _, one, other in sorted(pairs, key=lambda pair: pair[:2])[:JOINT_REPLAYS_MAX]:
        if best is not None and score > best:
            break
        ranks_of_pair = one.edit.rank, other.edit.rank
        if ranks_of_pair not in found and hang.passes(one.edit, other.edit):
            best = score
            found[ranks_of_pair] = Repair(edit=one.edit, score=score), Repair(edit=other.edit, score=score)
    return tuple(found.values())


class _Option:
    """An edit that may be one of two."""

    def __init__(self, hang: Hang, edit: Edit) -> None:
        self.hang, self.edit = hang, edit
        tape = hang.tapes.by_rank[edit.rank]
        self.against = hang.peers.against(edit.rank, *edit.apply(tape), min(edit.at, len(tape.calls)))
        self.fewer_off_beat = hang.departed(edit.rank).off_beat - hang.off_beat_with(edit)
        self.fewer_breaks = hang.departed(edit.rank).breaks - hang.breaks_with(edit)

    def score_with(self, other: "_Option") -> Score:
        """Return the score of both edits; two ranks that agree with the others after them agree with each other."""
        peers = self.hang.peers
        mine, theirs = peers.class_of[self.edit.rank], peers.class_of[other.edit.rank]
        pairs = peers.total - peers.disagreeing[mine] - peers.disagreeing[theirs] + ((mine, theirs) in peers.partings)
        pairs += sum(self.against.values()) - (theirs in self.against)
        pairs += sum(other.against.values()) - (mine in other.against)
        breaks = self.hang.breaks - self.fewer_breaks - other.fewer_breaks
        off_beat = self.hang.off_beat - self.fewer_off_beat - other.fewer_off_beat
        return self.hang.weight(self.edit) + self.hang.weight(other.edit), pairs, breaks, off_beat


def _narrowed(hang: Hang, kept: tuple[Repair, ...]) -> Repairs:
    """Return those of several ranks that drew another number of batches than all others, if any did."""
    odd = odd_ranks(hang.roles, hang.cut)
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
    scored = _scored(hang, rank)
    order = sorted(scored, key=lambda edit: (scored[edit], *_size_of(hang, edit), -edit.at))
    for edit in order[:REPLAYS_MAX]:
        if best is not None and scored[edit] > best:
            return None
        if hang.passes(edit):
            return Repair(edit=edit, score=scored[edit])
    return None


def _scored(hang: Hang, rank: int) -> dict[Edit, Score]:
    """Return the edits of a rank with their scores."""
    return {
        edit: hang.score(edit) for edit in dict.fromkeys(edits(hang.roles, hang.departed(rank), hang.wanted_of(rank)))
    }


def _size_of(hang: Hang, edit: Edit) -> tuple[bool, int, int]:
    """Return how much an edit supposes; of several edits of one rank that explain as much, the smallest is told."""
    if edit.change is Change.REWIND:
        return True, len(Change), 0
    calls = hang.tapes.by_rank[edit.rank].calls
    is_block = edit.change is not Change.SWAP and max(len(edit.put), edit.out) > 1
    kind = _kind(hang, edit, calls)
    # What a rank has done each time before weighs as much as the call in which it stands now.
    return is_block or kind >= STANDS_IN_KNOWN, kind, edit.out


def _kind(hang: Hang, edit: Edit, calls: Sequence[int]) -> int:
    if edit.change is Change.REPLACE:
        same = hang.roles.calls[calls[edit.at]].site == hang.roles.calls[edit.put[0]].site
        return 0 if same else 5
    if edit.change is Change.LEAVE_OUT:
        # Whoever stands in a call that is known from elsewhere may have missed another one before it.
        # Of a run of one call that ends there, any is the last.
        stop = hang.tapes.by_rank[edit.rank].stop
        last = edit.at + edit.out > stop or len({*calls[edit.at : stop + 1]}) == 1
        return STANDS_IN_KNOWN if last and _is_known(hang, edit.rank, calls[edit.at]) else 2
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
