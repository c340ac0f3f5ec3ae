"""Draws programs at random: nested groups, loops over batches, tests of the step, collectives."""

import random
from collections.abc import Sequence
from typing import NamedTuple

from ncclwatch.contract.model.rank import Op
from tests.spmd.program import Axis, Kind, Program, Ranks, Stmt

_OPS = (
    *(Op.ALL_REDUCE,) * 6, *(Op.ALL_GATHER,) * 2, *(Op.REDUCE_SCATTER,) * 2, *(Op.BARRIER,) * 2, Op.ALL_TO_ALL,
    *(Op.BROADCAST,) * 2, Op.REDUCE, Op.GATHER, Op.SCATTER,
)  # fmt: skip
ROOTED = (Op.BROADCAST, Op.REDUCE, Op.GATHER, Op.SCATTER)
_WORLDS = (2, 2, 3, 3, 4, 4, 4, 4, 5, 6, 6, 8, 8)
_BIG_WORLDS = (12, 16, 32, 64)
BIG_SHARE = 0.01
PIPE_SHARE = 0.2


def draw(
    rng: random.Random,
    *,
    keys: bool = False,
    locks: bool = False,
    late: bool = False,
    works: bool = False,
    device: bool = False,
) -> Program:
    """Return a program.

    `keys`: it sets some in the store, and waits for them. `locks`: some of its work is in one. `late`: it makes some
    groups on its way. `works`: some collectives are asynchronous, and waited for later. `device`: they run on a device,
    and the host waits where it reads from that.
    """
    world = rng.choice(_BIG_WORLDS if rng.random() < BIG_SHARE else _WORLDS)
    axes = _axes(rng, world)
    drawing = _Drawing(rng, axes, Also(keys, locks, works, device), late=rng.randrange(len(axes)) if late else 0)
    body = drawing.body()
    spins = device and rng.random() < 0.5
    return Program(
        world, tuple(drawing.axes), body, late=drawing.late, device=device, spins=spins, eager=rng.random() < 0.6
    )


def _axes(rng: random.Random, world: int) -> tuple[Axis, ...]:
    axes = [Axis(10, (tuple(range(world)),))]
    for number in range(rng.choice((0, 1, 1, 2, 2, 3))):
        axes.append(Axis(11 + number, _parts(rng, world)))
    return tuple(axes)


def _parts(rng: random.Random, world: int) -> tuple[Ranks, ...]:
    """Return groups that share no rank: rows, columns, all ranks again, some ranks, or any parts."""
    ranks = list(range(world))
    widths = [width for width in range(2, world) if world % width == 0]
    kind = rng.choice(("rows", "columns", "all", "some", "any"))
    if kind in ("rows", "columns") and widths:
        width = rng.choice(widths)
        rows = [tuple(ranks[at : at + width]) for at in range(0, world, width)]
        return tuple(rows) if kind == "rows" else tuple(zip(*rows, strict=True))
    if kind == "some":
        return (tuple(sorted(rng.sample(ranks, rng.randint(min(2, world), world)))),)
    if kind == "any" and world > 3:
        rng.shuffle(ranks)
        cut = rng.randint(2, world - 2)
        return tuple(sorted(ranks[:cut])), tuple(sorted(ranks[cut:]))
    return (tuple(range(world)),)


class Also(NamedTuple):
    """What a program has besides."""

    keys: bool
    locks: bool
    works: bool
    device: bool


