"""Writes down what each rank of a tensor x pipeline x data x expert parallel job does in a training step.

Groups are made in Megatron's order and named by torch's counter, gloo twins included (`initialize_model_parallel` in
megatron/core/parallel_state.py), so several groups share a description. The pipeline is 1F1B without interleaving
(Narayanan et al., 2021), with single sends and receives; gradients are reduced while the last backward runs.
Sizes are elements, times microseconds.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from ncclwatch.contract.model.rank import Op

WORLD = "0"
SCRIPT = "/job/pretrain.py"


class Kind(Enum):
    """What a host does next."""

    COLLECTIVE = "collective"
    SEND = "send"
    RECV = "recv"
    COMPUTE = "compute"
    WAIT = "wait"  # the compute stream waits for a group's; the host does not
    READ = "read"  # the host waits for its compute stream, as in .item()
    LOAD = "load"  # on the host alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group."""

    name: str
    desc: str
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing that a host does."""

    kind: Kind
    line: int
    function: str
    us: float = 0.0  # that it takes, where nobody has to be waited for
    group: str = ""
    op: Op = Op.UNKNOWN
    recorded: str = ""  # what the recorder calls it
    sizes: tuple[int, int] = (0, 0)  # of input and output
    dtype: str = "BFloat16"
    peer: int = -1  # global rank: the other side, or the root
    blocking: bool = True  # the compute stream waits for it at once

    @property
    def is_call(self) -> bool:
        """Whether it issues an operation."""
        return self.kind in (Kind.COLLECTIVE, Kind.SEND, Kind.RECV)

    @property
    def signature(self) -> tuple[str, str, int, int]:
        """What all members of a collective have to agree on."""
        agreed = 0 if self.op is Op.ALL_TO_ALL else self.sizes[0]
        return (self.recorded, self.dtype, agreed, self.peer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The degrees of parallelism. Rank = tensor index + tensor * (data index + data * pipeline index)."""

    tensor: int
    pipeline: int
    data: int
    expert: int  # divides `data`

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self.tensor * self.pipeline * self.data

    def rank(self, t: int, p: int, d: int) -> int:
        """Return the rank at these indices."""
        return t + self.tensor * (d + self.data * p)

    def place(self, rank: int) -> tuple[int, int, int]:
        """Return a rank's indices (tensor, pipeline, data)."""
        return rank % self.tensor, rank // (self.tensor * self.data), rank // self.tensor % self.data


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a job is written."""

    microbatches: int
    layers: int
    hidden: int
    sequence_parallel: bool  # all_gather and reduce_scatter instead of all_reduce
    sends_block: bool
    reads: bool  # the norm of the gradients comes to the host in every step
    logs: bool  # one collective of all ranks in every step


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job: who is in which group, and what each rank does."""

    layout: Layout
    style: Style
    groups: dict[str, Group]
    steps: dict[int, tuple[Action, ...]]  # one training step of each rank
    ahead: int  # operations that a host may have issued and its device not finished

    def groups_of(self, rank: int) -> list[Group]:
        """Return the groups of a rank, in the order in which they were made."""
        return [group for group in self.groups.values() if rank in group.members]


def draw_layout(rng: random.Random, world: int) -> Layout:
    """Return a layout of so many ranks, with at least two kinds of parallelism."""
    sizes = [1, 2, 4, 8]
    while True:
        tensor, pipeline = rng.choice(sizes), rng.choice(sizes[:3])
        data, rest = divmod(world, tensor * pipeline)
        if rest or data == 0 or (tensor, pipeline, data).count(1) > 1:
            continue
        return Layout(
            tensor=tensor, pipeline=pipeline, data=data, expert=rng.choice([n for n in sizes if data % n == 0])
        )


def draw_job(rng: random.Random, world: int) -> Job:
    """Return a job of so many ranks."""
    layout = draw_layout(rng, world)
    style = Style(
        microbatches=layout.pipeline * rng.choice([1, 2]), layers=rng.choice([1, 2]), hidden=rng.choice([1024, 4096]),
        sequence_parallel=rng.random() < 0.5, sends_block=rng.random() < 0.5, reads=rng.random() < 0.7,
        logs=rng.random() < 0.5,
    )  # fmt: skip
    groups = _groups(layout)
    steps = {rank: tuple(_Rank(layout, style, groups, rank).step()) for rank in range(layout.world)}
    return Job(layout=layout, style=style, groups=groups, steps=steps, ahead=rng.randint(10, 40))


