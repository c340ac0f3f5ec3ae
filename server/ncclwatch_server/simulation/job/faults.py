"""What can go wrong with one rank of a simulated job, and the right verdict on it."""

import random
from dataclasses import dataclass, replace
from enum import Enum

from ncclwatch.contract.model.rank import Op
from ncclwatch.contract.model.verdict import Cause
from ncclwatch_server.simulation.job.layout import Axis, Layout
from ncclwatch_server.simulation.job.program import Course, Step


class FaultKind(str, Enum):
    """A mistake in a program, or a mishap of a process."""

    SKIP = "skip"  # leaves a collective out
    EXTRA = "extra"  # makes a collective that nobody else makes
    SWAP = "swap"  # uses two groups in the other order
    SIZE = "size"  # comes with another size
    NO_SEND = "no-send"  # leaves a send out
    KILLED = "killed"
    STOPPED = "stopped"  # SIGSTOP
    STUCK = "stuck"  # stands still in Python

    @property
    def halts(self) -> bool:
        """Whether the rank gets no further, rather than going on differently."""
        return self in (FaultKind.KILLED, FaultKind.STOPPED, FaultKind.STUCK)


_PARTED = frozenset({Cause.DIVERGENT_CONTROL_FLOW, Cause.RANK_CONDITIONAL_COLLECTIVE})
RIGHT_CAUSES: dict[FaultKind, frozenset[Cause]] = {
    FaultKind.SKIP: _PARTED | {Cause.COLLECTIVE_ORDER},
    FaultKind.EXTRA: _PARTED | {Cause.COLLECTIVE_ORDER},
    FaultKind.SWAP: frozenset({Cause.COLLECTIVE_ORDER, Cause.DIVERGENT_CONTROL_FLOW}),
    FaultKind.SIZE: frozenset({Cause.SIGNATURE_MISMATCH}),
    FaultKind.NO_SEND: _PARTED | {Cause.P2P_DEADLOCK},
    FaultKind.KILLED: frozenset({Cause.RANK_CRASHED}),
    FaultKind.STOPPED: frozenset({Cause.PROCESS_FROZEN}),
    FaultKind.STUCK: frozenset({Cause.HOST_STALL}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong at one step of one rank. `at` counts the steps of its course from 0."""

    kind: FaultKind
    rank: int
    at: int


def apply(fault: Fault, course: Course) -> Course:
    """Return the course of a rank that makes the mistake. One that only halts keeps its course."""
    step = course.steps[fault.at]
    if fault.kind in (FaultKind.SKIP, FaultKind.NO_SEND):
        return course.edited(fault.at, 1, ())
    if fault.kind is FaultKind.EXTRA:
        return course.edited(fault.at, 0, (replace(step, line=step.line + 200, function="log_extra", numel=3),))
    if fault.kind is FaultKind.SWAP:
        other = course.steps[fault.at + 1]
        return course.edited(fault.at, 2, (other, step))
    if fault.kind is FaultKind.SIZE:
        return course.edited(fault.at, 1, (replace(step, numel=step.numel + 8),))
    return course


def places(kind: FaultKind, layout: Layout, course: Course, first: int) -> tuple[int, ...]:
    """Return the steps of a course, from one on, at which such a fault makes sense."""
    steps = course.steps
    if kind is FaultKind.SWAP:
        return tuple(at for at in range(first, len(steps) - 1) if _may_cross(layout, steps[at], steps[at + 1]))
    if kind is FaultKind.SIZE:  # all_gather takes ragged lists
        return tuple(
            at for at in range(first, len(steps)) if not steps[at].op.is_p2p and steps[at].op is not Op.ALL_GATHER
        )
    wanted = Op.SEND if kind is FaultKind.NO_SEND else None
    return tuple(
        at for at in range(first, len(steps)) if (steps[at].op is wanted if wanted else not steps[at].op.is_p2p)
    )


def _may_cross(layout: Layout, one: Step, other: Step) -> bool:
    """Say whether two steps are collectives of two groups that share more than one rank: those can deadlock."""
    if one.op.is_p2p or other.op.is_p2p or one.axis is other.axis:
        return False
    mine = set(layout.members[one.axis][layout.number(one.axis, 0)])
    return len(mine & set(layout.members[other.axis][layout.number(other.axis, 0)])) > 1


def drawn(
    kind: FaultKind, layout: Layout, stages: tuple[Course, ...], first_step: int, rng: random.Random,
    axis: Axis | None = None,
) -> Fault:  # fmt: skip
    """Return a fault of some rank somewhere in the training step with this number. Raises `ValueError` if none fits.

    `axis`: it is made in an operation of the groups along this axis.
    """
    for _ in range(64):
        rank = rng.randrange(layout.world_size)
        course = stages[layout.stage(rank)]
        length = sum(step.axis.value == "world" for step in course.steps)
        one = len(course.steps) // length
        found = [
            at
            for at in places(kind, layout, course, one * first_step)
            if at < one * (first_step + 1) and axis in (None, course.steps[at].axis)
        ]
        if found:
            return Fault(kind=kind, rank=rank, at=rng.choice(found))
    where = f" in {axis.value}" if axis is not None else ""
    raise ValueError(f"no rank of {layout} can make a fault of kind {kind.value}{where}")
