"""What is kept of one rank's record of operations, whatever file it came from.

Small enough for thousands of ranks at once: for each group the frontier and the newest operations, for each
peer the counts of send and recv. Equal signatures and call sites are one object.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ncclwatch.contract.model.rank import CallSite
from ncclwatch_server.judge.theory.histories.signatures import Signature

TAIL = 8  # newest operations kept of each group


class GroupKey(NamedTuple):
    """A process group. Names are counters of one process, so the members belong to it."""

    name: str
    members: tuple[int, ...]  # global ranks; (): this recorder does not tell


class Issued(NamedTuple):
    """One operation as a rank recorded it."""

    seq: int
    signature: Signature
    site: CallSite | None
    created_ns: int
    started: bool
    done: bool
    record: int  # running number on its rank, over all groups


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """A rank's collectives in one group. 0 <= completed <= enqueued."""

    key: GroupKey
    desc: str
    enqueued: int
    completed: int
    pending: Issued | None  # the oldest unfinished one
    tail: tuple[Issued, ...]  # the newest ones, oldest first
    whole: bool  # recorded from the first on: what is not here never was
    aligned: bool = True  # False: its numbers cannot be compared with those of other ranks
    told: bool = True  # the members are known, not guessed from who used the group
    instances: int = 1  # how often a group of this name was made


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRecord:
    """A rank's sends to, or receives from, one peer of a group. 0 <= completed <= issued."""

    key: GroupKey
    peer: int  # global rank
    sends: bool
    issued: int
    completed: int
    pending: Issued | None  # the oldest unfinished one
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One rank's record."""

    rank: int
    path: str
    source: str  # "flight recorder" or "log", for evidence
    version: str
    backend: str
    groups: Mapping[GroupKey, GroupRecord]
    pairs: tuple[PairRecord, ...] = ()
    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of all groups of this rank, by name
    # (enqueued, completed) by name of groups without entries, as far as the recorder's own counters can be trusted
    counted: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    world: tuple[int, ...] = ()  # members of the default group, if told
    whole: bool = True  # nothing was overwritten, or left out
    only_active: bool = False  # what is through was left out: a group without entries has nothing unfinished
    moving: bool = False  # operations had ended just before that NCCL's watchdog had not seen yet: its rank was at work
    timeout_s: float = 0.0
    newest_ns: int = 0  # newest stamp, on this rank's own clock
    written_ns: int = 0  # when the file was written, by its file system; 0: unknown
    host: str = ""

    @property
    def pending(self) -> tuple[Issued, ...]:
        """Return what this rank waits in: the oldest unfinished operation of each group and peer."""
        found = [group.pending for group in self.groups.values() if group.pending is not None]
        return (*found, *(pair.pending for pair in self.pairs if pair.pending is not None))

    @property
    def newest(self) -> tuple[GroupKey, Issued] | None:
        """Return the newest collective of all groups."""
        found = [(group.key, group.tail[-1]) for group in self.groups.values() if group.tail]
        return max(found, key=lambda each: each[1].record, default=None)
