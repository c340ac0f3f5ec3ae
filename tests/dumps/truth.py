"""Tells who waits for whom in a machine that has come to rest, and who for nobody: the truth, without any file."""

from collections.abc import Iterable, Mapping

from tests.dumps.machine import NEVER, Call, Machine

Waits = Mapping[int, frozenset[int]]


def waits_of(machine: Machine) -> Waits:
    """Return for each rank the ranks that its device waits for. A device that has stopped waits for nobody."""
    return {rank: frozenset(_waited_for(machine, rank)) for rank in machine.hosts}


def _waited_for(machine: Machine, rank: int) -> Iterable[int]:
    if rank in machine.dead or rank in machine.stalled:
        return
    for call in machine.hosts[rank].calls:
        if call.begun_us < NEVER and call.done_us == NEVER:
            yield from _missing(machine, call)


def _missing(machine: Machine, call: Call) -> Iterable[int]:
    meeting = call.meeting
    everyone_is_in = meeting.cut or meeting.at_odds
    for member in meeting.members:
        if member != call.rank and (everyone_is_in or member not in meeting.begun or member in machine.dead):
            yield member


def roots_of(waits: Waits) -> frozenset[int]:
    """Return the ranks that wait for nobody."""
    return frozenset(rank for rank, others in waits.items() if not others)


def reach(waits: Waits, rank: int) -> frozenset[int]:
    """Return the ranks that a rank waits for, directly or through others."""
    found: set[int] = set()
    queue = [rank]
    while queue:
        for other in waits[queue.pop()]:
            if other not in found:
                found.add(other)
                queue.append(other)
    return frozenset(found)


def circles_of(waits: Waits) -> tuple[frozenset[int], ...]:
    """Return the sets of ranks that wait for each other and for nobody else."""
    reached = {rank: reach(waits, rank) for rank in waits}
    found = {
        reached[rank]
        for rank in waits
        if rank in reached[rank] and all(reached[other] == reached[rank] for other in reached[rank])
    }
    return tuple(sorted(found, key=sorted))
