"""What the judge gets to see of one job at one moment: its ranks, and what it did before."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ncclwatch.contract.model.devices import SharedDevice
from ncclwatch.contract.model.phases import Phase
from ncclwatch.contract.model.preflight import Setup
from ncclwatch.contract.model.rank import RankView, StackDump
from ncclwatch.contract.model.testimony import Communicator, Testimony


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitClass:
    """Which waits of a job are alike: those that last long for the same reason."""

    phase: Phase
    op: str  # of the operation that is waited in
    size: int  # of its group: the power of two at or above it
    name: str = ""  # that the user gave to the phase, if it is OTHER


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """How long the waits of one class lasted that ended by themselves, in seconds."""

    waits: int
    longest_s: float
    bound_s: float  # beyond it a wait is longer than this job's history lets expect
    longest_still_s: float = 0.0  # the longest that an awaited rank stood still and then went on by itself
    often_still_s: float = 0.0  # for how long one stood still at least in several waits; 0: fewer are known
    timeout_s: float = 0.0  # of the default group in the run that knew the longest; 0: unknown


class Contact(str, Enum):
    """What the connection to an agent shows of a node that reports no more."""

    UNKNOWN = ""  # nothing: there was no connection of this server to it, or this system does not tell
    ACKNOWLEDGES = "acknowledges"  # the kernel of the other side takes what is sent
    MUTE = "mute"  # it acknowledges nothing of what is sent
    CLOSED = "closed"  # it has closed the connection
    REACHED = "reached"  # it acknowledges nothing to this server, and another node of the job gets an answer of it


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietNode:
    """A node whose agent reports no more."""

    host: str
    ranks: tuple[int, ...]  # that have not ended, as far as anybody knows
    silent_s: float  # since its last report
    contact: Contact = Contact.UNKNOWN
    contact_s: float = 0.0  # for how long that has been so
    reached_from: str = ""  # the host that gets an answer of it, where it is REACHED


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSnapshot:
    """One job at one moment: what the judge judges. Ranks in neither `ranks` nor `unasked` nobody has seen."""

    job: str
    world_size: int
    ranks: Mapping[int, RankView]
    stacks: Mapping[int, StackDump]
    silent: Mapping[int, float]  # ranks whose node stopped reporting, for how many seconds; 0: that have detached
    quiet_nodes: tuple[QuietNode, ...] = ()  # of those ranks, where the server can tell them apart
    cut_off_host: str = ""  # the server's own, where no other host of the job reports; "": others do, or none
    unasked: frozenset[int] = frozenset()  # ranks that an agent reports, and whose views are not among `ranks`
    absent_s: float = 0.0  # for how long the first rank has waited for ranks nobody has seen
    habits: Mapping[WaitClass, Habit] = field(default_factory=dict)  # what this job has done before
    # (group, seq) of a wait -> what the awaited ranks have done since it began
    under_way: Mapping[tuple[str, int], tuple[WaitClass, ...]] = field(default_factory=dict)
    testimonies: Mapping[int, Testimony] = field(default_factory=dict)  # of torch's Flight Recorder, where asked
    communicators: tuple[Communicator, ...] = ()  # by NCCL's RAS, where asked
    setup: Setup = field(default_factory=Setup)
    shared_devices: tuple[SharedDevice, ...] = ()  # as NCCL said in a log
