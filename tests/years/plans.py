"""Draws jobs: their layout, the length of their steps, their timeouts, and what one of their steps consists of."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ncclwatch.contract.model.rank import Op
from tests.spmd.program import Kind, Ranks, Step

WORLD, INIT = "0", "init"  # names of groups; the second stands for the rendezvous
TRAIN, VALIDATE, SAVE = 30, 70, 60  # lines of the program
_WORLDS = (2,) * 24 + (4,) * 36 + (8,) * 32 + (16,) * 6 + (32, 64)
BIG_WORLD, BIG_SHARE = 1024, 0.0002
TIMEOUTS_S = (600.0, 1800.0, 1800.0, 1800.0, 3600.0)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One job."""

    seed: int
    world: int
    tp: int
    pp: int
    per_host: int
    step_s: float
    micro: int  # batches whose gradients are accumulated
    buckets: int  # of gradients
    norm: bool  # all ranks exchange the norm of the gradients, or the loss
    epoch: int  # batches
    says_length: bool
    timeout_s: float
    eager: bool = True

    @property
    def dp(self) -> int:
        """How many replicas there are."""
        return self.world // (self.tp * self.pp)

    @property
    def hosts(self) -> int:
        """How many nodes there are."""
        return -(-self.world // self.per_host)

    def host(self, rank: int) -> int:
        """Return the node of a rank."""
        return rank // self.per_host

    @cached_property
    def groups(self) -> Mapping[str, Ranks]:
        """The members of each group by its name."""
        found = {WORLD: tuple(range(self.world))}
        for axis in ("tp", "dp", "pp"):
            for members in sorted({self._members(rank, axis) for rank in range(self.world)}):
                if len(members) > 1:
                    found[str(len(found))] = members
        return found

    @cached_property
    def own(self) -> Mapping[tuple[int, str], str]:
        """The group of each rank along each axis; axes without groups are left out."""
        by_members: dict[tuple[str, Ranks], str] = {}
        names = iter(list(self.groups)[1:])
        for axis in ("tp", "dp", "pp"):
            for members in sorted({self._members(rank, axis) for rank in range(self.world)}):
                if len(members) > 1:
                    by_members[axis, members] = next(names)
        return {
            (rank, axis): by_members[axis, self._members(rank, axis)]
            for rank in range(self.world)
            for axis in ("tp", "dp", "pp")
            if (axis, self._members(rank, axis)) in by_members
        }

    def _members(self, rank: int, axis: str) -> Ranks:
        """Return who shares a group with a rank: ranks are numbered by stage, replica and part."""
        stage, rest = divmod(rank, self.dp * self.tp)
        replica, part = divmod(rest, self.tp)
        if axis == "tp":
            places = [(stage, replica, each) for each in range(self.tp)]
        elif axis == "dp":
            places = [(stage, each, part) for each in range(self.dp)]
        else:
            places = [(each, replica, part) for each in range(self.pp)]
        return tuple((at * self.dp + of) * self.tp + to for at, of, to in places)

    def stage(self, rank: int) -> int:
        """Return the stage of the pipeline that a rank is in."""
        return rank // (self.dp * self.tp)

    def train(self, rank: int, number: int, slow: float = 1.0) -> list[Step]:
        """Return what a rank does in one training step."""
        made = _Making(number, number % self.epoch + 1)
        share_s = self.step_s * slow / (2 * self.micro * self.pp)
        made.add(TRAIN, Kind.DRAW)
        tp = self.own.get((rank, "tp"))
        for _ in range(self.micro):
            for line, way in ((40, 1), (44, -1)):
                self._message(made, rank, -way, Op.RECV, line)
                made.add(line + 1, Kind.COMPUTE, seconds=share_s)
                if tp is not None:
                    made.call(line + 2, tp, Op.ALL_REDUCE, 4096)
                self._message(made, rank, way, Op.SEND, line + 3)
        dp = self.own.get((rank, "dp"))
        for bucket in range(self.buckets if dp is not None else 0):
            made.call(50 + bucket, dp or "", Op.ALL_REDUCE, 1_000_000 + bucket)
        if self.norm:
            made.call(56, WORLD, Op.ALL_REDUCE, 1)
        made.add(57, Kind.COMPUTE, seconds=0.02 * self.step_s * slow)
        return made.steps

    def _message(self, made: "_Making", rank: int, way: int, op: Op, line: int) -> None:
        group, to = self.own.get((rank, "pp")), self.stage(rank) + way
        if group is not None and 0 <= to < self.pp:
            made.call(line, group, op, 4096, root=rank + way * self.dp * self.tp)


class _Making:
    """The steps of a rank, as they are put together."""

    def __init__(self, number: int, batch: int) -> None:
        self.number, self.batch = number, batch
        self.steps: list[Step] = []

    def add(self, line: int, kind: Kind, seconds: float = 0.0) -> None:
        """Put in a step."""
        self.steps.append(Step(line, kind, seconds=seconds, batch=self.batch, loader=TRAIN, turn=self.number))

    def call(self, line: int, group: str, op: Op, numel: int, root: int = -1) -> None:
        """Put in an operation."""
        self.steps.append(
            Step(line, Kind.CALL, group, op, root, numel, batch=self.batch, loader=TRAIN, turn=self.number)
        )


def call(line: int, group: str, op: Op = Op.BARRIER, numel: int = 0, turn: int = 0, batch: int = 0) -> Step:
    """Return one operation."""
    return Step(line, Kind.CALL, group, op, -1, numel, batch=batch, loader=TRAIN, turn=turn)


def work(line: int, seconds: float, how: str = "", turn: int = 0) -> Step:
    """Return some work between two operations."""
    return Step(line, Kind.COMPUTE, seconds=seconds, how=how, loader=TRAIN, turn=turn)


def draw(rng: random.Random, seed: int, worlds: tuple[int, ...] = ()) -> Plan:
    """Return a job."""
    big = not worlds and rng.random() < BIG_SHARE
    world = BIG_WORLD if big else rng.choice(worlds or _WORLDS)
    tp = rng.choice([each for each in (1, 1, 1, 2, 4, 8) if world % each == 0 and each <= world])
    pp = rng.choice([each for each in (1, 1, 1, 2, 4) if world % (tp * each) == 0])
    return Plan(
        seed=seed, world=world, tp=tp, pp=pp, per_host=rng.choice((4, 8, 8)),
        step_s=math.exp(rng.uniform(math.log(0.3), math.log(6.0))), micro=rng.choice((1, 1, 2, 4)),
        buckets=rng.choice((1, 2, 3)), norm=rng.random() < 0.7, epoch=rng.choice((500, 2000, 20_000)),
        says_length=rng.random() < 0.7, timeout_s=rng.choice(TIMEOUTS_S), eager=rng.random() < 0.6,
    )  # fmt: skip
