"""Lists the small changes to one rank's tape that could have kept a job going.

Changes are tried where a rank may have departed: where it parted from a peer, where it broke its own routine, and where
it stands now. What is put in comes from its own routine, from its peers, or from what others wait for.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ncclwatch_server.judge.theory.repair.peers import Peers, Roles
from ncclwatch_server.judge.theory.repair.routine import CONTEXT, Routine
from ncclwatch_server.judge.theory.repair.tapes import End, Tape

BLOCK_MAX = 64  # calls that one edit leaves out or puts in: an iteration, or a branch
BLOCKS_MAX = 2  # such blocks for each place and peer
NEAR_MAX = 64  # calls back from where a rank stands in which a broken routine counts
BREAKS_MAX = 3  # places of broken routine that are tried
SPOTS_MAX = 3  # ways in which a rank went on before from the same point
PEERS_MAX = 8  # classes of peers whose tapes are taken from


class Change(Enum):
    """What an edit does to the tape of a rank."""

    COME_BACK = "come back"  # it goes on from where it stands or has ended
    LEAVE_OUT = "leave out"  # calls that are one too many
    PUT_IN = "put in"  # calls that are missing
    REPLACE = "replace"  # one call by another one
    SWAP = "swap"  # a call and the next one
    REWIND = "rewind"  # it has not come there yet: it left a loop early, or went another way


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One change to the tape of one rank: `out` calls from index `at` on make room for `put`."""

    rank: int
    change: Change
    at: int
    out: int = 0
    put: tuple[int, ...] = ()  # numbers of calls

    def apply(self, tape: Tape) -> tuple[Sequence[int], End]:
        """Return the calls of the tape with this edit, and what comes after them."""
        calls = tape.calls[: self.at] + self.put + tape.calls[self.at + self.out :]
        free = self.change in (Change.COME_BACK, Change.REWIND)
        return calls, End.FREE if free else tape.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Departures:
    """Where a rank may have departed, and what it did before."""

    tape: Tape
    places: tuple[int, ...]  # indices of its tape, ascending
    turns: frozenset[int]  # those at which it may have gone another way
    since: int  # index up to which its past is known to be good, as far as anybody can say
    routine: Routine
    breaks: int  # how often it breaks its routine from `since` on
    off_beat: int  # how many of its calls come too early or too late from there on
    aligned: tuple[tuple[int, int, int], ...] = field(default=())  # (own index, rank, index of that rank's tape)


