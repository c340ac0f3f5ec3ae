"""What a node's agent would say of one rank of a simulated job, asked for a full view.

What the rank did is played into a real ring, operation by operation as torch's patches would record it, and read from
there as an agent reads it. What the kernel would say of its process is added.
"""

import json
from dataclasses import dataclass, replace

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import CallSite, Ending, Op, ProcessState, ProcessView, RankView, WaitKind
from ncclwatch.contract.ring.call_sites import SiteText, write
from ncclwatch.contract.ring.layout import OPS, Word
from ncclwatch_server.simulation.job.faults import FaultKind
from ncclwatch_server.simulation.job.layout import Axis
from ncclwatch_server.simulation.job.program import SCRIPT, Step
from ncclwatch_server.simulation.rings import Group, SimulatedRing, WrittenRing
from ncclwatch_server.simulation.run import Standstill

SIGKILL = 9
OPERATION_S = 0.01  # that an operation of a simulated job takes, as far as ages are told
PLAYED_MAX = config.HISTORY_MAX  # operations of a rank: what came before is no longer in a view
PULSE_AGE_S = 0.2
_LOADING = CallSite(file=SCRIPT, line=20, function="next_batch")


def waits_since_s(still: Standstill, rank: int, hang_s: float) -> float:
    """Return for how long a rank has stood: those that stopped first for a little longer than the hang."""
    return hang_s + 2.0 * (1.0 - still.stopped_at[rank] / still.stopped_last)


def waits_in(still: Standstill, rank: int) -> Step | None:
    """Return the operation a rank waits in, None if it waits in none."""
    course, place = still.course(rank), still.places[rank]
    if rank in still.halted or place >= len(course.steps):
        return None
    return course.steps[place]


def view(still: Standstill, rank: int, hang_s: float) -> RankView:
    """Return everything a node knows of a rank, so long after everything came to stand."""
    with written(still, rank, hang_s) as ring:
        seen = ring.view()
    halted, age_s = still.halted.get(rank), waits_since_s(still, rank, hang_s)
    kind = halted.kind if halted is not None else None
    still_s = 0.0 if works(still, rank) else age_s
    return replace(
        seen,
        pid=1000 + _local(still, rank),
        process=_process(kind, age_s, still_s),
        ending=Ending(kind="signalled", signal=SIGKILL, age_s=age_s) if kind is FaultKind.KILLED else None,
        threads=tuple(replace(thread, cpu_still_s=still_s, alive=True) for thread in seen.threads),
    )


def works(still: Standstill, rank: int) -> bool:
    """Whether a rank uses its CPU: it is only slow."""
    return still.moving or (still.working and rank in still.halted)


def written(still: Standstill, rank: int, hang_s: float) -> SimulatedRing:
    """Return the ring that a rank has left so long after everything came to stand."""
    here = rank - _local(still, rank)
    ring = SimulatedRing(
        rank=rank, local_rank=rank - here, world=(still.world_size, min(still.layout.node, still.world_size - here))
    )
    try:
        ring.say(Word.IDENTITY, json.dumps({"host": f"node{rank // still.layout.node:05d}"}))
        play(still, rank, hang_s, ring, tid=1000 + rank)
    except BaseException:
        ring.close()
        raise
    return ring


def play(still: Standstill, rank: int, hang_s: float, ring: WrittenRing, *, tid: int) -> None:
    """Write into a ring what a rank has done and where it stands, so long after everything came to stand."""
    _Playing(still, rank, hang_s, ring).all(tid)


def _local(still: Standstill, rank: int) -> int:
    return rank % still.layout.node


