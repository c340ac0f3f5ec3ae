"""The settings that ranks of one job must share: where, and what happens if they do not.

Each rule gives the meaning of what a rank said, not its words: an unset variable and its default are one, and None
stands for what does not matter there (a variable of NCCL in a job of gloo). Ranks of one meaning are alike.

NCCL decides by itself, on each rank, over which transport and with which algorithm it talks to a peer, so its variables
have to agree; its maintainers ask for that first (NVIDIA/nccl#394, #626), and nccl#234 is the hang of one node with
InfiniBand beside one without. Not compared, because healthy jobs have them unequal: names of interfaces and adapters
(NCCL_SOCKET_IFNAME, NCCL_IB_HCA), NCCL_DEBUG, OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES, the driver (nodes are updated one
after the other), and variables whose unset value may mean the same as a set one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ncclwatch.contract.model import preflight
from ncclwatch.contract.model.preflight import RankFacts
from ncclwatch.contract.model.verdict import Cause

Meaning = Callable[[RankFacts], str | None]

SHM_SMALL_MB = 64  # what a container gets that is started without --shm-size
SHM_ENOUGH_MB = 512


class Scope(Enum):
    """Among which ranks a setting has to agree."""

    JOB = "job"
    HOST = "host"  # between processes of one node


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One setting. Rules of one family that part the ranks in the same way are told in one warning."""

    name: str  # as its user knows it
    family: str
    meaning: Meaning
    unset: str = "unset"  # how the meaning "" is told
    scope: Scope = Scope.JOB
    certain: bool = False  # ranks that differ cannot go on together
    one_way: bool = False  # "" is how it should be: who has another meaning is to blame, however many they are
    explains: frozenset[Cause] = frozenset()  # alarms that it may be the reason of
    leads_to: str
    do: str


def _value(key: str) -> Meaning:
    return lambda facts: facts.get(key)


def _known(key: str) -> Meaning:
    return lambda facts: facts.get(key) or None


def _with_nccl(meaning: Meaning) -> Meaning:
    return lambda facts: meaning(facts) if "nccl" in facts.get(preflight.BACKEND) else None


def _switch(key: str) -> Meaning:
    """Return "1" for what turns something on."""
    return lambda facts: "" if facts.get(key).strip().lower() in ("", "0", "false", "no", "off") else "1"


def _turned_off(key: str) -> Meaning:
    """Return "0" for what turns something off that is on by default."""
    return lambda facts: "0" if facts.get(key).strip().lower() in ("0", "false") else ""


def _buffer(facts: RankFacts) -> str:
    said = facts.get("NCCL_BUFFSIZE")
    return "" if said in ("", "4194304") else said


def _network(facts: RankFacts) -> str | None:
    """Return whether a rank's traffic may go over InfiniBand; None where there is none to go over."""
    if facts.get("NCCL_NET").lower() == "socket" or _switch("NCCL_IB_DISABLE")(facts):
        return "1"
    return "" if facts.get(preflight.INFINIBAND) else None


def _shm(facts: RankFacts) -> str | None:
    said = facts.get(preflight.SHM_MB)
    if not said.isdecimal() or SHM_SMALL_MB < int(said) < SHM_ENOUGH_MB:
        return None
    return f"{said} MB" if int(said) <= SHM_SMALL_MB else ""


def _ptrace(facts: RankFacts) -> str:
    return "refused" if facts.get(preflight.PTRACE) else ""


_ALIKE = "Set it to the same value on all ranks, or on none: mpirun hands on only what -x names, and ssh nothing."
_IMAGE = "Start all nodes from one image or environment, and see that its python is the one that runs there."
_CHOOSES = (
    "NCCL chooses on each rank by itself; ranks that choose differently exchange messages that do not fit, and hang "
    "in the first collective or compute nonsense."
)
_CONNECTS = (
    "Two ranks connect over what both have chosen; where they choose differently, both wait in NCCL's first call."
)

_AT_INIT = frozenset((Cause.INIT_INCOMPLETE, Cause.DIVERGENT_CONTROL_FLOW, Cause.TRANSPORT, Cause.UNDETERMINED))
_IN_NCCL = frozenset((Cause.TRANSPORT, Cause.UNDETERMINED))

