"""Finds lines that are one call in two branches, such as `if rank == 0: broadcast(...)` and `else: broadcast(...)`.

Ranks that go different ways by design meet in calls of different lines, with the same arguments, again and again. No
rank uses both lines. Such lines count as one where ranks are compared.
"""

from collections.abc import Mapping

from ncclwatch.contract.model.rank import CallSite
from ncclwatch_server.judge.theory.repair.tapes import Call, Tapes

Place = tuple[CallSite | None, tuple[CallSite, ...]]  # a line, and who called its function
MEETINGS_MIN = 2  # that make two lines one; one is enough where the ranks then go on in the same line


def one_of_two(tapes: Tapes) -> Mapping[Place, Place]:
    """Return for each line that is the other branch of one the line that stands for both."""
    users: dict[Place, set[int]] | None = None
    found: dict[Place, Place] = {}
    for pair, met in _meetings(tapes).items():
        if users is None:
            users = _users(tapes)
        one, other = (found.get(place, place) for place in pair)
        if one != other and met >= MEETINGS_MIN and users[one].isdisjoint(users[other]):
            users[one] |= users.pop(other)
            found = {place: one if stands == other else stands for place, stands in found.items()} | {other: one}
    return found


def place_of(call: Call) -> Place:
    """Return where a call is made."""
    return call.site, call.way


def _users(tapes: Tapes) -> dict[Place, set[int]]:
    found: dict[Place, set[int]] = {}
    for rank, tape in tapes.by_rank.items():
        for number in set(tape.calls):
            found.setdefault(place_of(tapes.calls[number]), set()).add(rank)
    return found


def _meetings(tapes: Tapes) -> Mapping[tuple[Place, Place], int]:
    """Return how often calls of two lines with the same arguments met; one after which ranks agree counts twice."""
    found: dict[tuple[Place, Place], int] = {}
    for rows in _rows(tapes).values():
        (first, lead), *others = rows
        for begin, row in dict.fromkeys(others):
            ahead = lead[max(begin - first, 0) :]
            behind = row[max(first - begin, 0) :]
            if ahead[: len(behind)] == behind[: len(ahead)]:
                continue
            for at, (mine, theirs) in enumerate(zip(ahead, behind, strict=False)):
                if mine != theirs and (pair := _branches(tapes.calls[mine], tapes.calls[theirs])):
                    goes_on = ahead[at + 1 : at + 2] == behind[at + 1 : at + 2] != ()
                    found[pair] = found.get(pair, 0) + 1 + goes_on
    return found


def _branches(one: Call, other: Call) -> tuple[Place, Place] | None:
    """Return the lines of two calls that have the same arguments, in a fixed order; None: they are not alike."""
    mine, theirs = place_of(one), place_of(other)
    alike = (one.op, one.peer, one.numel, one.dtype, one.reduce_op) == (
        other.op, other.peer, other.numel, other.dtype, other.reduce_op,
    )  # fmt: skip
    if not alike or mine == theirs or one.site is None or other.site is None:
        return None
    return (mine, theirs) if str(mine) < str(theirs) else (theirs, mine)


def _rows(tapes: Tapes) -> Mapping[str, list[tuple[int, tuple[int, ...]]]]:
    """Return for each group the first number and the collectives of each member that has any."""
    found: dict[str, list[tuple[int, tuple[int, ...]]]] = {}
    groups = [call.group if not call.op.is_p2p else "" for call in tapes.calls]
    for tape in tapes.by_rank.values():
        rows: dict[str, list[int]] = {}
        first: dict[str, int] = {}
        for at, number in enumerate(tape.calls):
            group = groups[number]
            if group:
                rows.setdefault(group, []).append(number)
                first.setdefault(group, tape.seqs[at])
        for group, row in rows.items():
            found.setdefault(group, []).append((first[group], tuple(row)))
    return found