class _Drawing:
    """One source on its way."""

    def __init__(self, rng: random.Random, axes: Sequence[Axis], also: Also, *, late: int) -> None:
        self.rng, self.axes, self.line, self.also = rng, list(axes), 20, also
        self.late = late
        self.open: list[int] = []  # lines of asynchronous calls that are not waited for yet
        self.works: list[int] = []  # of all of them
        self.usable = len(axes) - late

    def body(self) -> tuple[Stmt, ...]:
        """Return calls of the setup, one or two loops, and calls of the end."""
        found = self.some(0, 3)
        for _ in range(self.rng.choice((1, 1, 1, 2))):
            found += (*self.make(), self.loop(), *self.some(0, 2))
        while self.usable < len(self.axes):
            found += (*self.make(), *self.some(1, 2))
        self.open = self.works
        return (*found, *self.waits(), *self.read())

    def make(self) -> tuple[Stmt, ...]:
        """Return the making of the next groups, if any are left."""
        if self.usable == len(self.axes):
            return ()
        line, axis = self.next_line(), self.usable
        self.usable += 1
        self.axes[axis] = self.axes[axis]._replace(line=line)
        return (Stmt(line, Kind.MAKE, axis=axis),)

    def next_line(self) -> int:
        self.line += self.rng.choice((1, 1, 2, 3))
        return self.line

    def some(self, least: int, most: int) -> tuple[Stmt, ...]:
        found: list[Stmt] = []
        for _ in range(self.rng.randint(least, most)):
            found.append(self.one())
            if self.open and self.rng.random() < 0.3:
                found += self.waits()
        return tuple(found)

    def read(self) -> tuple[Stmt, ...]:
        """Return a line that reads a value from the device, if there is one."""
        return (Stmt(self.next_line(), Kind.READ),) if self.also.device else ()

    def waits(self) -> tuple[Stmt, ...]:
        """Return the waits for all asynchronous calls so far."""
        lines, self.open = self.open, []
        return tuple(Stmt(self.next_line(), Kind.WAIT, awaited=line) for line in lines)

    def one(self) -> Stmt:
        if self.also.keys and self.rng.random() < 0.12:
            return self.key()
        if self.also.locks and self.rng.random() < 0.15:
            return Stmt(self.next_line(), Kind.LOCK, body=(self.compute(),))
        return self.call() if self.rng.random() < 0.7 else self.compute()

    def compute(self) -> Stmt:
        return Stmt(self.next_line(), Kind.COMPUTE, seconds=round(self.rng.uniform(0.02, 0.4), 3))

    def call(self) -> Stmt:
        rng = self.rng
        axis, op = rng.randrange(self.usable), rng.choice(_OPS)
        smallest = min(map(len, self.axes[axis].groups))
        root = rng.randrange(smallest) if op in ROOTED and rng.random() < 0.5 else 0 if op in ROOTED else -1
        numel = 0 if op in (Op.BARRIER, Op.ALL_TO_ALL) else rng.choice((1, 10, 100, 1000))
        line = self.next_line()
        is_async = self.also.works and rng.random() < 0.5
        if is_async:
            self.open.append(line)
            self.works.append(line)
        return Stmt(line, Kind.CALL, axis=axis, op=op, root=root, numel=numel, is_async=is_async)

    def key(self) -> Stmt:
        axis = self.rng.randrange(self.usable)
        return Stmt(self.next_line(), Kind.KEY, axis=axis, root=0)

    def pipe(self) -> Stmt:
        line = self.next_line()
        self.line += 8  # the lines of its sends and receives
        axis, times = self.rng.randrange(self.usable), self.rng.randint(1, 4)
        return Stmt(line, Kind.PIPE, axis=axis, numel=100, seconds=0.05, times=times)

    def loop(self) -> Stmt:
        rng = self.rng
        line, loader = self.next_line(), rng.random() < 0.6
        body = [self.compute(), *self.some(1, 4)]
        if rng.random() < 0.4:
            test = self.next_line()
            body.insert(
                rng.randint(1, len(body)),
                Stmt(test, Kind.EVERY, times=rng.choice((2, 2, 3, 4)), body=self.some(1, 2)),
            )
        if rng.random() < 0.15:
            inner = self.next_line()
            body.append(Stmt(inner, Kind.LOOP, times=rng.randint(1, 3), body=self.some(1, 2)))
        if rng.random() < PIPE_SHARE and not self.also.device:
            body.insert(rng.randint(0, len(body)), self.pipe())
        if self.open and rng.random() < 0.6:
            body += self.waits()
        if self.also.device and rng.random() < 0.4:
            body += self.read()
        return Stmt(line, Kind.LOOP, times=rng.randint(1, 8), loader=loader, body=tuple(body))
