"""Runs programs that are written as one Python function, called for each rank, and shows what agents would see."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import Op
from ncclwatch.contract.model.verdict import Severity, Verdict
from ncclwatch_server.judge import judge
from tests.spmd import machine, views
from tests.spmd.machine import Run
from tests.spmd.program import Axis, Kind, Program, Ranks, Step
from tests.spmd.views import Sight

SETTLED_S = 3000.0


class Part:
    """What one rank does. Group "0" has all ranks; "1" is the first one that is given, and so on."""

    def __init__(self, rank: int, groups: Mapping[str, Ranks]) -> None:
        self.rank, self.groups = rank, groups
        self.steps: list[Step] = []
        self._turns: Counter[int] = Counter()

    def _add(self, step: Step) -> None:
        self.steps.append(step._replace(turn=self._turns[step.line]))
        self._turns[step.line] += 1

    def work(self, seconds: float = 0.05) -> None:
        """Compute for some time."""
        self._add(Step(5, Kind.COMPUTE, seconds=seconds))

    def call(self, line: int, op: str = "all_reduce", group: str = "0", numel: int = 100, root: int = -1) -> None:
        """Make a collective at a line."""
        size = 0 if op == "barrier" else numel
        self._add(Step(line, Kind.CALL, group=group, op=Op(op), numel=size, root=root))

    def send(self, line: int, peer: int, numel: int = 100) -> None:
        """Send to a rank."""
        self._add(Step(line, Kind.CALL, group="0", op=Op.SEND, numel=numel, root=peer))

    def recv(self, line: int, peer: int, numel: int = 100) -> None:
        """Receive from a rank."""
        self._add(Step(line, Kind.CALL, group="0", op=Op.RECV, numel=numel, root=peer))


def parts_of(program: Callable[[Part], None], frame: Program) -> list[list[Step]]:
    """Return the steps of all ranks."""
    found = []
    for rank in range(frame.world):
        part = Part(rank, frame.groups)
        part.work()
        program(part)
        found.append(part.steps)
    return found


def frame_of(world: int, groups: Sequence[Ranks], *, eager: bool = True) -> Program:
    """Return a program without steps: so many ranks, in a group of all and in these."""
    axes = tuple(Axis(10 + number, (tuple(ranks),)) for number, ranks in enumerate([range(world), *groups]))
    return Program(world, axes, (), eager=eager)


def carried_out(world: int, groups: Sequence[Ranks], program: Callable[[Part], None]) -> Run:
    """Return what happens when each rank does its part."""
    frame = frame_of(world, groups)
    return machine.run(frame, parts_of(program, frame), random.Random(1))


def seen(run: Run, history: int | None = None) -> JobSnapshot:
    """Return what the judge gets when nothing goes on any more; `history`: operations that each ring still has."""
    kept = (history,) * run.program.world if history is not None else ()
    return views.snapshot(run, Sight(run.rest_s + SETTLED_S, history=kept))


def critical(snapshot: JobSnapshot) -> list[Verdict]:
    """Return the critical verdicts on a job."""
    return [verdict for verdict in judge(snapshot) if verdict.severity is Severity.CRITICAL]
