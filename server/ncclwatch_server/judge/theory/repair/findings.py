"""Says which ranks' smallest change ends a hang, at which call, by which reference, and how sure that is."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ncclwatch_server.judge.theory.histories.programs import MEETINGS_MIN
from ncclwatch_server.judge.theory.repair.edits import Change, Edit
from ncclwatch_server.judge.theory.repair.hang import Failure, Hang
from ncclwatch_server.judge.theory.repair.lines import Place, place_of
from ncclwatch_server.judge.theory.repair.search import Repair, Repairs, search
from ncclwatch_server.judge.theory.repair.tapes import Call, End, Tapes

HELD_MIN = 8  # times that a rank must have kept to a routine before a break of it alone says who is wrong


class Reference(Enum):
    """What says that a call was wrong."""

    STANDING = "standing"  # the rank stands outside of all calls, or was ended
    PEERS = "peers"
    PAST = "past"
    BATCHES = "batches"  # how many of them it drew
    NOTHING = ""  # only that the others could go on


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """One rank, and the smallest change to what it did after which the job goes on."""

    rank: int
    change: Change
    at: int  # index in its recorded history
    made: tuple[Call, ...]  # calls that it made and should not have made there
    missing: tuple[Call, ...]  # calls that it should have made there
    waits: bool  # it waits in the call that it made
    reference: Reference
    visits: int  # how often it had come to this point before; 0: its past says nothing
    held: int  # how often of these it went on as with the change
    peers: int  # how many ranks it no longer disagrees with after the change


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Who is at fault: one rank, or one of several. No suspects: no small change explains the hang.

    With `together` several suspects are at fault at once: all of a set, or all of one of several sets.
    """

    suspects: tuple[Suspect, ...] = ()
    together: tuple[tuple[int, ...], ...] = ()  # sets of ranks
    certain: bool = False
    aligned: bool = True  # False: the rings of some ranks begin elsewhere in the program, so peers compare badly
    stuck: frozenset[int] = frozenset()  # ranks that wait for ever
    failure: Failure | None = None


def find(tapes: Tapes) -> Finding:
    """Return who is at fault in a job that hangs. Whether it hangs is for the wait graph to say, and not asked here."""
    repairs = search(tapes)
    if repairs.joint:
        return _of_several(repairs)
    suspects = tuple(_suspect(repairs, repair) for repair in repairs.best)
    return Finding(
        suspects=suspects, certain=_is_certain(repairs), aligned=repairs.hang.is_aligned, stuck=repairs.hang.stuck,
        failure=repairs.failure,
    )  # fmt: skip


def _of_several(repairs: Repairs) -> Finding:
    best: dict[int, Repair] = {}
    for together in repairs.joint:
        for repair in together:
            best.setdefault(repair.edit.rank, repair)
    suspects = tuple(_suspect(repairs, best[rank]) for rank in sorted(best))
    sets = tuple(tuple(repair.edit.rank for repair in together) for together in repairs.joint)
    return Finding(suspects=suspects, together=sets, stuck=repairs.hang.stuck)


def _suspect(repairs: Repairs, repair: Repair) -> Suspect:
    hang = repairs.hang
    edit, found = repair.edit, hang.departed(repair.edit.rank)
    calls = found.tape.calls
    out = 1 if edit.change is Change.REWIND else edit.out
    usual = found.routine.usual(calls[: edit.at])
    visits, goes_on = sum(usual.values()), (*edit.put, *calls[edit.at + edit.out :])[:1]
    if edit.change in (Change.COME_BACK, Change.REWIND):
        visits, goes_on = 0, ()
    return Suspect(
        rank=edit.rank,
        change=edit.change,
        at=edit.at,
        made=tuple(hang.roles.calls[number] for number in calls[edit.at : edit.at + out]),
        missing=tuple(hang.roles.calls[number] for number in edit.put),
        waits=edit.change is Change.LEAVE_OUT and edit.at + edit.out > found.tape.stop,
        reference=Reference.BATCHES if repairs.by_batches else _reference(hang, repair),
        visits=visits,
        held=usual.get(goes_on[0], 0) if goes_on else 0,
        peers=hang.peers.total - repair.score[1],
    )


def _reference(hang: Hang, repair: Repair) -> Reference:
    _, pairs, breaks, off_beat = repair.score
    if _stands(hang, repair.edit):
        return Reference.STANDING
    if pairs < hang.peers.total and not _rivals(hang, repair):
        return Reference.PEERS
    return Reference.PAST if (breaks, off_beat) < (hang.breaks, hang.off_beat) else Reference.NOTHING


def _rivals(hang: Hang, repair: Repair) -> list[int]:
    """Return other ranks with which as many ranks would agree if they had done something else."""
    others = (other for other in sorted(hang.candidates()) if other != repair.edit.rank)
    return [other for other in others if hang.bound(other)[:2] <= repair.score[:2]]


