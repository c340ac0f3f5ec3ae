"""Holds the roots of a hang as data: in what waits end, who is in it, and how certain each part of that is.

A root says what is so. It names no cause, and has no sentence: that is for the rules.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, NamedTuple

from ncclwatch.contract.model.devices import SharedDevice
from ncclwatch.contract.model.job import QuietNode, WaitClass
from ncclwatch.contract.model.rank import OpView, SourceNote
from ncclwatch.contract.model.verdict import Certainty, Lateness
from ncclwatch_server.judge.theory.circles import Circle
from ncclwatch_server.judge.theory.ends.causes import Ends
from ncclwatch_server.judge.theory.histories.forwards import OneSided
from ncclwatch_server.judge.theory.histories.odd_side import Side
from ncclwatch_server.judge.theory.histories.own_calls import OwnCall
from ncclwatch_server.judge.theory.histories.parting import Parting
from ncclwatch_server.judge.theory.histories.skipped_calls import Shift
from ncclwatch_server.judge.theory.histories.stretches import Overlong
from ncclwatch_server.judge.theory.stillness import Stillness
from ncclwatch_server.judge.theory.waits.made_groups import Unequal
from ncclwatch_server.judge.theory.waits.rank_standing import Block, Operation

ROOTS_ALIKE_MAX = 8  # roots at the same lines that are looked at; the ranks of more are named as victims


class RootKind(Enum):
    """In what waits can end. Nothing else keeps a job from going on."""

    REFUSED = "refused"  # a library makes no group of ranks that share a device
    STOPPED = "stopped"  # ranks are still in an operation that others have completed
    MISMATCH = "mismatch"  # members entered one collective with different signatures
    GONE = "gone"  # ranks have ended
    ALONE = "alone"  # ranks are in a call of their own, or one too many, and the others have left without it
    DESTROYED = "destroyed"  # a member took the group down without coming to the operation
    NAMED_APART = "named apart"  # ranks made different groups under one name, and wait in those
    CIRCLE = "circle"  # ranks wait for each other
    SCATTERED = "scattered"  # ranks look for each other at different addresses
    LEFT_BEHIND = "left behind"  # ranks wait in a rendezvous that others have left
    LOST_NODES = "lost nodes"  # the nodes of the ranks that are waited for report no more
    UNSEEN = "unseen"  # nobody has ever heard of the ranks that are waited for
    OUTSIDE = "outside"  # ranks that are waited for stand still in no operation
    LATE = "late"  # ranks that are waited for are in no operation, and work
    INSIDE = "inside"  # all members are in the operation, and it does not end
    LINGERING = "lingering"  # ranks that nobody waits for stand still, and the others have ended
    UNTOLD = "untold"  # all members that are known are in it, and others are not known


class Stay(Enum):
    """In what a rank stands that neither trains nor ends, the one that tells most first."""

    EXIT_HANDLERS = "exit handlers"  # its program is over
    THREADS = "threads"  # it is over, and another thread is not
    FILES = "files"  # it asks again and again whether a file is there
    PROGRAM = "program"  # somewhere


class Place(NamedTuple):
    """The operation by which a hang is told."""

    group: str = ""
    seq: int = 0
    op: str = ""


NOWHERE = Place()


def place_of(blocks: Iterable[Block]) -> Place:
    """Return the operation of the first of several waits."""
    first = next(iter(blocks), None)
    return Place(first.operation.group, first.operation.seq, first.wait.op.value) if first is not None else NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """Where waits end. `hangs` says how certain it is that they do not end by themselves."""

    kind: ClassVar[RootKind]
    hangs: Certainty
    ranks: tuple[int, ...]  # in whom the waits end; of a mismatch or a circle those who made it, as far as is known
    decided: bool = True  # whether it is all of these ranks, rather than one of them
    victims: tuple[int, ...] = ()
    blocks: tuple[Block, ...] = ()  # the waits that show it
    place: Place = NOWHERE
    onset_s: float = 0.0  # for how long it has held
    others_alike: tuple[int, ...] = ()  # ranks of more roots at the same lines, at which nobody has looked


Found = Sequence[Sequence[Root]]  # those of one sequence are told together


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRoot(Root):
    """Ranks that share a device, of which a library has said that it makes no group of them."""

    kind = RootKind.REFUSED
    devices: tuple[SharedDevice, ...]  # as it said


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedRoot(Root):
    """Ranks that are still in an operation which others have completed: no rank holds them up there.

    `blocks` are the waits of the others.
    """

    kind = RootKind.STOPPED
    still_in: tuple[Block, ...]  # of each of these ranks
    through: tuple[int, ...]  # who has completed it; () where nobody else is a member


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchRoot(Root):
    """A collective that members entered with different signatures."""

    kind = RootKind.MISMATCH
    operation: Operation
    sides: tuple[Side, ...]
    partings: tuple[Parting, ...]  # of the sides that parted from the others in one way; never empty
    forward: OneSided | None  # of a module, that only one side is in
    through: tuple[int, ...] = ()  # who has come through its part and gone on, as a root may that only sends
    then: Operation | None = None  # the next one of its group, which all members have entered and which does not end


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneRoot(Root):
    """Ranks that have ended, not because of others."""

    kind = RootKind.GONE
    ends: Ends
    counts: Mapping[int, int] | None = None  # batches drawn by rank, where these ranks ran out of them and left
    short: tuple[int, ...] = ()  # who ran out of them as well, and waits in a call after the loop
    shift: Shift | None = None  # the call that they left out before, and so came to their end too early
    waiters: tuple[int, ...] = ()  # who waits in an operation with them, or lost them: theirs may be a call too many
    of_keys: bool = False  # all who wait for them wait for keys of the store, which anyone could have set


@dataclass(frozen=True, slots=True, kw_only=True)
class AloneRoot(Root):
    """Ranks in a call that is one too many: the others have ended well, or taken the group down, without it."""

    kind = RootKind.ALONE
    left: tuple[int, ...]  # the others
    ended: bool  # they have ended, rather than destroyed the group
    call: OwnCall | None  # that only these ranks make; None: they made another one too often before, or drew more
    shift: Shift | None  # that one
    counts: Mapping[int, int] | None  # batches drawn by rank, where most ranks ran out of them


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyedRoot(Root):
    """Ranks that have destroyed a group whose other members wait in it."""

    kind = RootKind.DESTROYED
    counts: Mapping[int, int] | None  # batches drawn by rank, where these ranks ran out of them
    waiters: tuple[int, ...]  # who waits in the group, where nothing tells why these left: they may be wrong as well
    note: SourceNote | None  # of the frame by which only the rank that destroyed the group comes to where it waits now


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedApartRoot(Root):
    """Ranks that have made different groups under one name, as one side made one more, and wait in those."""

    kind = RootKind.NAMED_APART
    unequal: Unequal
    note: SourceNote | None  # of the frame by which only some ranks come to where that group is made


@dataclass(frozen=True, slots=True, kw_only=True)
class CircleRoot(Root):
    """Ranks that wait for each other."""

    kind = RootKind.CIRCLE
    circle: Circle


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatteredRoot(Root):
    """Ranks that look for each other at different addresses."""

    kind = RootKind.SCATTERED
    addresses: Mapping[str, tuple[int, ...]]  # and who looks there, the most common one first


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehindRoot(Root):
    """Ranks that stand still in a rendezvous that others have gone on from."""

    kind = RootKind.LEFT_BEHIND
    gone_on: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LostNodesRoot(Root):
    """Ranks on nodes that report no more, and that have not come to the others since."""

    kind = RootKind.LOST_NODES
    nodes: tuple[QuietNode, ...]  # of which the server knows the same
    alone: str  # the server's own host, if no other one reports
    echoes: tuple[int, ...] = ()  # ranks that ended for the loss of a peer, the first one first; () where others wait
    in_doubt: bool = False  # their agents may be lost alone, and others may wait for ranks that work


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenRoot(Root):
    """Ranks that are waited for, and that nobody has ever seen."""

    kind = RootKind.UNSEEN
    one_node: bool  # whether the whole job is on the node of those who wait
    met: OpView | None = None  # the last collective that these took part in, though nobody reports for them


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideRoot(Root):
    """Ranks in no operation that stand still, all in the same trouble."""

    kind = RootKind.OUTSIDE
    still: Stillness  # of the first of them
    waited: WaitClass | None
    may_wait: bool  # for a rank of another root, by means that nobody records
    shift: Shift | None = None  # the call that they left out, or made too often, before they came to stand here


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRoot(Root):
    """Ranks in no operation that work, or have not stood still for long."""

    kind = RootKind.LATE
    still_s: float
    waited: WaitClass | None
    lateness: Lateness
    left_s: float  # until the first wait is given up
    timeout_s: float  # 0: unknown
    overlong: Overlong | None = None  # of the first of them, where each computes for much longer than the others did


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideRoot(Root):
    """An operation that all members have entered alike, and in which nothing moves."""

    kind = RootKind.INSIDE
    by_files: bool  # whether nobody saw the hosts of these ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class LingeringRoot(Root):
    """Ranks that neither train nor end, when the others have ended well."""

    kind = RootKind.LINGERING
    still_s: float
    ended: tuple[int, ...]  # the others
    stay: Stay
    beside: tuple[int, ...]  # ranks that stand still as well, in something that tells less


@dataclass(frozen=True, slots=True, kw_only=True)
class UntoldRoot(Root):
    """An operation that all members which are known have entered, where others belong to the group."""

    kind = RootKind.UNTOLD
    operation: Operation
    untold: tuple[int, ...]  # members of whom it is not known whether they have entered
    long: bool
    over: bool  # the job is over, and its files are all that will ever be known