def _process(kind: FaultKind | None, age_s: float, still_s: float) -> ProcessView:
    states = {FaultKind.KILLED: ProcessState.GONE, FaultKind.STOPPED: ProcessState.STOPPED}
    state = states.get(kind, ProcessState.SLEEPING) if kind is not None else ProcessState.SLEEPING
    return ProcessView(state=state, cpu_still_s=still_s, io_still_s=age_s)


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of an operation, through or not."""

    through: bool

    def is_completed(self) -> bool:
        return self.through


_THROUGH, _PENDING = _Work(True), _Work(False)


class _Playing:
    """One rank, on the way through what it has done."""

    def __init__(self, still: Standstill, rank: int, hang_s: float, ring: WrittenRing) -> None:
        self._still, self._rank, self._ring = still, rank, ring
        self._course, self._place = still.course(rank), still.places[rank]
        self._wait = waits_in(still, rank)
        self._age_s = waits_since_s(still, rank, hang_s)
        self._issued = self._place + (self._wait is not None)
        self._first = max(0, self._issued - PLAYED_MAX)
        self._groups = {axis: self._group(axis) for axis in still.layout.axes}
        self._codes: dict[Step, tuple[int, tuple[int, int, int], int]] = {}

    def all(self, tid: int) -> None:
        """Write what the rank says of itself, what it has done, and where it stands."""
        ring, still = self._ring, self._still
        ring.say(Word.DEVICE, f"cuda:{_local(still, self._rank)}")
        ring.file.set_word(Word.INITIALISED, 1)
        ring.file.set_word(Word.STEPS, int(self._course.counts[Axis.WORLD][self._place]))
        row = ring.add_thread(tid, main=True, issued=self._first)
        for index in range(self._first, self._issued):
            self._operation(index)
        ring.recorder.drain_all()
        place = self._wait.site if self._wait is not None else _LOADING
        halted = still.halted.get(self._rank)
        pulse_age_s = self._age_s if halted is not None and halted.kind is not FaultKind.STUCK else PULSE_AGE_S
        ring.beat(pulse_age_s)
        ring.file.set_sample(
            row, ring.turn_back(pulse_age_s + self._age_s),
            {
                "name": "MainThread", "leaf": f"{place.function} train.py:{place.line}",
                "frames": [[place.file, place.line, place.function]],
            },
        )  # fmt: skip

    def _group(self, axis: Axis) -> Group:
        """Begin the row of a group, all of whose operations before the first one played went unseen."""
        layout = self._still.layout
        name, members = group_name(self._still, self._rank, axis), layout.members[axis][layout.number(axis, self._rank)]
        desc = axis.value if axis is not Axis.WORLD else "default_pg"
        group = self._ring.recorder.add_group(name, desc, list(members), int(self._course.counts[axis][self._first]))
        group.prefix = int(self._course.hashes[axis][self._first])
        self._ring.file.set_group_head(group.number, group.prefix, group.enqueued)
        for towards in (-1, 1) if axis is Axis.PIPELINE else ():
            self._begin_peer(group, towards)
        return group

    def _begin_peer(self, group: Group, towards: int) -> None:
        counts = self._course.peer_counts
        if counts[Op.SEND, towards][self._first] or counts[Op.RECV, towards][self._first]:
            sends, recvs = (int(counts[op, towards][self._first]) for op in (Op.SEND, Op.RECV))
            peer = self._still.layout.neighbour(self._rank, towards)
            row = self._ring.file.add_peer(group.number, peer)
            group.peers[peer] = (row, [sends, min(sends, self._taken(towards)), recvs, recvs])
            self._ring.file.set_peer(row, group.peers[peer][1])

    def _taken(self, towards: int) -> int:
        """Return how many of this rank's messages its neighbour has received."""
        peer = self._still.layout.neighbour(self._rank, towards)
        return int(self._still.course(peer).peer_counts[Op.RECV, -towards][self._still.places[peer]])

    def _operation(self, index: int) -> None:
        """Let the rank issue one operation of its course, and wait in it if it is the one it stands in."""
        step, ring = self._course.steps[index], self._ring
        code, signature, site = self._codes.get(step) or self._coded(step)
        ring.turn_back(self._age_s + (self._issued - 1 - index) * OPERATION_S)
        issued = ring.recorder.issue(
            self._groups[step.axis], code, step.numel, signature, site, in_order=step.op is not Op.SEND
        )
        through = issued.seq <= self._taken(step.towards) if step.op is Op.SEND else index < self._place
        ring.recorder.track(issued, _THROUGH if through else _PENDING)
        if index == self._place:
            ring.recorder.enter(WaitKind.RECV if step.op is Op.RECV else WaitKind.COLLECTIVE, site, issued)

    def _coded(self, step: Step) -> tuple[int, tuple[int, int, int], int]:
        """Return what the recorder is told of a step: its operation, its signature and its call site."""
        peer = self._still.layout.neighbour(self._rank, step.towards) if step.op.is_p2p else -1
        site = self._ring.file.string(write(SiteText(step.site.file, step.site.line, step.site.function)))
        self._codes[step] = OPS.index(step.op), (peer, *step.codes), site
        return self._codes[step]


def group_name(still: Standstill, rank: int, axis: Axis) -> str:
    """Return what a rank's group along an axis is called."""
    return still.layout.name(axis, still.layout.number(axis, rank))