def _groups(layout: Layout) -> dict[str, Group]:
    """Return the groups by name, in the order in which Megatron makes them."""
    tensors, stages, datas = range(layout.tensor), range(layout.pipeline), range(layout.data)
    found = {WORLD: Group(name=WORLD, desc="default_pg", members=tuple(range(layout.world)))}
    made = 1
    for desc, members in (
        *(("DATA_PARALLEL_GROUP", [layout.rank(t, p, d) for d in datas]) for p in stages for t in tensors),
        *(("MODEL_PARALLEL_GROUP", [layout.rank(t, p, d) for p in stages for t in tensors]) for d in datas),
        *(("TENSOR_MODEL_PARALLEL_GROUP", [layout.rank(t, p, d) for t in tensors]) for p in stages for d in datas),
        *(each for d in datas for t in tensors for each in _pipeline(layout, t, d)),
        *(each for p in stages for t in tensors for each in _experts(layout, t, p)),
    ):
        found[str(made)] = Group(name=str(made), desc=desc, members=tuple(sorted(set(members))))
        made += 2 if desc in _TWINS else 1
    return found


_TWINS = ("DATA_PARALLEL_GROUP", "EXPERT_DATA_PARALLEL_GROUP")  # a group of gloo beside each takes a name, too


def _pipeline(layout: Layout, t: int, d: int) -> Iterator[tuple[str, list[int]]]:
    yield "PIPELINE_MODEL_PARALLEL_GROUP", [layout.rank(t, p, d) for p in range(layout.pipeline)]
    yield "EMBEDDING_GROUP", [layout.rank(t, p, d) for p in (0, layout.pipeline - 1)]


def _experts(layout: Layout, t: int, p: int) -> Iterator[tuple[str, list[int]]]:
    parts = range(0, layout.data, layout.expert)
    for first in parts:
        yield "EXPERT_MODEL_PARALLEL_GROUP", [layout.rank(t, p, first + e) for e in range(layout.expert)]
    for e in range(layout.expert):
        yield "EXPERT_DATA_PARALLEL_GROUP", [layout.rank(t, p, first + e) for first in parts]


