"""Finds the smallest edits after which a replay passes every recorded wait.

Edits are compared by their number, then by how many pairs of ranks still disagree, then by how often ranks still break
their own routine. Comparing is cheap and replaying is not, so edits are replayed in that order, and a rank is left out
whose best possible edit would not be good enough.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from ncclwatch.contract.model.rank import Op
from ncclwatch_server.judge.theory.repair.batches import odd_ranks
from ncclwatch_server.judge.theory.repair.cuts import Counts, cut, first_cut
from ncclwatch_server.judge.theory.repair.edits import Change, Departures, Edit, departures, edits
from ncclwatch_server.judge.theory.repair.peers import Peers, Roles
from ncclwatch_server.judge.theory.repair.replay import Outcome, Script, Stage, play
from ncclwatch_server.judge.theory.repair.tapes import End, Tape, Tapes, without_start

Score = tuple[int, int, int]  # calls to change, pairs of ranks that disagree, calls against a rank's own routine
REPLAYS_MAX = 400  # for each rank


class Failure(Enum):
    """Why there is no answer."""

    MOVING = "nobody waits for ever"
    INCOMPLETE = "the histories do not lead to the state that was observed"
    UNEXPLAINED = "no change to one rank ends the hang"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """An edit after which the job goes on."""

    edit: Edit
    score: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Repairs:
    """The best edits of one job, at most one for each rank; with several it is one of these ranks."""

    hang: "Hang"
    best: tuple[Repair, ...] = ()
    by_batches: bool = False  # others are as good, but drew as many batches as the rest
    failure: Failure | None = None


class Hang:
    """A job that hangs, prepared for replays with edits."""

    def __init__(self, tapes: Tapes) -> None:
        counts = Counts(tapes)
        self.is_whole = counts.is_whole
        start = first_cut(counts)
        tapes = without_start(tapes, start or dict.fromkeys(tapes.by_rank, 0))
        self.roles = Roles(tapes)
        self.tapes = tapes
        self.peers = Peers(self.roles)
        self.departed = {rank: departures(self.peers, rank) for rank in tapes.by_rank}
        self.stage = Stage(Tapes(
            calls=self.roles.calls, groups=tapes.groups, by_rank=tapes.by_rank, unseen=tapes.unseen,
            on_device=tapes.on_device,
        ))  # fmt: skip
        self.breaks = sum(each.breaks for each in self.departed.values())
        self.replays = 0
        self.failure: Failure | None = Failure.INCOMPLETE
        self.cut: Mapping[int, int] = {}
        self.outcome: Outcome | None = None
        self.eager = True
        if start is not None:
            self._begin()

    def _begin(self) -> None:
        first = {rank: min(each.places, default=0) for rank, each in self.departed.items()}
        found = cut(Counts(self.tapes), first)
        if found is None:
            return
        self.cut = found
        wanted = [max(tape.stop - found[rank], 0) for rank, tape in self.tapes.by_rank.items()]
        for self.eager in (True, False):
            outcome = play(self.stage, list(self.scripts.values()), eager=self.eager)
            if list(outcome.at) == wanted:
                self.outcome = outcome
                self.failure = None if outcome.stuck else Failure.MOVING
                return

    @cached_property
    def scripts(self) -> dict[int, Script]:
        """What each rank did from the cut on."""
        return {rank: self._script(tape, tape.calls, tape.end, 0) for rank, tape in self.tapes.by_rank.items()}

    def _script(self, tape: Tape, calls: Sequence[int], end: End, moved: int) -> Script:
        late = -1
        if tape.stop < len(tape.calls) and not self.roles.calls[tape.calls[tape.stop]].waits and moved >= 0:
            late = tape.stop - self.cut[tape.rank] + moved
        return Script(calls[self.cut[tape.rank] :], end, late)

    def script_with(self, edit: Edit) -> Script:
        """Return what the rank of an edit does with it."""
        tape = self.tapes.by_rank[edit.rank]
        calls, end = edit.apply(tape)
        moved = len(edit.put) - edit.out if not edit.at <= tape.stop < edit.at + edit.out else -1
        return self._script(tape, calls, end, moved)

    def passes(self, *changes: Edit) -> bool:
        """Say whether a job with some edits passes every recorded wait."""
        self.replays += 1
        scripts = {**self.scripts, **{edit.rank: self.script_with(edit) for edit in changes}}
        return not play(self.stage, list(scripts.values()), eager=self.eager).stuck

    def candidates(self) -> tuple[int, ...]:
        """Return the ranks that wait for ever, and those that they wait for."""
        ranks = list(self.tapes.by_rank)
        stuck = self.outcome.stuck if self.outcome is not None else frozenset()
        found = {ranks[actor] for actor in stuck}
        for rank in tuple(found):
            tape = self.tapes.by_rank[rank]
            call = self.roles.calls[tape.calls[tape.stop]]
            found |= {call.peer} if call.op.is_p2p and call.peer >= 0 else set(self.tapes.groups.get(call.group, ()))
        return tuple(rank for rank in ranks if rank in found)

    def wanted_of(self, rank: int) -> tuple[int, ...]:
        """Return the parts of a rank in what others wait for."""
        found = []
        for other, tape in self.tapes.by_rank.items():
            if other == rank or tape.stop >= len(tape.calls) or tape.end is not End.BLOCKED:
                continue
            call = self.roles.calls[tape.calls[tape.stop]]
            if call.op.is_p2p and call.peer == rank:
                op = Op.RECV if call.op is Op.SEND else Op.SEND
                found += [
                    number
                    for number in sorted(set(self.tapes.by_rank[rank].calls))
                    if (each := self.roles.calls[number]).op is op and (each.group, each.peer) == (call.group, other)
                ]
            elif not call.op.is_p2p and rank in self.tapes.groups.get(call.group, ()):
                found.append(tape.calls[tape.stop])
        return tuple(dict.fromkeys(found))

    def score(self, edit: Edit) -> Score:
        """Return how well an edit explains what was seen; less is better."""
        found = self.departed[edit.rank]
        stands = found.tape.end in (End.STANDS, End.FAILED) and edit.change is Change.COME_BACK
        weight = 0 if stands else 1
        calls, end = edit.apply(found.tape)
        stop = len(calls) - max(len(found.tape.calls) - found.tape.stop - 1, 0)
        broken = len(self.peers.alone_in(edit.rank, calls, found.routine.breaks(calls, found.since, stop)))
        pairs = self.peers.disagreements(edit.rank, calls, end, min(edit.at, len(found.tape.calls)))
        return weight, pairs, self.breaks - found.breaks + broken

    def size_of(self, edit: Edit) -> tuple[bool, int, int]:
        """Return how much an edit supposes; of several edits of one rank that explain as much, the smallest is told."""
        if edit.change is Change.REWIND:
            return True, len(Change), 0
        calls = self.tapes.by_rank[edit.rank].calls
        is_block = edit.change is not Change.SWAP and max(len(edit.put), edit.out) > 1
        return is_block, self._kind(edit, calls), edit.out

    def _kind(self, edit: Edit, calls: Sequence[int]) -> int:
        if edit.change is Change.REPLACE:
            same = self.roles.calls[calls[edit.at]].site == self.roles.calls[edit.put[0]].site
            return 0 if same else 5
        if edit.change is Change.LEAVE_OUT:
            # Whoever stands in a call that is known from elsewhere may have missed another one before it.
            last = edit.at + edit.out > self.tapes.by_rank[edit.rank].stop
            return 4 if last and self._is_known(edit.rank, calls[edit.at]) else 2
        return {Change.SWAP: 1, Change.PUT_IN: 3}.get(edit.change, 0)

    def _is_known(self, rank: int, number: int) -> bool:
        """Say whether anybody has made a call apart from the last one of this rank."""
        site = self.roles.calls[number].site
        own = self.tapes.by_rank[rank]
        if number in own.calls[: own.stop]:
            return True
        return any(
            self.roles.calls[call].site == site
            for ranks in self.peers.classes
            for call in set(self.tapes.by_rank[ranks[0]].calls)
            if rank not in ranks
        )

    def bound(self, rank: int) -> Score:
        """Return the best score that any edit of a rank could have."""
        found = self.departed[rank]
        weight = 0 if found.tape.end in (End.STANDS, End.FAILED) else 1
        own = self.peers.disagreeing[self.peers.class_of[rank]]
        return weight, self.peers.total - own, self.breaks - found.breaks

    def repair_of(self, rank: int, best: Score | None) -> Repair | None:
        """Return the best edit of a rank that is a repair and no worse than `best`."""
        found: Departures = self.departed[rank]
        scored = {}
        for edit in edits(self.roles, found, self.wanted_of(rank)):
            if edit not in scored:
                scored[edit] = self.score(edit)
        order = sorted(scored, key=lambda edit: (scored[edit], *self.size_of(edit), -edit.at))
        for edit in order[:REPLAYS_MAX]:
            if best is not None and scored[edit] > best:
                return None
            if self.passes(edit):
                return Repair(edit=edit, score=scored[edit])
        return None


def search(tapes: Tapes) -> Repairs:
    """Return the smallest edits of one rank after which every recorded wait ends."""
    hang = Hang(tapes)
    if hang.failure is not None:
        return Repairs(hang=hang, failure=hang.failure)
    found: list[Repair] = []
    best: Score | None = None
    for rank in sorted(hang.candidates(), key=lambda each: (hang.bound(each), each)):
        if best is not None and hang.bound(rank) > best:
            break
        repair = hang.repair_of(rank, best)
        if repair is not None:
            best = repair.score if best is None else min(best, repair.score)
            found.append(repair)
    kept = tuple(each for each in found if each.score == best)
    odd = odd_ranks(hang.roles, hang.cut) if len(kept) > 1 else frozenset()
    narrowed = tuple(each for each in kept if each.edit.rank in odd)
    if narrowed and len(narrowed) < len(kept):
        return Repairs(hang=hang, best=narrowed, by_batches=True)
    return Repairs(hang=hang, best=kept, failure=None if kept else Failure.UNEXPLAINED)
