"""Names the fields of what is read of a ring: its header, and a row of each of its tables."""

from collections.abc import Iterable
from typing import NamedTuple

from ncclwatch.contract.model.rank import Op, WaitKind
from ncclwatch.contract.ring.members import Roster

DEFAULT_GROUP = "0"  # as torch names it


class RingHeader(NamedTuple):
    """Who writes this ring. Start time is in clock ticks since boot, so that a reused pid is not mistaken."""

    pid: int
    start_ticks: int
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    attempt: int
    created_ns: int


class GroupRow(NamedTuple):
    """One process group of this rank. 0 <= completed <= enqueued, but for the moment of an update."""

    number: int
    name: str
    desc: str
    roster: Roster
    flags: int
    prefix_hash: int
    enqueued: int
    completed: int
    newest_event: int  # -1: none
    timeout_ms: int = 0  # of its operations; 0: unknown
    site: int = 0  # id of the call site that made it; 0: unknown

    @property
    def ranks(self) -> tuple[int, ...]:
        """All members, () if they are not known."""
        return self.roster.members


class WaitRow(NamedTuple):
    """What a thread has entered and not left."""

    since_ns: int
    site: int
    seq: int
    group: int
    kind: WaitKind
    op: Op
    peer: int
    members: tuple[int, ...] = ()  # who alone makes the group that is waited for; (): all, or nobody knows


class ThreadRow(NamedTuple):
    """One thread of the rank."""

    number: int
    tid: int
    main: bool
    issued: int
    wait: WaitRow | None


class PeerRow(NamedTuple):
    """p2p operations with one peer (global rank) of one group."""

    group: int
    peer: int
    sends: int
    sends_completed: int
    recvs: int
    recvs_completed: int
    flags: int = 0  # see `PeerFlag`
    sends_waited: int = 0  # a `waited_word`: after which ones all that their thread issues later comes on a device
    recvs_waited: int = 0


class LoaderRow(NamedTuple):
    """One place that iterates over a DataLoader."""

    site: int
    passes: int
    length: int
    drawn: int
    ended_pass: int
    last_drawn: int
    flags: int = 0  # of the latest pass, see `LoaderFlag`
    number: int = 0  # of the row


class BucketRow(NamedTuple):
    """Batches of one data bucket (all of one shape, say) that one loader gave in one pass."""

    loader: int
    name: str
    passes: int
    drawn: int
    timed: int = 0  # batches, in all passes
    worked_ns: int = 0  # on these: neither blocked in collectives nor waiting for data


class SaveRow(NamedTuple):
    """The newest save of one thread."""

    thread: int
    began_ns: int
    ended_ns: int  # 0: under way
    site: int
    call: str  # "torch.save"
    path: str  # absolute; "": it goes to an object that has no path
    error: str  # what it raised, "" if nothing
    least_bytes: int = 0  # that its tensors have; 0: unknown


class MeterRow(NamedTuple):
    """How long a rank had been blocked in collectives as of one of a group; all members cut at the same ones."""

    boundary: int  # sequence number; the total is of what came before it
    time_ms: int  # when it was crossed, modulo 2^32
    waited_ns: int  # in all groups


class EventRow(NamedTuple):
    """One operation as issued."""

    number: int
    time_ns: int
    group: int
    op: Op
    thread: int
    numel: int
    site: int
    prefix_hash: int
    seq: int
    batch: int
    loader: int
    forwards: int
    peer: int
    dtype: str
    reduce_op: str
    in_order: bool  # what its thread issues later, in any group, comes after it


def named_apart(groups: Iterable[GroupRow]) -> tuple[GroupRow, ...]:
    """Give groups that were destroyed and made again names of their own: "0", "0~2", and "1~2", made beside "0~2".

    torch names the new default group as the old one, and counts anew the groups that are made beside it. What one rank
    does in a new one has nothing to do with what another still does in the old. A rank need not have been in both, so
    the default group tells which one it is; one that was made again beside the same is "1~2.2".
    """
    seen: dict[tuple[int, str], int] = {}
    default, named = 0, []
    for row in groups:
        default += row.name == DEFAULT_GROUP
        made = max(1, default)
        times = seen[made, row.name] = seen.get((made, row.name), 0) + 1
        again = f".{times}" if times > 1 else ""
        named.append(row if made == 1 and not again else row._replace(name=f"{row.name}~{made}{again}"))
    return tuple(named)
