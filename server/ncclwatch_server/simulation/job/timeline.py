"""Moves a simulated job through time: steps of uneven length, pauses of all ranks, and a fault.

A healthy job is no clockwork: steps vary (lognormal, the usual shape of step times), now and then all ranks
wait for one that is slow, and the nodes report each at a moment of its own, so that one report shows other steps
than the next. Nothing of that is a hang.
"""

import bisect
import math
import random
from collections import OrderedDict
from dataclasses import dataclass, field, replace

from ncclwatch_server.simulation.fleet import Fleet
from ncclwatch_server.simulation.job.faults import Fault, FaultKind, drawn
from ncclwatch_server.simulation.job.layout import Layout
from ncclwatch_server.simulation.job.program import Course, Training, courses
from ncclwatch_server.simulation.job.step_times import Slow, Span, StepTimes
from ncclwatch_server.simulation.run import Standstill, run

_FLEETS_KEPT = 4  # of the newest steps: nodes report about now


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a job goes on while nothing is wrong. Times are seconds."""

    step_s: float = 1.0  # median length of a training step
    spread: float = 0.1  # sigma of its logarithm
    pause_every: int = 20  # training steps between two pauses of all ranks, on average; 0: never
    pause_s: float = 2.0  # median length of one: a checkpoint, a slow batch


@dataclass
class Timeline:
    """A simulated job through time, which is given as seconds since its first step."""

    layout: Layout
    training: Training
    spans: tuple[Span, ...]
    stages: tuple[Course, ...]
    onset_s: float  # from when on nothing moves any more; infinite: never
    fault: Fault | None
    seed: int
    slow: Slow | None = None
    _end: Fleet | None = None
    _pauses: dict[int, Fleet] = field(default_factory=dict)
    _cruising: "OrderedDict[int, Fleet]" = field(default_factory=OrderedDict)
    _step_times: StepTimes = field(init=False)

    def __post_init__(self) -> None:
        """Let nothing have happened yet."""
        self._step_times = StepTimes(
            self.layout.world_size, self.spans, self.slow, self.seed, lambda step: self._slow(step).rank
        )

    @property
    def steps(self) -> int:
        """How many training steps the program has."""
        return self.spans[-1].step + 3

    def at(self, now_s: float) -> tuple[Fleet, float]:
        """Return how all nodes would report at a moment, and for how long it has been so: 0 while ranks move."""
        if self._end is not None and now_s >= self.onset_s:
            return self._end, now_s - self.onset_s
        index = bisect.bisect_right(self.spans, now_s, key=lambda span: span.began) - 1
        span = self.spans[max(0, index)]
        fleet = self._pauses[span.step] if span.pause else self._step(span.step)
        fleet.delays = self._step_times.after(span.step)
        return fleet, now_s - span.began if span.pause else 0.0

    def prepare(self) -> None:
        """Compute what takes long: counters, and where all ranks stand in each pause and at the end."""
        self.at(0.0)[0].rows(0.0)
        for span in self.spans:
            if span.pause:
                self._pauses[span.step] = Fleet(replace(self._run(self._slow(span.step), span.step), working=True))
        if self.fault is not None:
            self._end = Fleet(self._run(self.fault, self.spans[-1].step + 1))

    def _run(self, fault: Fault, step: int) -> Standstill:
        return run(self.layout, self.training, (fault,), steps=self.steps, from_step=step)

    def _slow(self, step: int) -> Fault:
        return drawn(FaultKind.STUCK, self.layout, self.stages, step, random.Random(self.seed + step))

    def _step(self, step: int) -> Fleet:
        if step not in self._cruising:
            course_of = [self.layout.stage(rank) for rank in range(self.layout.world_size)]
            places = [len(self.stages[stage].steps) // self.steps * step for stage in course_of]
            still = Standstill(
                layout=self.layout, faults=(), courses=self.stages, course_of=course_of, places=places,
                stopped_at=[0] * self.layout.world_size, moving=True,
            )  # fmt: skip
            self._cruising[step] = Fleet(still)
            while len(self._cruising) > _FLEETS_KEPT:
                self._cruising.popitem(last=False)
        return self._cruising[step]


def plan(
    layout: Layout, manner: Manner, kind: FaultKind | None, *, healthy_s: float, seed: int, slow: Slow | None = None,
) -> Timeline:  # fmt: skip
    """Return a job that is healthy for so long, and then, if a kind of fault is given, makes it. Same seed, same job.

    A slow rank stops nothing: it is slow from its `since_s` on, within the healthy time.
    Raises `ValueError` where no rank of this layout can make such a fault.
    """
    rng = random.Random(seed)
    if slow is not None:
        slow = replace(slow, rank=random.Random(seed).randrange(layout.world_size))
    spans: list[Span] = []
    now, step = 0.0, 0
    while now < healthy_s or not spans:
        if manner.pause_every and rng.random() * manner.pause_every < 1.0:
            length = manner.pause_s * math.exp(rng.gauss(0.0, 0.5))
            spans.append(Span(began=now, until=now + length, step=step, pause=True))
            now += length
            step += 1
        length = manner.step_s * math.exp(rng.gauss(0.0, manner.spread))
        if slow is not None and now >= slow.since_s:
            length *= 1.0 + slow.share
        spans.append(Span(began=now, until=now + length, step=step, pause=False))
        now += length
        step += 1
    last = spans[-1].step
    training = Training()
    stages = courses(layout, training, last + 3)
    fault = drawn(kind, layout, stages, last + 1, rng) if kind is not None else None
    return Timeline(
        layout=layout, training=training, spans=tuple(spans), stages=stages,
        onset_s=now if fault is not None else math.inf, fault=fault, seed=seed, slow=slow,
    )  # fmt: skip
