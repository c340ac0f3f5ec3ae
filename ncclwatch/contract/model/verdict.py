"""What is said of a job: its cause, how certain that is, who, why, and what was seen."""

from dataclasses import dataclass
from enum import Enum

from ncclwatch.contract.model.job import WaitClass
from ncclwatch.contract.model.rank import CallSite, StackFrame
from ncclwatch.contract.model.slowness import Slowness


class Cause(str, Enum):
    """Why a job hangs. Each has a rule in the judge, with its sentences and its advice."""

    RANK_CONDITIONAL_COLLECTIVE = "rank_conditional_collective"
    UNEVEN_BATCHES = "uneven_batches"
    DIVERGENT_CONTROL_FLOW = "divergent_control_flow"
    COLLECTIVE_ORDER = "collective_order"
    P2P_DEADLOCK = "p2p_deadlock"
    SIGNATURE_MISMATCH = "signature_mismatch"
    INIT_INCOMPLETE = "init_incomplete"
    GROUP_DESTROYED = "group_destroyed"
    DATA_STALL = "data_stall"
    NODE_LOST = "node_lost"
    HOST_STALL = "host_stall"
    PROCESS_FROZEN = "process_frozen"
    SWALLOWED_EXCEPTION = "swallowed_exception"
    RANK_CRASHED = "rank_crashed"
    RANK_EXITED = "rank_exited"
    STUCK_SAVE = "stuck_save"
    CONFLICTING_SAVE = "conflicting_save"
    FAILED_SAVE = "failed_save"
    FILESYSTEM_VIEW = "filesystem_view"
    DUPLICATE_DEVICE = "duplicate_device"
    RNG_STATE_MISMATCH = "rng_state_mismatch"
    CONFIGURATION_DRIFT = "configuration_drift"
    TRANSPORT = "transport"
    STRAGGLER = "straggler"
    UNDETERMINED = "undetermined"


class Certainty(str, Enum):
    """How sure a verdict is: proof, stillness, or mere lateness."""

    PROVEN = "PROVEN"
    STALLED = "STALLED"
    LATE = "LATE"


class Severity(str, Enum):
    """Whom a verdict may wake."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class Lateness(str, Enum):
    """How bad it is that a rank which works is late."""

    NONE = ""
    UNUSUAL = "unusual"  # longer than this job has done before
    DEADLINE = "deadline"  # the group's own timeout is near

    @property
    def rank(self) -> int:
        """How far it has come: a wait is told of again when this grows."""
        return tuple(Lateness).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A rank that keeps the others waiting, and what it is doing instead."""

    rank: int
    host: str = ""
    pid: int = 0
    device: str = ""
    call_site: CallSite | None = None
    doing: str = ""
    traced: bool = False  # a debugger holds its process: somebody is looking at it


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One observed fact. `source` says who saw it: ring, proc, py-spy, source, agent, flight recorder, nccl ras."""

    source: str
    rank: int
    fact: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first place where the histories of ranks differ."""

    group: str
    seq: int
    culprit_op: str
    culprit_site: CallSite | None
    victim_op: str
    victim_site: CallSite | None
    fact: str
    culprit_source: str = ""  # the line itself, and the test of the rank it stands under; "" where nobody read it
    victim_source: str = ""
    group_title: str = ""  # as sentences call the group: "group mp", "the default group"; "": only its name is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """Lines of the user's source around a line that the verdict names."""

    site: CallSite
    lines: tuple[tuple[int, str], ...]  # (number, text), in order
    test_line: int = 0  # of the `if` that decides which ranks come to the site; 0: none is known


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairCall:
    """A call that a smallest repair leaves out or puts in."""

    op: str
    group: str = ""
    peer: int = -1  # global rank: root, or the other side of a send or receive
    site: CallSite | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """The smallest change to what one rank did after which a replay of all recorded calls passes every wait."""

    rank: int
    change: str  # "leave out", "put in", "replace", "swap", "rewind" or "come back"
    made: tuple[RepairCall, ...] = ()  # calls that it made and should not have made there
    missing: tuple[RepairCall, ...] = ()  # calls that it should have made there
    waits: bool = False  # the rank waits in the call that it made: who knows whether the others come to it later
    reference: str = ""  # what says so: "peers", "past", "batches", "standing"; "": only that the others could go on
    visits: int = 0  # how often the rank had come to this point before
    held: int = 0  # how often of these it went on as with the change
    peers: int = 0  # other ranks that ran the same code, and did as with the change


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedStack:
    """One distinct stack and the ranks that share it."""

    ranks: tuple[int, ...]
    thread: str
    frames: tuple[StackFrame, ...]  # innermost first


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiters:
    """Ranks that wait together: in one operation, at one line, for the same others."""

    ranks: tuple[int, ...]
    doing: str  # "all_reduce of gradient bucket 0", in the user's words
    group: str = ""
    seq: int = 0
    site: CallSite | None = None
    awaits: tuple[int, ...] = ()  # who has not come, as far as it was looked at; (): all are inside


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is wrong with a job, who causes it, and what to do. All texts are rendered from the fields."""

    cause: Cause
    certainty: Certainty
    severity: Severity
    summary: str
    explanation: str
    advice: str
    culprits: tuple[Culprit, ...]
    victims: tuple[int, ...]
    one_of: bool = False  # the evidence does not decide between the culprits
    predicted: bool = False  # nothing hangs yet
    about: str = ""  # which of several findings about one set of ranks this is; they are one incident each
    disputed: bool = False  # another witness says otherwise; the explanation says what
    group: str = ""
    seq: int = 0
    op: str = ""
    group_title: str = ""  # as sentences call the group: "group mp", "the default group"; "": only its name is known
    onset_s: float = 0.0  # for how long the wait has lasted when this was said
    still_s: float = 0.0  # for how long the awaited ranks have shown no sign of work; 0: they work, or unknown
    waited: WaitClass | None = None  # of a wait for ranks outside of every operation
    lateness: Lateness = Lateness.NONE
    explained: tuple[int, int] = (0, 0)  # (blocked ranks this explains, blocked ranks in all)
    first_divergence: Divergence | None = None
    repairs: tuple[Repair, ...] = ()  # one for each rank that may be the cause; (): the histories do not tell
    evidence: tuple[Evidence, ...] = ()
    waiters: tuple[Waiters, ...] = ()  # who waits for whom, of the ranks it speaks of (bounded)
    excerpts: tuple[Excerpt, ...] = ()  # source around the culprit's line and the lines at which histories differ
    slowness: Slowness | None = None  # of a job that goes on, only slower; None: it does not, or nobody measured it