def departures(peers: Peers, rank: int) -> Departures:
    """Return where a rank may have departed."""
    tape = peers.roles.tapes.by_rank[rank]
    own = peers.class_of[rank]
    stop = tape.stop
    aligned: list[tuple[int, int, int]] = []
    for other, ranks in enumerate(peers.classes):
        place = peers.partings.get((own, other))
        if place is not None and len(aligned) < PEERS_MAX:
            aligned.append((place, ranks[0], peers.partings[other, own]))
    near = max(stop - NEAR_MAX, stop // 2)
    routine = Routine(tape.calls[:near], peers.roles.line)
    broken = routine.breaks(tape.calls, near, stop)[-BREAKS_MAX:]
    turns = {place for place, _, _ in aligned} | {*broken, stop}
    places = turns | {at - 1 for at in (*broken, stop)}
    found = tuple(sorted(place for place in places if 0 <= place <= len(tape.calls)))
    since = max(found[0] - 1, 0) if found else 0
    if since < near:
        routine = Routine(tape.calls[:since], peers.roles.line)
    else:
        routine.learn(tape.calls, since)
    breaks = len(peers.alone_in(rank, tape.calls, routine.breaks(tape.calls, since, stop + 1)))
    return Departures(
        tape=tape, places=found, turns=frozenset(turns), since=since, routine=routine, breaks=breaks,
        off_beat=routine.off_beat(tape.calls, since, stop + 1),
        aligned=tuple(aligned),
    )  # fmt: skip


def edits(roles: Roles, found: Departures, wanted: Iterable[int]) -> Iterator[Edit]:
    """Yield the changes to one rank's tape. `wanted` are its parts of what others wait for."""
    tape = found.tape
    rank, calls, stop = tape.rank, tape.calls, tape.stop
    if tape.end is not End.BLOCKED and stop == len(calls):
        yield Edit(rank=rank, change=Change.COME_BACK, at=stop)
    for place in found.places:
        expected = _expected(roles, found, place, wanted)
        if place < len(calls):
            if place in found.turns and len(calls) - place <= BLOCK_MAX:
                yield Edit(rank=rank, change=Change.REWIND, at=place, out=len(calls) - place)
            yield from _without(roles, found, place)
            yield from _replaced(roles, found, place, expected)
            if place + 1 < len(calls) and calls[place] != calls[place + 1]:
                yield Edit(
                    rank=rank, change=Change.SWAP, at=place, out=2, put=(calls[place + 1], calls[place])
                )  # fmt: skip
        for call in expected:
            yield Edit(rank=rank, change=Change.PUT_IN, at=place, put=(call,))
        for block in _blocks(roles, found, place):
            yield Edit(rank=rank, change=Change.PUT_IN, at=place, put=block)


def _expected(roles: Roles, found: Departures, place: int, wanted: Iterable[int]) -> tuple[int, ...]:
    """Return what a rank could have issued at a place: by its routine, by its peers, or what others wait for."""
    calls = found.tape.calls
    usual = found.routine.usual(calls[:place])
    own = sorted(usual, key=lambda call: -usual[call])[:4]
    theirs = []
    for at, peer, there in found.aligned:
        made = roles.tapes.by_rank[peer].calls
        if at == place and there < len(made):
            theirs.append(roles.as_made_by(found.tape.rank, peer, made[there]))
    return tuple(dict.fromkeys((*own, *(call for call in theirs if call is not None), *wanted)))


def _replaced(roles: Roles, found: Departures, place: int, expected: Iterable[int]) -> Iterator[Edit]:
    """Yield edits that replace a call, also by what this rank issues at the same line otherwise."""
    rank, made = found.tape.rank, found.tape.calls[place]
    site = roles.calls[made].site
    same_line = [call for call in sorted(found.routine.made) if site is not None and roles.calls[call].site == site]
    for call in dict.fromkeys((*expected, *same_line)):
        if call != made:
            yield Edit(rank=rank, change=Change.REPLACE, at=place, out=1, put=(call,))


def _without(roles: Roles, found: Departures, place: int) -> Iterator[Edit]:
    """Yield edits that leave out one call, or a block after which the rank is where it should have been."""
    rank, calls = found.tape.rank, found.tape.calls
    yield Edit(rank=rank, change=Change.LEAVE_OUT, at=place, out=1)
    usual = found.routine.usual(calls[:place])
    goals = [{roles.role(rank, call) for call in usual}] if usual else []
    for at, peer, there in found.aligned:
        made = roles.tapes.by_rank[peer].calls
        if at == place and there < len(made):
            goals.append({roles.role(peer, made[there])})
    for goal in goals:
        left = BLOCKS_MAX
        for out in range(2, min(BLOCK_MAX, len(calls) - place - 1) + 1):
            if left and roles.role(rank, calls[place + out]) in goal:
                left -= 1
                yield Edit(rank=rank, change=Change.LEAVE_OUT, at=place, out=out)


def _blocks(roles: Roles, found: Departures, place: int) -> Iterator[tuple[int, ...]]:
    """Yield blocks of calls that end where the rank went on: an iteration or a branch that is missing."""
    rank, calls = found.tape.rank, found.tape.calls
    if place >= len(calls):
        return
    next_role = roles.role(rank, calls[place])
    for at, peer, there in found.aligned:
        if at == place:
            theirs = roles.tapes.by_rank[peer].calls
            roles_there = [roles.role(peer, call) for call in theirs[there : there + BLOCK_MAX]]
            for size in _places_of(next_role, roles_there):
                block = [roles.as_made_by(rank, peer, call) for call in theirs[there : there + size]]
                kept = tuple(call for call in block if call is not None)
                if kept:
                    yield kept
    before = calls[max(place - CONTEXT, 0) : place]
    for spot in _last_spots(calls, before, found.since):
        for size in _places_of(calls[place], calls[spot : min(spot + BLOCK_MAX, found.since)]):
            yield calls[spot : spot + size]


def _places_of(wanted: int, among: Sequence[int]) -> list[int]:
    """Return the first indices, but for 0, of a value."""
    return [at for at in range(1, len(among)) if among[at] == wanted][:BLOCKS_MAX]


def _last_spots(calls: Sequence[int], before: Sequence[int], since: int) -> list[int]:
    """Return the last indices in calls[:since] that follow the calls of a context, one for each call that came then.

    After a loop over batches comes another turn nearly always, and the evaluation once in many times.
    """
    width = len(before)
    found: dict[int, int] = {}
    for at in range(since - 1, width - 1, -1):
        if calls[at] not in found and calls[at - width : at] == before:
            found[calls[at]] = at
            if len(found) == SPOTS_MAX:
                break
    return list(found.values())