def _stands(hang: Hang, edit: Edit) -> bool:
    return edit.change is Change.COME_BACK and hang.tapes.by_rank[edit.rank].end in (End.STANDS, End.FAILED)


def _is_certain(repairs: Repairs) -> bool:
    """Say whether it is this rank and no other: one repair, all seen, and no other rank that may be wrong instead."""
    hang = repairs.hang
    if len(repairs.best) != 1 or hang.tapes.unseen or not hang.is_aligned:
        return False
    (repair,) = repairs.best
    rank = repair.edit.rank
    _, pairs, breaks, _ = repair.score
    if pairs:
        return False  # something else is wrong, too
    if repair.edit.change is Change.REWIND:
        return False
    if _is_at_a_shared_line(hang, repair.edit):
        return False
    if _stands(hang, repair.edit):
        return True
    rivals = _rivals(hang, repair)
    found = hang.departed(rank)
    held = found.routine.held(found.tape.calls[: repair.edit.at])
    if not rivals and not _is_between_two_members(hang, repair.edit) and not _is_apart(hang, repair.edit):
        # A rank that departed before the histories begin parts from its peers where they begin.
        return hang.is_whole or held >= HELD_MIN
    if held < HELD_MIN or breaks >= hang.breaks or repair.edit.change not in (Change.PUT_IN, Change.REPLACE):
        return False
    if found.routine.always(found.tape.calls[: repair.edit.at]) != repair.edit.put[0]:
        return False  # its past does not say so either: something else has followed there, too
    if _repeats(repair.edit, found.tape.calls):
        return False  # the last pass of a loop may be shorter than those before it, as of a last accumulation
    return not any(
        each.routine.is_new(each.tape.calls, each.since, each.tape.stop + 1)
        for each in (hang.departed(other) for other in rivals)
    )


def _is_apart(hang: Hang, edit: Edit) -> bool:
    """Say whether peers are no reference for the rank of an edit: what is one program's mistake all of its ranks make.

    It shares no line with any other rank, or only ranks with a group of their own have come to the line of the edit.
    """
    calls, rank = hang.roles.calls, edit.rank
    lines = {at: {place_of(calls[number]) for number in set(tape.calls)} for at, tape in hang.tapes.by_rank.items()}
    meetings = sum(1 for number in hang.tapes.by_rank[rank].calls if not calls[number].op.is_p2p)
    if meetings > MEETINGS_MIN and all(lines[rank].isdisjoint(found) for at, found in lines.items() if at != rank):
        return True
    used = {call.group for call in hang.tapes.calls}
    others = [set(members) for name, members in hang.tapes.groups.items() if name in used and rank not in members]
    for place in {place_of(calls[number]) for number in edit.put} - lines[rank]:
        users = {at for at, found in lines.items() if place in found}
        if users and any(users <= members for members in others):
            return True
    return False


def _repeats(edit: Edit, calls: Sequence[int]) -> bool:
    """Say whether an edit puts in, once or several times, what the rank did just before or after: turns of a loop."""
    for length in range(1, len(edit.put) + 1):
        times = len(edit.put) // length
        for turn in (calls[max(edit.at - length, 0) : edit.at], calls[edit.at : edit.at + length]):
            if edit.put == tuple(turn) * times:
                return True
    return False


def _is_at_a_shared_line(hang: Hang, edit: Edit) -> bool:
    """Say whether calls of an edit, or the one in which its rank stands, lie at a line of several kinds of groups.

    Such a line calls in each of a list of groups, which peers need not all have.
    """
    tape = hang.tapes.by_rank[edit.rank]
    numbers = {*edit.put, *tape.calls[edit.at : edit.at + max(edit.out, 1)], *tape.calls[tape.stop : tape.stop + 1]}
    places = {place_of(hang.roles.calls[number]) for number in numbers}
    axes: dict[Place, set[str]] = {}
    for call in hang.roles.calls:
        if not call.op.is_p2p and place_of(call) in places:
            axes.setdefault(place_of(call), set()).add(hang.roles.axis_of.get(call.group, call.group))
    return any(len(found) > 1 for found in axes.values())


def _is_between_two_members(hang: Hang, edit: Edit) -> bool:
    """Say whether an edit takes a call out in which only one other rank is needed.

    That all others make no such call says little: these two alone may have to, and the other one may have left it out.
    """
    if edit.change not in (Change.LEAVE_OUT, Change.REWIND):
        return False
    call = hang.roles.calls[hang.tapes.by_rank[edit.rank].calls[edit.at]]
    return len(hang.tapes.groups.get(call.group, ())) < 3 or call.op.is_p2p
