"""Puts together stretches of a job: some ordinary steps, something that happens, and some steps after it."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.spmd import machine
from tests.spmd.machine import NEVER, Run
from tests.spmd.program import Program, Step
from tests.years.doing import Doing
from tests.years.plans import INIT, Plan
from tests.years.sights import Background, Counts, Sights

FOR_EVER_S = 1e9
_MASK = 0xFFFFFFFFFFFFFFFF
BEFORE_S, AFTER_S, STEPS_MIN = 2.0, 5.0, 3


@dataclass(frozen=True)
class Outage:
    """Something between a node and the server, in seconds of its stretch."""

    node: int
    kind: str  # "cut", "frozen", "stopped", "agent" or "lag"
    began_s: float
    ended_s: float


@dataclass
class Stretch:
    """What all ranks do, and what happens beside it."""

    plan: Plan
    counts: Counts
    rng: random.Random
    slow: dict[int, float] = field(default_factory=dict)  # ranks that work for longer, by how much
    steps: list[list[Step]] = field(default_factory=list)
    doings: dict[str, Doing] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)  # of what happens
    outages: list[Outage] = field(default_factory=list)
    frozen: tuple[int, str] | None = None  # the node whose outage is as long as its ranks are frozen, and of which kind
    background: list[tuple[int, str, float]] = field(default_factory=list)  # rank, path, seconds
    ends: bool = False
    killed: bool = False  # all ranks are ended by a signal after what happens
    happens_at: list[int] = field(default_factory=list)  # position of the first step of it, by rank
    trained: int = 0

    def __post_init__(self) -> None:
        """Let no rank do anything yet."""
        self.steps = [[] for _ in range(self.plan.world)]

    def train(self, seconds: float) -> None:
        """Let all ranks make ordinary steps for about so long."""
        for _ in range(max(STEPS_MIN, math.ceil(seconds / self.plan.step_s))):
            self.step()

    def step(self) -> None:
        """Let all ranks make one ordinary step."""
        number = self.counts.steps + self.trained
        for rank in range(self.plan.world):
            self.steps[rank] += self.plan.train(rank, number, self.slow.get(rank, 1.0))
        self.trained += 1

    def begin(self) -> None:
        """Note that what happens begins here."""
        self.happens_at = [len(steps) for steps in self.steps]

    def all(self, make: Callable[[int], Sequence[Step]]) -> None:
        """Let each rank do something."""
        for rank in range(self.plan.world):
            self.steps[rank] += make(rank)

    def how(self, doing: Doing) -> str:
        """Return the name of a piece of work, as steps have it."""
        name = f"{doing.name}:{len(self.doings)}"
        self.doings[name] = doing
        return name

    def carried_out(self, seed: int, attempt: int) -> Sights:
        """Return what can be seen of it."""
        run = run_of(self.plan, self.steps, seed)
        began_s = max((times[at] for at, times in zip(self.happens_at, run.began_s, strict=True) if at < len(times)),
                      default=run.rest_s)  # fmt: skip
        if self.killed:
            _kill(run, began_s + 0.5, self.rng)
        if self.frozen is not None:
            self._freeze(run)
        self.outages = [
            o if o.ended_s < FOR_EVER_S else Outage(o.node, o.kind, began_s, o.ended_s) for o in self.outages
        ]
        background = [Background(rank, path, began_s, began_s + lasts_s) for rank, path, lasts_s in self.background]
        sights = Sights(self.plan, run, self.counts, self.doings, attempt, background)
        sights.onset_s = _onset_s(run)
        return sights

    def _freeze(self, run: Run) -> None:
        node, kind = self.frozen or (0, "")
        spans = []
        for rank, steps in enumerate(run.steps):
            for place, step in enumerate(steps[: len(run.began_s[rank]) - 1]):
                if step.how.startswith(("frozen", "stopped")) and self.plan.host(rank) == node:
                    spans.append((run.began_s[rank][place], run.began_s[rank][place + 1]))
        if spans:
            self.outages.append(Outage(node, kind, min(span[0] for span in spans), max(span[1] for span in spans)))

    def counted(self, sights: Sights) -> Counts:
        """Return what the ranks have counted after it."""
        counts = self.counts.copied()
        for rank, steps in enumerate(self.steps):
            counts.add(rank, steps)
            for name, (calls, _, _) in sights.by_group[rank].items():
                counts.prefixes[rank, name] = sights.prefix(rank, name, len(calls))
        counts.steps += self.trained
        return counts


def skip(plan: Plan, counts: Counts, seconds: float) -> None:
    """Let a job go on for so long with ordinary steps that nobody looks at."""
    times = int(seconds / plan.step_s)
    if times > 0:
        for rank in range(plan.world):
            steps = plan.train(rank, counts.steps)
            counts.add(rank, steps, times)
            for name in {step.group for step in steps if step.group and not step.op.is_p2p}:
                counts.prefixes[rank, name] = hash((counts.prefixes.get((rank, name), 1), times)) & _MASK
        counts.steps += times


class _Jitter(random.Random):
    """How long ordinary steps take varies, what happens takes as long as it was drawn to."""

    exact = False

    def uniform(self, a: float, b: float) -> float:
        """Return a factor or a delay."""
        return 1.0 if self.exact else super().uniform(a, b)


class _Machine(machine._Machine):
    """Knows which steps take exactly as long as they say."""

    rng: _Jitter

    def _step(self, now_s: float, rank: int, at: int) -> None:
        steps = self.run.steps[rank]
        self.rng.exact = at < len(steps) and bool(steps[at].how)
        super()._step(now_s, rank, at)


class _Source(Program):
    """The groups that the machine runs with; the rendezvous counts as one of them."""

    plan: Plan

    @property
    def groups(self):
        """The members of each group."""
        return {**self.plan.groups, INIT: self.plan.groups["0"]}


def run_of(plan: Plan, steps: list[list[Step]], seed: int) -> Run:
    """Return what happens when all ranks go through these steps."""
    source = _Source(plan.world, (), (), plan.eager)
    source.plan = plan
    return _Machine(source, steps, _Jitter(seed)).run


def _onset_s(run: Run) -> float:
    """Return since when some rank waits that will do so for ever."""
    waits = [call.issued_s for calls in run.calls for call in calls if call.done_s == NEVER]
    return min(waits, default=run.rest_s)


def _kill(run: Run, at_s: float, rng: random.Random) -> None:
    """End all ranks by a signal soon after a moment, in whatever they are then."""
    for rank, began in enumerate(run.began_s):
        run.began_s[rank] = [each for each in began if each <= at_s]
        run.ended_s[rank], run.how[rank] = at_s + rng.uniform(0.0, 2.0), "term"
        run.calls[rank] = [call for call in run.calls[rank] if call.issued_s <= at_s]
        for call in run.calls[rank]:
            call.done_s = call.done_s if call.done_s <= at_s else NEVER
    run.rest_s = max(run.ended_s)
