"""What would a node's agent say of one rank of a simulated job, asked for a full view?"""

from ncclwatch.contract import config
from ncclwatch.contract.model import (
    CallSite,
    Ending,
    GroupView,
    Op,
    OpView,
    PeerView,
    ProcessState,
    ProcessView,
    RankView,
    ThreadView,
    WaitKind,
    WaitView,
)
from ncclwatch_server.simulation.faults import FaultKind
from ncclwatch_server.simulation.layout import Axis
from ncclwatch_server.simulation.program import SCRIPT, Step
from ncclwatch_server.simulation.run import Standstill

SIGKILL = 9
OPERATION_S = 0.01  # that an operation of a simulated job takes, as far as ages are told
_LOADING = CallSite(file=SCRIPT, line=20, function="next_batch")


def waits_since_s(still: Standstill, rank: int, hang_s: float) -> float:
    """Return for how long a rank has stood: those that stopped first for a little longer than the hang."""
    newest = max(still.stopped_at) or 1
    return hang_s + 2.0 * (1.0 - still.stopped_at[rank] / newest)


def waits_in(still: Standstill, rank: int) -> Step | None:
    """Return the operation a rank waits in, None if it waits in none."""
    course, place = still.course(rank), still.places[rank]
    if rank in still.halted or place >= len(course.steps):
        return None
    return course.steps[place]


def view(still: Standstill, rank: int, hang_s: float) -> RankView:
    """Return everything a node knows of a rank, so long after everything came to stand."""
    layout, halted = still.layout, still.halted.get(rank)
    wait, age_s = waits_in(still, rank), waits_since_s(still, rank, hang_s)
    here = layout.node * (rank // layout.node)
    issued = still.places[rank] + (wait is not None)
    return RankView(
        rank=rank,
        local_rank=rank - here,
        host=f"node{rank // layout.node:05d}",
        pid=1000 + rank - here,
        device=f"cuda:{rank - here}",
        world_size=still.world_size,
        local_world_size=min(layout.node, still.world_size - here),
        attempt=0,
        process=_process(halted.kind if halted is not None else None, age_s, 0.0 if works(still, rank) else age_s),
        pulse_age_s=age_s if halted is not None and halted.kind is not FaultKind.STUCK else 0.2,
        initialised=True,
        ending=_ending(halted.kind if halted is not None else None, age_s),
        threads=(_thread(still, rank, wait, age_s),),
        groups=tuple(_group(still, rank, axis, wait, age_s) for axis in layout.axes),
        peers=_peers(still, rank, issued),
        history=_history(still, rank, issued, age_s),
        sites=tuple(dict.fromkeys(step.site for step in still.course(rank).steps[:issued])),
        steps=int(still.course(rank).counts[Axis.WORLD][still.places[rank]]),
    )


def works(still: Standstill, rank: int) -> bool:
    """Whether a rank uses its CPU: it is only slow."""
    return still.moving or (still.working and rank in still.halted)


def _process(kind: FaultKind | None, age_s: float, still_s: float) -> ProcessView:
    states = {FaultKind.KILLED: ProcessState.GONE, FaultKind.STOPPED: ProcessState.STOPPED}
    state = states.get(kind, ProcessState.SLEEPING) if kind is not None else ProcessState.SLEEPING
    return ProcessView(state=state, cpu_still_s=still_s, io_still_s=age_s, observed_s=age_s + 60.0)


def _ending(kind: FaultKind | None, age_s: float) -> Ending | None:
    return Ending(kind="signalled", signal=SIGKILL, age_s=age_s) if kind is FaultKind.KILLED else None


def _thread(still: Standstill, rank: int, wait: Step | None, age_s: float) -> ThreadView:
    place = wait.site if wait is not None else _LOADING
    return ThreadView(
        tid=1000 + rank,
        main=True,
        issued=still.places[rank] + (wait is not None),
        wait=_wait(still, rank, wait, age_s) if wait is not None else None,
        doing=place,
        frames=(place,),
        leaf=f"{place.function} train.py:{place.line}",
        same_s=age_s,
        cpu_still_s=0.0 if works(still, rank) else age_s,
        name="MainThread",
    )


def _wait(still: Standstill, rank: int, step: Step, age_s: float) -> WaitView:
    kind = WaitKind.RECV if step.op is Op.RECV else WaitKind.COLLECTIVE
    seq, peer = numbered(still, rank, still.places[rank])
    return WaitView(
        kind=kind, age_s=age_s, group=group_name(still, rank, step.axis), seq=seq, op=step.op, peer=peer, site=step.site
    )


def group_name(still: Standstill, rank: int, axis: Axis) -> str:
    """Return what a rank's group along an axis is called."""
    return still.layout.name(axis, still.layout.number(axis, rank))


def numbered(still: Standstill, rank: int, index: int) -> tuple[int, int]:
    """Return the running number of a rank's step in its group, p2p by peer, and the peer, -1 if there is none."""
    course = still.course(rank)
    step = course.steps[index]
    if not step.op.is_p2p:
        return int(course.counts[step.axis][index]) + 1, -1
    seq = int(course.peer_counts[step.op, step.towards][index]) + 1
    return seq, still.layout.neighbour(rank, step.towards)


def _operation(still: Standstill, rank: int, index: int, issued: int, age_s: float) -> OpView:
    step = still.course(rank).steps[index]
    seq, peer = numbered(still, rank, index)
    return OpView(
        group=group_name(still, rank, step.axis),
        seq=seq,
        op=step.op,
        dtype="bfloat16",
        numel=step.numel,
        peer=peer,
        reduce_op="sum" if step.op in (Op.ALL_REDUCE, Op.REDUCE_SCATTER) else "",
        site=step.site,
        thread=1000 + rank,
        completed=index < still.places[rank],
        in_order=step.op is not Op.SEND,
        age_s=age_s + (issued - 1 - index) * OPERATION_S,
    )


def _history(still: Standstill, rank: int, issued: int, age_s: float) -> tuple[OpView, ...]:
    first = max(0, issued - config.HISTORY_MAX)
    return tuple(_operation(still, rank, index, issued, age_s) for index in range(first, issued))


def _group(still: Standstill, rank: int, axis: Axis, wait: Step | None, age_s: float) -> GroupView:
    layout, course, place = still.layout, still.course(rank), still.places[rank]
    inside = wait is not None and wait.axis is axis and not wait.op.is_p2p
    return GroupView(
        name=group_name(still, rank, axis),
        desc=axis.value if axis is not Axis.WORLD else "default_pg",
        ranks=layout.members[axis][layout.number(axis, rank)],
        enqueued=int(course.counts[axis][place]) + inside,
        completed=int(course.counts[axis][place]),
        prefix_hash=int(course.hashes[axis][place + inside]),
        pending=_operation(still, rank, place, place + 1, age_s) if inside else None,
    )


def _peers(still: Standstill, rank: int, issued: int) -> tuple[PeerView, ...]:
    course, place = still.course(rank), still.places[rank]
    found = []
    for towards in (-1, 1):
        sends = int(course.peer_counts[Op.SEND, towards][place])
        recvs = int(course.peer_counts[Op.RECV, towards][issued])
        if not sends and not recvs:
            continue
        peer = still.layout.neighbour(rank, towards)
        taken = int(still.course(peer).peer_counts[Op.RECV, -towards][still.places[peer]])
        found.append(
            PeerView(
                group=group_name(still, rank, Axis.PIPELINE),
                peer=peer,
                sends=sends,
                sends_completed=min(sends, taken),
                recvs=recvs,
                recvs_completed=int(course.peer_counts[Op.RECV, towards][place]),
            )
        )
    return tuple(found)
