"""Plans what a rank does in one training step, and how far it has come after so many operations.

A step is Megatron's: microbatches run through the pipeline stages, one forward and one backward in turn (1F1B;
Narayanan et al., 2021), with tensor-parallel all_reduce and expert all_to_all inside of each layer; then gradients,
norms, parameters and the loss are reduced along the groups that need them. Sends do not wait, receives do.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ncclwatch.contract.model.rank import CallSite, Op
from ncclwatch.contract.ring.layout import DTYPES, OPS, REDUCE_OPS, signature_word
from ncclwatch_server.simulation.job.layout import AXES, Axis, Layout

SCRIPT = "/job/train.py"
_BFLOAT16, _SUM = DTYPES.index("bfloat16"), REDUCE_OPS.index("sum")
_PRIME = 0x100000001B3  # as in the recorder's hash
_MASK = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operation of a rank."""

    op: Op
    axis: Axis
    numel: int
    line: int
    function: str
    towards: int = 0  # p2p: how many stages on the peer is, negative: back

    @property
    def site(self) -> CallSite:
        """The line it is called from."""
        return CallSite(file=SCRIPT, line=self.line, function=self.function)

    @property
    def codes(self) -> tuple[int, int]:
        """Its data type and reduce operation, as a ring has them."""
        return _BFLOAT16, _SUM if self.op in (Op.ALL_REDUCE, Op.REDUCE_SCATTER) else 0

    @property
    def signature(self) -> int:
        """64 bits over what all members must agree on, as the recorder mixes them; all_gather takes ragged lists."""
        agreed = 0 if self.op is Op.ALL_GATHER else self.numel
        word = signature_word(-1, *self.codes)
        mixed = OPS.index(self.op) * 0x9E3779B97F4A7C15 ^ agreed * 0xC2B2AE3D27D4EB4F ^ word * 0x165667B19E3779F9
        return mixed & _MASK


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How much work a training step is."""

    microbatches: int = 4
    layers: int = 2  # of each pipeline stage
    hidden: int = 4096


def training_step(layout: Layout, stage: int, training: Training) -> tuple[Step, ...]:
    """Return what every rank of a pipeline stage does in one training step."""
    warmup = min(layout.pipeline - 1 - stage, training.microbatches)
    forward, backward = _forward(layout, stage, training), _backward(layout, stage, training)
    steps = forward * warmup
    steps += (forward + backward) * (training.microbatches - warmup)
    steps += backward * warmup
    return tuple(step for step in (*steps, *_finish(training)) if layout.size(step.axis) > 1 or _is_whole(step))


def _is_whole(step: Step) -> bool:
    return step.axis is Axis.WORLD


def _forward(layout: Layout, stage: int, training: Training) -> list[Step]:
    size = training.hidden * 128
    layer = [
        Step(op=Op.ALL_REDUCE, axis=Axis.TENSOR, numel=size, line=31, function="attention"),
        Step(op=Op.ALL_TO_ALL, axis=Axis.EXPERT, numel=size * 2, line=37, function="experts"),
        Step(op=Op.ALL_TO_ALL, axis=Axis.EXPERT, numel=size * 2, line=39, function="experts"),
        Step(op=Op.ALL_REDUCE, axis=Axis.TENSOR, numel=size, line=42, function="mlp"),
    ]
    steps = layer * training.layers
    if stage > 0:
        came = Step(op=Op.RECV, axis=Axis.PIPELINE, numel=size, line=52, function="recv_forward", towards=-1)
        steps = [came, *steps]
    if stage < layout.pipeline - 1:
        steps.append(Step(op=Op.SEND, axis=Axis.PIPELINE, numel=size, line=56, function="send_forward", towards=1))
    return steps


def _backward(layout: Layout, stage: int, training: Training) -> list[Step]:
    size = training.hidden * 128
    layer = [
        Step(op=Op.ALL_REDUCE, axis=Axis.TENSOR, numel=size, line=64, function="backward_mlp"),
        Step(op=Op.ALL_TO_ALL, axis=Axis.EXPERT, numel=size * 2, line=67, function="backward_experts"),
        Step(op=Op.ALL_TO_ALL, axis=Axis.EXPERT, numel=size * 2, line=69, function="backward_experts"),
        Step(op=Op.ALL_REDUCE, axis=Axis.TENSOR, numel=size, line=72, function="backward_attention"),
    ]
    steps = layer * training.layers
    if stage < layout.pipeline - 1:
        came = Step(op=Op.RECV, axis=Axis.PIPELINE, numel=size, line=82, function="recv_backward", towards=1)
        steps = [came, *steps]
    if stage > 0:
        steps.append(Step(op=Op.SEND, axis=Axis.PIPELINE, numel=size, line=86, function="send_backward", towards=-1))
    return steps


def _finish(training: Training) -> tuple[Step, ...]:
    size = training.hidden * training.hidden
    function = "train_step"
    return (
        Step(op=Op.REDUCE_SCATTER, axis=Axis.DATA, numel=size, line=104, function=function),
        Step(op=Op.REDUCE_SCATTER, axis=Axis.EXPERT_DATA, numel=size * 2, line=106, function=function),
        Step(op=Op.ALL_REDUCE, axis=Axis.MODEL, numel=1, line=111, function="clip_grad_norm"),
        Step(op=Op.ALL_REDUCE, axis=Axis.STAGE, numel=training.layers, line=117, function="update_scales"),
        Step(op=Op.ALL_GATHER, axis=Axis.DATA, numel=size, line=123, function=function),
        Step(op=Op.ALL_REDUCE, axis=Axis.WORLD, numel=2, line=131, function="report_loss"),
    )


Counts = NDArray[np.int64]  # one row for each place in a course: after 0, 1, 2... operations
Hashes = NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class Course:
    """All operations of a rank from its first step on, and its counters at each place of them.

    Ranks of one stage share a course as long as nothing goes wrong, so that a counter of 100,000 ranks is one
    look-up in a table of a few.
    """

    steps: tuple[Step, ...]
    changed_at: int = -1  # index of the first step that a fault has changed; -1: none has

    @cached_property
    def codes(self) -> tuple[tuple[int, int, int], ...]:
        """For each step (what it is, index of its axis or way of the peer, signature): all that running needs."""
        kinds = {Op.SEND: 1, Op.RECV: 2}
        distinct = {step: (kinds.get(step.op, 0), _where(step), step.signature) for step in set(self.steps)}
        return tuple(distinct[step] for step in self.steps)

    @cached_property
    def counts(self) -> dict[Axis, Counts]:
        """Collectives issued along each axis."""
        return {axis: self._cumulated([s.axis is axis and not s.op.is_p2p for s in self.steps]) for axis in AXES}

    @cached_property
    def hashes(self) -> dict[Axis, Hashes]:
        """The prefix hash over what was issued along each axis."""
        tables = {axis: np.zeros(len(self.steps) + 1, np.uint64) for axis in AXES}
        current = dict.fromkeys(AXES, 0)
        for place, (step, (kind, _, signature)) in enumerate(zip(self.steps, self.codes, strict=True), 1):
            if not kind:
                current[step.axis] = (current[step.axis] * _PRIME + signature + 1) & _MASK
            for axis in AXES:
                tables[axis][place] = current[axis]
        return tables

    @cached_property
    def peer_counts(self) -> dict[tuple[Op, int], Counts]:
        """Sends or receives issued to the neighbour stage in one direction, by operation and direction."""
        return {
            (op, towards): self._cumulated([step.op is op and step.towards == towards for step in self.steps])
            for op in (Op.SEND, Op.RECV)
            for towards in (-1, 1)
        }

    @staticmethod
    def _cumulated(flags: Iterable[bool]) -> Counts:
        return np.concatenate([[0], np.cumsum(np.fromiter(flags, np.int64))]).astype(np.int64)

    def edited(self, at: int, removed: int, added: tuple[Step, ...]) -> "Course":
        """Return a course in which some steps are replaced by others."""
        first = at if self.changed_at < 0 else min(at, self.changed_at)
        return replace(self, steps=(*self.steps[:at], *added, *self.steps[at + removed :]), changed_at=first)


def _where(step: Step) -> int:
    return step.towards if step.op.is_p2p else AXES.index(step.axis)


def courses(layout: Layout, training: Training, steps: int) -> tuple[Course, ...]:
    """Return the course of each pipeline stage over so many training steps."""
    return tuple(Course(steps=training_step(layout, stage, training) * steps) for stage in range(layout.pipeline))
