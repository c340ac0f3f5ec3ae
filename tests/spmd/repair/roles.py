"""Draws programs whose ranks have roles by design: a replica that evaluates, a stage of its own, messages of two ranks.

One rank skips a call, or makes one at a line of its own. `python -m tests.spmd.repair.roles FIRST COUNT` counts
the verdicts.
"""

import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.spmd import machine
from tests.spmd.machine import Run
from tests.spmd.program import Kind, Ranks, Step
from tests.spmd.repair.by_hand import Part, critical, frame_of, parts_of, seen

_OPS = ("all_reduce", "all_reduce", "all_gather", "barrier", "broadcast", "reduce_scatter")
_KINDS = ("replica", "p2p", "all", "all", "stage")
_CUTS = (20, 50)
OWN_LINE = 1000  # above the line of a call that is made once more


class Collective(NamedTuple):
    """A call of all ranks, each in its own group along an axis; 0: of all."""

    line: int
    op: str
    axis: int
    numel: int

    def make(self, part: Part) -> None:
        """Make it as one rank, if that has such a group."""
        own = ["0", *(name for name, ranks in part.groups.items() if name != "0" and part.rank in ranks)]
        if self.axis < len(own):
            group = own[self.axis]
            root = part.groups[group][0] if self.op == "broadcast" else -1
            part.call(self.line, self.op, group, self.numel, root)


class OfOneGroup(NamedTuple):
    """A call that only one half of the ranks makes."""

    line: int
    half: int

    def make(self, part: Part) -> None:
        """Make it as one rank, if that is in this half."""
        group = str(self.half + 1)
        if part.rank in part.groups[group]:
            part.call(self.line, "all_reduce", group, 3)


class Message(NamedTuple):
    """A message of one rank to another one."""

    line: int
    source: int
    target: int

    def make(self, part: Part) -> None:
        """Send or receive it as one rank."""
        if part.rank == self.source:
            part.send(self.line, self.target)
        if part.rank == self.target:
            part.recv(self.line + 1, self.source)


class Drawn(NamedTuple):
    """A program, and what happens when one of its ranks makes one mistake."""

    wrong: int  # that rank
    run: Run
    cut: int  # operations that rings still have when they are not whole


class _Lines:
    """Draws statements, each at a line below the one before."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.line = rng, 20

    def collective(self) -> Collective:
        self.line += self.rng.choice((1, 2))
        op, axis = self.rng.choice(_OPS), self.rng.choice((0, 0, 1, 2))
        return Collective(self.line, op, axis, self.rng.choice((1, 10, 100)))

    def special(self, world: int, groups: Sequence[Ranks]) -> Collective | OfOneGroup | Message:
        kind = self.rng.choice(_KINDS)
        self.line += 1
        if kind == "p2p" and world > 1:
            source, target = self.rng.sample(range(world), 2)
            self.line += 1
            return Message(self.line - 1, source, target)
        if kind in ("replica", "stage") and groups:
            return OfOneGroup(self.line, self.rng.randrange(2))
        return self.collective()


def _groups(rng: random.Random, world: int) -> list[Ranks]:
    if world < 4 or rng.random() >= 0.8:
        return []
    half = world // 2
    halves = [tuple(range(half)), tuple(range(half, world))]
    return halves + ([tuple(range(i, world, half)) for i in range(half)] if rng.random() < 0.5 else [])


def draw(seed: int) -> Drawn:
    """Return a program in which one rank makes one mistake."""
    rng = random.Random(seed)
    world = rng.choice((2, 2, 3, 4, 4, 4, 6, 8))
    groups = _groups(rng, world)
    steps, lines = rng.choice((3, 8, 20, 40)), _Lines(rng)
    main = [lines.collective() for _ in range(rng.randint(1, 4))]
    specials = [
        (rng.choice((2, 5, 10, steps, steps)), lines.special(world, groups)) for _ in range(rng.randint(1, 3))
    ]  # fmt: skip
    tail = [lines.collective() for _ in range(rng.randint(0, 2))]

    def program(part: Part) -> None:
        for step in range(steps):
            part.work(0.01)
            for each in (*main, *(one for every, one in specials if step % every == every - 1)):
                each.make(part)
        for each in tail:
            each.make(part)
        part.work()
        part.call(900, "barrier")

    frame = frame_of(world, groups, eager=rng.random() < 0.6)
    parts, wrong = parts_of(program, frame), rng.randrange(world)
    _spoil(rng, parts[wrong])
    return Drawn(wrong, machine.run(frame, parts, random.Random(seed)), rng.choice(_CUTS))


def _spoil(rng: random.Random, steps: list[Step]) -> None:
    calls = [at for at, step in enumerate(steps) if step.kind is Kind.CALL]
    at = rng.choice([at for at in calls if at > len(steps) * 0.5] or calls)
    if rng.choice(("skip", "skip", "extra")) == "skip":
        del steps[at]
    else:
        steps.insert(at, steps[at]._replace(line=steps[at].line + OWN_LINE))


def judged(drawn: Drawn) -> Iterator[str]:
    """Yield what is said of it with whole rings and with cut ones: right, one of, WRONG or nothing."""
    for history in (None, drawn.cut):
        said = critical(seen(drawn.run, history))
        told = {culprit.rank for verdict in said for culprit in verdict.culprits}
        if not said:
            yield "nothing"
        elif any(verdict.one_of for verdict in said):
            yield "one of" if drawn.wrong in told else "one of others"
        else:
            yield "right" if told == {drawn.wrong} else "WRONG"


def main(first: int, count: int) -> None:
    """Print how often what was said, and the seeds of what was wrong."""
    said = {seed: tuple(judged(draw(seed))) for seed in range(first, first + count)}
    print(Counter(each for both in said.values() for each in both))
    print("wrong:", [seed for seed, both in said.items() if {"WRONG", "one of others"} & {*both}])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
