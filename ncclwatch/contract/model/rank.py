"""The nouns of one rank: what it does, holds, waits in and has been through.

Everything here is a value. The agent builds `RankView`s out of rings and /proc, the
server judges them, and a `Verdict` is what people and machines read in the end.
Durations are ages in seconds, measured on the machine that owns the clock.
"""

from dataclasses import dataclass
from enum import Enum

from ncclwatch.contract.model.devices import DeviceView
from ncclwatch.contract.model.phases import Phase

UNTOLD = "?"  # a part of a signature that a recorder leaves out: it agrees with whatever another one tells
UNTOLD_RANK = -2
# System calls in which a thread may wait for a process that it has started.
FOR_CHILDREN = frozenset("wait4 waitid read poll ppoll select pselect6 epoll_wait epoll_pwait".split())
OF_STANDARD_INPUT = "of standard input"  # in a place in the kernel: after the name of the call that waits for it


class Op(str, Enum):
    """A communication operation, by the name users type."""

    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    ALL_GATHER = "all_gather"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BARRIER = "barrier"
    MONITORED_BARRIER = "monitored_barrier"
    SEND = "send"
    RECV = "recv"
    UNKNOWN = "unknown"

    is_p2p: bool  # whether this involves two ranks only and has its own sequence numbers

    def __init__(self, name: str) -> None:
        """Note once what is asked of each operation of each history."""
        self.is_p2p = name in ("send", "recv")


class WaitKind(str, Enum):
    """What a thread of a rank is inside of, as far as the rank itself recorded it."""

    COLLECTIVE = "collective"
    SEND = "send"
    RECV = "recv"
    STORE = "store"
    INIT = "init"
    NEW_GROUP = "new_group"
    DESTROY = "destroy"
    BACKWARD = "backward"  # in the autograd engine; blocked only if a work of this rank is unfinished
    DATA = "data"  # in a DataLoader's next()
    SAVE = "save"
    LOCK = "lock"  # of a file, that a process of this node holds; seen by the agent, never recorded by the rank

    @property
    def needs_peers(self) -> bool:
        """Whether only other ranks can end it."""
        return self not in (WaitKind.DATA, WaitKind.SAVE, WaitKind.BACKWARD)


