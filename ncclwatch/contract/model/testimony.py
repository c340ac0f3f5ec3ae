"""What a second witness says of a rank: the values of torch's Flight Recorder and of NCCL's RAS.

Both count for themselves. Their numbers are compared between ranks, never with ncclwatch's own. Sources: the
recorder's entries as torch/csrc/distributed/c10d/FlightRecorder.hpp writes them, and "RAS" in NVIDIA's NCCL User Guide;
`ncclwatch_agent.witnesses` reads both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

WITNESSED_OPS_MAX = 8  # newest operations of one group
WITNESSED_GROUPS_MAX = 64  # of one rank
COMMUNICATORS_MAX = 64  # of one node
COMM_RANKS_MAX = 4096  # of one communicator


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessedOp:
    """One collective, as torch's Flight Recorder holds it."""

    seq: int  # the recorder's own number of it in its group; the same on all members
    name: str  # in the recorder's words, without the backend: "all_reduce", "_all_gather_base"
    numel: int = 0  # elements of its inputs
    started: bool = False  # on a device; never told for gloo
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessedGroup:
    """A rank's frontier in one group by torch's Flight Recorder. 0 <= completed <= enqueued."""

    name: str  # as GroupView.name
    enqueued: int  # number of the newest collective; 0: none was ever issued
    started: int  # number of the newest that is known to have begun
    completed: int  # all up to this one are through
    pending: WitnessedOp | None = None  # the oldest that is not
    newest: tuple[WitnessedOp, ...] = ()  # newest last


@dataclass(frozen=True, slots=True, kw_only=True)
class Testimony:
    """What torch's Flight Recorder holds of one rank, or why it was not heard."""

    __test__: ClassVar[bool] = False  # pytest takes the name for a test

    rank: int
    # What ncclwatch itself had seen issued, by group, where that was the same before and after asking.
    seen: Mapping[str, int] = field(default_factory=dict)
    groups: tuple[WitnessedGroup, ...] = ()  # only those whose numbers mean the same on all members
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommRank:
    """One rank of an NCCL communicator, as RAS tells of it."""

    rank: int  # in the communicator, which is that in the group
    pid: int  # in the PID namespace of the rank itself
    launched: int  # collectives of all kinds; sends and receives are not counted
    missing: bool = False  # RAS has no news of it, so `launched` says nothing
    dead: bool = False  # and has given it up


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """One NCCL communicator, as RAS tells of it."""

    size: int
    ranks: tuple[CommRank, ...]