@dataclass(slots=True)
class _Rank:
    """Writes the step of one rank."""

    layout: Layout
    style: Style
    groups: dict[str, Group]
    rank: int
    own: dict[str, Group] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.own = {group.desc: group for group in self.groups.values() if self.rank in group.members}

    def step(self) -> Iterator[Action]:
        """Yield what the rank does in one step."""
        _, stage, _ = self.layout.place(self.rank)
        stages, count = self.layout.pipeline, self.style.microbatches
        warmup = min(stages - 1 - stage, count)
        for _ in range(warmup):
            yield from self._receive(-1, 30)
            yield from self._forward()
            yield from self._send(+1, 32)
        steady = count - warmup
        if steady:
            yield from self._receive(-1, 40)
        for n in range(steady):
            yield from self._forward()
            yield from self._send(+1, 43)
            yield from self._receive(+1, 44)
            yield from self._backward(last=not warmup and n == steady - 1)
            if n < steady - 1:
                yield from self._receive(-1, 47)
            yield from self._send(-1, 48)
        for n in range(warmup):
            yield from self._receive(+1, 52)
            yield from self._backward(last=n == warmup - 1)
            yield from self._send(-1, 54)
        yield from self._finish()

    def _forward(self) -> Iterator[Action]:
        style = self.style
        _, stage, _ = self.layout.place(self.rank)
        if stage in (0, self.layout.pipeline - 1):
            yield Action(kind=Kind.LOAD, us=2000.0, line=101, function="get_batch")
            yield from self._collective("TENSOR_MODEL_PARALLEL_GROUP", Op.BROADCAST, 4096, 103, "get_batch",
                                        dtype="Long", root=True)  # fmt: skip
        for layer in range(style.layers):
            yield self._compute(9000.0, 120, "attention")
            yield from self._tensor(121 + layer, "attention")
            yield from self._experts(130 + layer)
            yield self._compute(11_000.0, 140, "mlp")
            yield from self._tensor(141 + layer, "mlp")

    def _backward(self, last: bool) -> Iterator[Action]:
        for layer in range(self.style.layers):
            yield self._compute(21_000.0, 160, "backward")
            yield from self._tensor(161 + layer, "backward")
            yield from self._experts(170 + layer)
            yield self._compute(19_000.0, 180, "backward")
            yield from self._tensor(181 + layer, "backward")
            if last:  # a bucket is ready, and nobody waits for it yet
                size = self.style.hidden * 512
                yield from self._collective("DATA_PARALLEL_GROUP", Op.REDUCE_SCATTER, size, 190, "start_grad_sync",
                                            blocking=False)  # fmt: skip
                yield from self._collective("EXPERT_DATA_PARALLEL_GROUP", Op.REDUCE_SCATTER, size * 2, 191,
                                            "start_grad_sync", blocking=False)  # fmt: skip

    def _finish(self) -> Iterator[Action]:
        _, stage, _ = self.layout.place(self.rank)
        for line, desc in ((200, "DATA_PARALLEL_GROUP"), (201, "EXPERT_DATA_PARALLEL_GROUP")):
            yield Action(kind=Kind.WAIT, group=self.own[desc].name, line=line, function="finish_grad_sync")
        if self.layout.pipeline > 1 and stage in (0, self.layout.pipeline - 1):
            yield from self._collective("EMBEDDING_GROUP", Op.ALL_REDUCE, self.style.hidden * 256, 205, "finalize")
        yield from self._collective("MODEL_PARALLEL_GROUP", Op.ALL_REDUCE, 1, 210, "clip_grad_norm", dtype="Float")
        if self.style.reads:
            yield Action(kind=Kind.READ, line=211, function="clip_grad_norm")
        yield self._compute(7000.0, 215, "optimizer")
        yield from self._collective("DATA_PARALLEL_GROUP", Op.ALL_GATHER, self.style.hidden * 256, 220, "gather_params")
        if self.style.logs:
            yield from self._collective("default_pg", Op.ALL_REDUCE, 8, 230, "log", dtype="Float")

    def _tensor(self, line: int, function: str) -> Iterator[Action]:
        size = self.style.hidden * 128
        if self.style.sequence_parallel:
            yield from self._collective("TENSOR_MODEL_PARALLEL_GROUP", Op.ALL_GATHER, size, line, function)
            yield self._compute(3000.0, line, function)
            yield from self._collective("TENSOR_MODEL_PARALLEL_GROUP", Op.REDUCE_SCATTER, size, line, function)
        else:
            yield from self._collective("TENSOR_MODEL_PARALLEL_GROUP", Op.ALL_REDUCE, size, line, function)

    def _experts(self, line: int) -> Iterator[Action]:
        size = self.style.hidden * (96 + 7 * (self.rank * 37 % 11))  # as many tokens as the router sends here
        for part in ("dispatch", "combine"):
            yield from self._collective("EXPERT_MODEL_PARALLEL_GROUP", Op.ALL_TO_ALL, size, line, part)
            yield self._compute(2500.0, line, part)

    def _collective(
        self, desc: str, op: Op, size: int, line: int, function: str, *, dtype: str = "BFloat16",
        blocking: bool = True, root: bool = False,
    ) -> Iterator[Action]:  # fmt: skip
        group = self.own[desc]
        count = len(group.members)
        if count == 1 and desc in ("TENSOR_MODEL_PARALLEL_GROUP", "EXPERT_MODEL_PARALLEL_GROUP"):
            return  # the layers leave them out; the optimizer does not
        sizes = {Op.ALL_GATHER: (size, size * count), Op.REDUCE_SCATTER: (size * count, size)}.get(op, (size, size))
        yield Action(
            kind=Kind.COLLECTIVE, group=group.name, op=op, recorded=_RECORDED.get(op, op.value), sizes=sizes,
            dtype=dtype, us=1500.0 + sum(sizes) / 2000, blocking=blocking, line=line, function=function,
            peer=group.members[0] if root else -1,
        )  # fmt: skip

    def _send(self, towards: int, line: int) -> Iterator[Action]:
        yield from self._p2p(Kind.SEND, towards, line)

    def _receive(self, towards: int, line: int) -> Iterator[Action]:
        yield from self._p2p(Kind.RECV, towards, line)

    def _p2p(self, kind: Kind, towards: int, line: int) -> Iterator[Action]:
        t, stage, d = self.layout.place(self.rank)
        if not 0 <= stage + towards < self.layout.pipeline:
            return
        group, size = self.own["PIPELINE_MODEL_PARALLEL_GROUP"], self.style.hidden * 128
        peer = self.layout.rank(t, stage + towards, d)
        me, other = group.members.index(self.rank), group.members.index(peer)
        sends = kind is Kind.SEND
        yield Action(
            kind=kind, group=group.name, op=Op.SEND if sends else Op.RECV,
            recorded=f"send {me}->{other}" if sends else f"recv {me}<-{other}", sizes=(size, size), peer=peer,
            us=2000.0, blocking=self.style.sends_block or not sends, line=line,
            function=f"{kind.value}_stage",
        )  # fmt: skip

    def _compute(self, us: float, line: int, function: str) -> Action:
        return Action(kind=Kind.COMPUTE, us=us, line=line, function=function)


_RECORDED = {
    Op.ALL_GATHER: "_all_gather_base",
    Op.REDUCE_SCATTER: "_reduce_scatter_base",
}


def without(step: tuple[Action, ...], index: int) -> tuple[Action, ...]:
    """Return a step with one action left out."""
    return (*step[:index], *step[index + 1 :])


def exchanged(step: tuple[Action, ...], first: int, second: int) -> tuple[Action, ...]:
    """Return a step in which two actions have changed places."""
    found = list(step)
    found[first], found[second] = found[second], found[first]
    return tuple(replace(action) for action in found)