RULES: tuple[Rule, ...] = (
    Rule(
        name="TORCH_DISTRIBUTED_DEBUG", family="environment", meaning=_value(preflight.DEBUG),
        unset="not DETAIL", certain=True, explains=_AT_INIT,
        leads_to=(
            "With DETAIL torch puts a second group beside each process group and compares every collective there "
            "first: these ranks wait in init_process_group, new_group or their first collective for ranks that never "
            "come to it."
        ),
        do="Set TORCH_DISTRIBUTED_DEBUG alike on all ranks before torch is imported, and unset it where nobody debugs.",
    ),
    Rule(
        name="TORCH_DIST_INIT_BARRIER", family="environment", meaning=_switch("TORCH_DIST_INIT_BARRIER"), certain=True,
        explains=_AT_INIT,
        leads_to=(
            "Ranks that set it end init_process_group and new_group with a barrier, and wait there for ranks that "
            "never enter it."
        ),
        do=_ALIKE,
    ),
    Rule(
        name="TORCH_NCCL_ASYNC_ERROR_HANDLING", family="environment", one_way=True,
        meaning=_with_nccl(_turned_off("TORCH_NCCL_ASYNC_ERROR_HANDLING")), unset="on",
        leads_to="After a failure or a timeout the others end, and ranks with 0 wait for ever.",
        do="Unset it everywhere.",
    ),
    Rule(
        name="TORCH_NCCL_BLOCKING_WAIT", family="environment",
        meaning=_with_nccl(_switch("TORCH_NCCL_BLOCKING_WAIT")),
        leads_to="At a timeout some ranks raise in wait() and may go on, while the others are ended by the watchdog.",
        do=_ALIKE,
    ),
    *(
        Rule(
            name=name, family="environment", meaning=_with_nccl(meaning), certain=True, explains=_IN_NCCL,
            leads_to=_CHOOSES, do=_ALIKE,
        )
        for name, meaning in (
            ("NCCL_ALGO", _value("NCCL_ALGO")), ("NCCL_PROTO", _value("NCCL_PROTO")), ("NCCL_BUFFSIZE", _buffer),
        )
    ),
    *(
        Rule(
            name=name, family="environment", meaning=_with_nccl(_known(name)), explains=_IN_NCCL, leads_to=_CONNECTS,
            do=_ALIKE,
        )
        for name in ("NCCL_NET", "NCCL_NET_PLUGIN")
    ),
    Rule(
        name="NCCL_IB_DISABLE", family="environment", meaning=_with_nccl(_network), unset="off, with InfiniBand up",
        explains=_IN_NCCL, leads_to=_CONNECTS, do=_ALIKE,
    ),
    *(
        Rule(
            name=name, family="environment", meaning=_with_nccl(meaning), scope=Scope.HOST, explains=_IN_NCCL,
            leads_to=_CONNECTS, do=_ALIKE,
        )
        for name, meaning in (
            ("NCCL_P2P_DISABLE", _switch("NCCL_P2P_DISABLE")), ("NCCL_SHM_DISABLE", _switch("NCCL_SHM_DISABLE")),
            ("NCCL_P2P_LEVEL", _known("NCCL_P2P_LEVEL")), ("NCCL_CUMEM_ENABLE", _known("NCCL_CUMEM_ENABLE")),
        )
    ),
    Rule(
        name="NCCL", family="versions", meaning=_with_nccl(_known(preflight.NCCL)), certain=True,
        explains=_IN_NCCL,
        leads_to="NCCL connects only ranks of one version: the first collective fails or hangs.", do=_IMAGE,
    ),
    Rule(
        name="torch", family="versions", meaning=_known(preflight.TORCH),
        leads_to=(
            "Two versions of torch may issue other collectives in one step (gradient buckets, FSDP's prefetch, the "
            "rendezvous), and then the ranks wait in different ones."
        ),
        do=_IMAGE,
    ),
    Rule(
        name="CUDA", family="versions", meaning=_with_nccl(_known(preflight.CUDA)),
        leads_to="Builds of torch for different CUDA bring different NCCL and kernels, and their results differ.",
        do=_IMAGE,
    ),
    Rule(
        name="Python", family="versions", meaning=_known(preflight.PYTHON),
        leads_to="What object collectives and checkpoints pickle on one version may not load on the other: that rank "
        "raises, and the others wait for it.",
        do=_IMAGE,
    ),
    Rule(
        name="/dev/shm", family="shared memory", meaning=_shm, unset=f"{SHM_ENOUGH_MB} MB or more", one_way=True,
        leads_to="NCCL and the worker processes of a DataLoader need it; where it is full a worker dies with a bus "
        "error or NCCL cannot connect, and the other ranks wait.",
        do="Start that container with --shm-size=8g or --ipc=host (Kubernetes: an emptyDir of medium Memory at "
        "/dev/shm).",
    ),
    Rule(
        name="the permission to trace", family="rights", meaning=_ptrace, unset="given", one_way=True,
        leads_to="A report of a hang there lacks the stack of a rank that cannot dump its own.",
        do="Run `sudo sysctl -w kernel.yama.ptrace_scope=1` there, or give the container SYS_PTRACE.",
    ),
)  # fmt: skip