class ProcessState(str, Enum):
    """What the kernel says of a process."""

    RUNNING = "running"
    SLEEPING = "sleeping"
    DISK_WAIT = "disk_wait"  # state D: uninterruptible
    STOPPED = "stopped"  # state T: SIGSTOP or a job-control stop
    TRACED = "traced"  # state t: a debugger holds it
    ZOMBIE = "zombie"
    GONE = "gone"
    UNKNOWN = "unknown"  # nobody could look; never a synonym of healthy or of dead


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    """A line of the user's own code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.place} in {self.function}()"

    @property
    def place(self) -> str:
        """The line alone, for headlines: "train.py:44"."""
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}"


class GradMode(str, Enum):
    """Whether gradients are recorded where a module runs."""

    UNKNOWN = ""
    GRAD = "grad"
    NO_GRAD = "no_grad"
    INFERENCE = "inference_mode"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleView:
    """A module of a model that makes collectives in its forward."""

    root: str  # what the program calls the model: "codec"
    path: str  # of the module in it: "encoder.layers.3.norm"; "" for the model itself; a * stands for any number
    kind: str  # its class
    training: bool  # train() or eval()
    grad: GradMode = GradMode.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class OpView:
    """One operation that a rank issued, as its ring remembers it."""

    group: str  # name of the process group
    seq: int  # collectives and p2p count apart; >= 1
    op: Op
    dtype: str = ""  # UNTOLD: its recorder does not tell
    numel: int = 0  # elements, summed over the tensors that must agree; -1: they may differ, or are not told
    peer: int = -1  # root of a rooted collective or the other side of p2p, global rank; -1: none; UNTOLD_RANK: not told
    reduce_op: str = ""  # UNTOLD: its recorder does not tell
    site: CallSite | None = None
    route: int = 0  # index into RankView.routes, plus one: who called the function of `site`; 0: unknown
    module: int = 0  # index into RankView.modules, plus one: in whose forward it was made; 0: in none, or unknown
    thread: int = 0  # native thread id
    batch: int = 0  # batches drawn in the current pass of the current loader
    loader: int = 0  # index into RankView.loaders, plus one; 0: no loader yet
    forwards: int = 0  # forward passes of wrapped models (DDP, FSDP) before this
    completed: bool = False
    in_order: bool = (
        False  # issued with async_op=False, or a message waited for: what its thread issues later comes after it
    )
    number: int = 0  # running number on its rank, over all groups; 0: not told
    age_s: float = 0.0  # since it was issued
    label: str = (
        ""  # what it is for, where that is known: "gradient bucket 2 (fc.weight and 3 more)", "FSDP unit layers.3"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitView:
    """What a thread has entered and not left."""

    kind: WaitKind
    age_s: float
    group: str = ""
    seq: int = 0
    op: Op = Op.UNKNOWN
    peer: int = -1  # global rank, for p2p and rooted collectives
    site: CallSite | None = None
    route: int = 0  # as of an operation
    label: str = ""  # as of an operation
    # Who has to come to a new_group: who alone makes the group (`seq` is 0), or who will be in it. (): all ranks of
    # the default group, or not known.
    members: tuple[int, ...] = ()
    number: int = 0  # as of an operation


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadView:
    """One thread that matters: the main thread, and each that ever issued an operation."""

    tid: int
    main: bool
    issued: int  # operations this thread issued so far
    wait: WaitView | None = None
    doing: CallSite | None = None  # innermost line of the user's code
    frames: tuple[CallSite, ...] = ()  # the user's own frames, innermost first (bounded)
    leaf: str = ""  # innermost Python frame of all, "function file:line"
    calling: str = ""  # what `doing` is calling, by its last name: "item"; "" if it calls nothing or nobody can tell
    same_s: float = 0.0  # for how long the Python stack has not changed; 0: unknown or moving
    cpu_still_s: float = 0.0  # for how long the thread has used next to no CPU
    in_kernel: str = ""  # wait channel or system call, where readable
    exception: str = ""  # the exception being handled, "Type: message"; "" if none
    exception_site: CallSite | None = None
    exception_path: str = ""  # of the file that was there already, where that is what it says
    alive: bool = True
    name: str = ""  # as Python calls it; "" for threads that native code made, such as autograd's
    work: Phase | None = None  # what a framework does on its stack, where that tells
    module: ModuleView | None = None  # in whose forward it has stood still for a while


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A rank's own frontier in one process group. 0 <= completed <= enqueued."""

    name: str
    desc: str
    ranks: tuple[int, ...]  # global ranks, in group order; (): nobody knows them, for a group has members
    enqueued: int
    completed: int
    prefix_hash: int  # order-sensitive, over the signatures 1..enqueued
    pending: OpView | None = None  # the oldest unfinished operation; None also where nobody knows what is complete
    destroyed: bool = False
    runs: tuple[tuple[int, int, int], ...] = ()  # on the wire, of a big group instead of `ranks`: see `members`
    late: bool = False  # recorded from the middle on: its prefix_hash says nothing
    blind: bool = False  # nobody tells what of it is complete
    asynchronous: bool = (
        False  # a device waits for its operations, in the order of their issue, and the host runs ahead
    )
    timeout_s: float = 0.0  # after which its backend gives an operation up and the job ends; 0: unknown
    size: int = 0  # members it has; 0: as many as `ranks`, or unknown
    members_digest: int = 0  # of all of them in their order, see `members`; 0: unknown
    untold: bool = False  # nobody tells what of it was entered: `enqueued` and `completed` say nothing
    site: CallSite | None = None  # where this rank made it; None also of the default group

    @property
    def unnamed(self) -> int:
        """How many members it has besides `ranks`, at least one where these are not known at all."""
        return max(self.size - len(self.ranks), 0 if self.ranks else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerView:
    """How many p2p operations a rank issued to one peer of a group, and how many are through."""

    group: str
    peer: int  # global rank
    sends: int = 0
    sends_completed: int = 0
    recvs: int = 0
    recvs_completed: int = 0
    told: bool = False  # its backend tells what of them is through on a device, and which of them the device is in
    sending: OpView | None = None  # the send that the device is in, or will be in after what it waited for before
    receiving: OpView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderView:
    """One place in the user's code that iterates over a DataLoader."""

    site: CallSite
    passes: int  # iterations begun
    drawn: int  # batches drawn in the latest pass
    exhausted: bool  # the latest pass ended by itself
    last_drawn: int = 0  # batches of the latest pass that ended by itself
    length: int = 0  # len(loader) where it has one; of the shortest, where a loop draws from several together
    even: bool = False  # even_batches or Join keeps ranks with unequal numbers of batches together in this pass
    buckets: tuple[tuple[str, int], ...] = ()  # (data bucket, batches of it in the latest pass), the largest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a rank ended."""

    kind: str  # "exited" | "crashed" | "signalled" | "vanished" (nobody saw how)
    exit_code: int | None = None
    signal: int | None = None
    exception: str = ""  # "Type: message" of an uncaught exception
    site: CallSite | None = None  # innermost user line of that exception
    age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedWait:
    """A wait that ends by itself, of a rank's main thread or of a process that it started."""

    call: str  # the system call
    asleep: bool  # it waits for nothing but the time
    left_s: float  # until it ends, at most
    whole_s: float  # from when it began, as far as that was seen, until it ends
    child: int = 0  # pid of the process that waits; 0: the main thread itself
    awaited: bool = False  # another thread of the rank waits for processes, or for what they write


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFile:
    """A file that a rank cannot make because it is there."""

    path: str
    writer: int = 0  # pid that stands in it; 0: none, or nobody has looked
    ended: bool = False  # that process is gone, for certain


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """What the node sees of a rank's process from outside."""

    state: ProcessState
    cpu_still_s: float = 0.0  # next to no CPU, children included, for so long; 0: working or unknown
    io_still_s: float = 0.0  # no bytes read or written for so long; 0: moving or unknown
    io_unknown: bool = False  # the kernel refused /proc/<pid>/io
    in_kernel: str = ""
    lock_holder: int = 0  # pid that holds the file lock this process waits for; 0: it waits for none
    lock_path: str = ""  # of that file, where it can be found
    lock_polled_s: float = 0.0  # it has tried again and again for that lock for so long; 0: the kernel makes it wait
    stopped_child: int = 0  # pid of a process that it started, in state T; 0: none is
    killed_child: int = 0  # pid of one that a signal has ended, and that nobody has waited for; 0: none
    killed_by: int = 0  # that signal
    lock_file: LockFile | None = None  # None: the main thread handles no exception that speaks of one
    timed: TimedWait | None = None  # None: what it waits in has no end that is known
    # What the main thread may wait for, a thread or a child process, receives from a socket; or a thread sleeps.
    awaits_answer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceNote:
    """What the source text around a call site says. Read on the node that has the file."""

    site: CallSite
    text: str  # the line itself, stripped
    condition: str = ""  # nearest enclosing `if` test that mentions the rank, "" if none
    condition_line: int = 0  # where that test is; 0: there is none
    other_branch_ops: tuple[str, ...] = ()  # communication calls in the branch not taken
    branch_ops: tuple[str, ...] = ()  # communication calls in the branch that holds the site
    loop: str = ""  # head of the nearest enclosing loop
    loop_lines: tuple[int, int] = (0, 0)
    loop_escapes: tuple[str, ...] = ()  # "line: text" of conditional break/continue/return in that loop
    outer_loop: str = ""  # head of the loop round that one, in the same function
    early_exits: tuple[str, ...] = ()  # "line: text" of conditional returns above the site in its own function
    rank_exit: str = ""  # a return above the site, in its own function, that only ranks under a test can take
    handler: str = ""  # nearest enclosing `except` clause
    # (number, text) of the lines around the site and of the test's; () where the site is in a library.
    around: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFrame:
    """One Python (or native) frame."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildStack:
    """The main thread of a process that a rank started, such as a DataLoader worker."""

    pid: int
    frames: tuple[StackFrame, ...]  # innermost first
    in_kernel: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackDump:
    """The stacks of one process at one moment, or why there are none."""

    rank: int
    threads: tuple[tuple[str, tuple[StackFrame, ...]], ...] = ()  # (thread name, innermost frame first)
    failure: str = ""  # what was refused and the command that would allow it
    native: tuple[StackFrame, ...] = ()  # the main thread with its native frames, where they were asked for
    children: tuple[ChildStack, ...] = ()  # where the rank waits for one of them, or may


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveView:
    """A save that a thread of a rank is in, or has ended a moment ago."""

    call: str  # "torch.save"
    path: str  # that the rank gave; "": it goes to an object without one
    tid: int  # of the thread
    began_s: float  # since it began
    ended_s: float | None = None  # since it ended; None: it is under way
    site: CallSite | None = None
    error: str = ""  # what it raised
    file: str = ""  # that is written, as the kernel has it: it may have a temporary name
    identity: str = ""  # of the file, by whatever path and from whatever node it is reached; "": unknown, or no file
    inode: int = 0  # 0: unknown
    appends: bool = False  # the kernel puts whatever is written at the end
    written_bytes: int = -1  # how far the writer has come; -1: nobody knows
    total_bytes: int = -1  # that the whole has at least, -1: unknown; ended: that its file has
    as_before: bool = False  # the total is that of the last save like this one, and not of what is being saved
    lacks_bytes: int = 0  # of the room that it still needs or, ended, that one more like it needs; 0: none, or unknown
    bytes_per_s: float = 0.0  # over the last seconds
    still_s: float = 0.0  # for how long it has come no further
    filesystem: str = ""  # type
    free_bytes: int = -1  # -1: unknown
    refused: str = ""  # why nothing can be written there
    unanswered_s: float = 0.0  # for how long the file system has not answered a question about the path


@dataclass(frozen=True, slots=True, kw_only=True)
class RngRestore:
    """Random states of devices that a rank was to restore, when their number did not fit its devices."""

    call: str  # the function of torch that was called
    saved: int  # states there were
    present: int  # devices there are; >= 1
    own: int = -1  # index of the rank's own device; -1: unknown
    site: CallSite | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedThread:
    """A thread of a rank that an exception has ended, while the rank went on."""

    name: str
    exception: str  # "Type: message"
    site: CallSite | None = None  # the user's innermost line in it
    age_s: float = 0.0  # since it ended


@dataclass(frozen=True, slots=True, kw_only=True)
class FileView:
    """The file that a view of a rank comes from, and what it leaves open. A file is an agent that reported late."""

    source: str  # who wrote it, for evidence: "flight recorder", "ring" or "log"
    path: str
    timed: bool  # the moment of the file is known. False: its ages count to its newest stamp only, and tell the order
    older_s: float = 0.0  # so much earlier than the last file of the job it was written; a copy has a time of its own
    saw_host: bool = False  # it tells what threads did; else where the host stood is unknown
    whole: bool = True  # it holds all that the rank ever did; False: what is not in it may have been
    moving: bool = False  # it was written just after an operation had ended: its rank was at work at that moment
    older: bool = False  # written before others came to what it does not know of, and they tell so


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """Everything one node knows of one rank at one moment."""

    rank: int
    local_rank: int
    host: str
    pid: int
    device: str
    world_size: int
    local_world_size: int
    attempt: int
    process: ProcessView
    pulse_age_s: float  # since the rank's own pulse thread last ran (it needs the GIL)
    initialised: bool  # init_process_group has returned on this rank
    attached: bool = True  # False: a process that is this rank, seen from outside only
    ending: Ending | None = None
    threads: tuple[ThreadView, ...] = ()
    groups: tuple[GroupView, ...] = ()
    peers: tuple[PeerView, ...] = ()
    loaders: tuple[LoaderView, ...] = ()
    history: tuple[OpView, ...] = ()  # newest last; bounded, see `history_from`
    sites: tuple[CallSite, ...] = ()  # every call site of an operation this rank ever used (bounded)
    # Each distinct way to an operation: its line and the user's lines that called it, innermost first (bounded).
    routes: tuple[tuple[CallSite, ...], ...] = ()
    sources: tuple[SourceNote, ...] = ()
    saves: tuple[SaveView, ...] = ()  # the newest of each thread
    steps: int = 0
    forwards: int = 0
    phase: str = ""
    phase_s: float = 0.0
    last_exception: str = ""  # newest exception seen to be handled while the rank went on
    last_exception_s: float = 0.0
    last_exception_site: CallSite | None = None
    endpoint: str = ""  # master address and port this rank used in init_process_group
    timeout_s: float = 0.0  # of the default group; 0: unknown
    dropped: int = 0  # events, groups and strings that found no room
    cuda: DeviceView | None = None  # None: nothing is known of a device
    rng: RngRestore | None = None  # None: nothing was restored that does not fit
    ended_thread: EndedThread | None = None  # the newest; None: no thread was ended by an exception, as far as is known
    groups_counted: int = 0  # by torch after init_process_group or new_group: the number of the next one; 0: unknown
    groups_held: int = 0  # groups that torch knew here when a thread last came to new_group; 0: unknown
    keys_set: tuple[str, ...] = ()  # names of keys of the store that it has set, with # for each number (bounded)
    free_threads: int = 0  # threads besides `threads` that may yet issue something, or let go of a lock
    modules: tuple[ModuleView, ...] = ()  # in whose forwards operations were made, with the mode of each (bounded)
    modes: tuple[ModuleView, ...] = ()  # modes of such modules now, where a thread has stood still for a while
    news_age_s: float = 0.0  # since this view came, on the server's clock
    taken_s: float = 0.0  # it was taken at most so long before it came: the question was sent then
    weight: int = 0  # bytes that it takes in a server's memory, about: see `wire.weight_of`; 0: nobody has looked
    file: FileView | None = None  # None: an agent reports it now
