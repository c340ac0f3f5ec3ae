"""Plays days of one job: stretches in which something happens, with the time between them left out."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from ncclwatch_server.watch.tick import Watch
from tests.years import noise
from tests.years.cluster import Cluster, Said
from tests.years.noise import Noise
from tests.years.plans import Plan, draw
from tests.years.sights import Counts, Sights
from tests.years.stretches import Stretch, skip
from tests.years.virtual_time import VirtualLoop

DAY_S = 86_400.0
QUIET_S = 30.0  # in which nothing changes but ages: then only some moments are looked at
DENSE_S, PROBE_S, LAST_S, GROWTH = 16.0, 1.8, 4.0, 1.5


@dataclass
class Played:
    """What the server said of a job."""

    plan: Plan
    simulated_s: float = 0.0
    said: list[Said] = field(default_factory=list)
    stretches: list[tuple[float, str]] = field(default_factory=list)  # when each began, and what happened in it
    judgements: int = 0
    failures: int = 0  # of the judge, or of looks at the job

    def happening(self, at_s: float) -> str:
        """Return what happened when something was said."""
        return next((names for began_s, names in reversed(self.stretches) if began_s <= at_s), "")


class Playing:
    """One job on its way through time."""

    def __init__(self, seed: int, worlds: tuple[int, ...] = (), *, dense: bool = False, norm: bool = False) -> None:
        self.rng = random.Random(seed)
        self.dense = dense
        self.loop = VirtualLoop()
        drawn = draw(self.rng, seed, worlds)
        self.plan = replace(drawn, norm=True) if norm else drawn
        self.cluster = Cluster(self.plan, self.loop, random.Random(seed + 1))
        self.counts, self.attempt = Counts(), 0
        self.played = Played(self.plan)

    def run(self, story: Callable[["Playing"], Awaitable[None]]) -> Played:
        """Tell a story to the server; returns what it said."""
        try:
            self.loop.run_until_complete(self._run(story))
        finally:
            self.loop.close()
        watch: Watch = self.cluster.watch
        self.played.said = self.cluster.kept.said
        self.played.simulated_s = self.loop.now_s
        self.played.judgements = watch.counters.judgements
        self.played.failures = watch.counters.judge_failures + watch.counters.look_failures
        return self.played

    async def _run(self, story: Callable[["Playing"], Awaitable[None]]) -> None:
        watching = asyncio.ensure_future(self.cluster.watches())
        try:
            await story(self)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    def stretch(self) -> Stretch:
        """Return a stretch to be filled."""
        return Stretch(self.plan, self.counts, self.rng)

    async def show(self, stretch: Stretch, until: Callable[[], bool] = lambda: False, most_s: float = 0.0) -> Sights:
        """Let the server see a stretch; of a hang `most_s` of its standstill, or until a condition holds."""
        sights = stretch.carried_out(self.rng.randrange(1 << 30), self.attempt)
        self.played.stretches.append((self.loop.now_s, "+".join(stretch.names)))
        self.cluster.show(sights, stretch.outages)
        self.cluster.jump(self.loop.now_s)
        began_s = self.loop.now_s
        if most_s:
            end_s = sights.run.rest_s + most_s
        else:
            end_s = sights.run.rest_s + 6.0 if stretch.ends else min(times[-1] for times in sights.run.began_s)
        for first_s, last_s in self._looked_at(sights, stretch, end_s):
            if began_s + first_s > self.loop.now_s + 1.0:
                self.cluster.jump(began_s + first_s)
            while self.loop.now_s < began_s + last_s:
                await asyncio.sleep(min(1.0, began_s + last_s - self.loop.now_s))
                if until():
                    return sights
        self.counts = stretch.counted(sights)
        return sights

    def _looked_at(self, sights: Sights, stretch: Stretch, end_s: float) -> list[tuple[float, float]]:
        """Return the spans of a stretch in which the server runs; in between nothing changes but ages."""
        if self.dense:
            return [(0.0, end_s)]
        run = sights.run
        events = {0.0, end_s, *(each for times in run.began_s for each in times), *run.ended_s}
        for outage in stretch.outages:
            events |= {outage.began_s, outage.began_s + 45.0, outage.ended_s}
        events |= {b.ended_s for b in sights.background}
        found: list[tuple[float, float]] = []
        began_s = 0.0
        known = sorted(each for each in events if 0.0 <= each <= end_s)
        for one, other in itertools.pairwise(known):
            if other - one < QUIET_S:
                continue
            found.append((began_s, one + DENSE_S))
            after_s = DENSE_S * GROWTH
            while one + after_s + PROBE_S < other - LAST_S:
                found.append((one + after_s, one + after_s + PROBE_S))
                after_s *= GROWTH
            began_s = other - LAST_S
        found.append((began_s, end_s))
        return found

    def skip(self, seconds: float) -> None:
        """Leave out a time in which the job trains on."""
        if seconds > 0:
            skip(self.plan, self.counts, seconds)
            self.loop.now_s += seconds

    async def happens(self, what: Noise, slow: dict[int, float] | None = None) -> Sights:
        """Let something happen."""
        stretch = self.stretch()
        stretch.slow = slow or {}
        sights = await self.show(noise.stretch_with(stretch, what))
        if stretch.ends:
            await asyncio.sleep(8.0)  # the server has its last words on an attempt
        if stretch.killed:
            self.loop.now_s += noise.between(self.rng, 5.0, 600.0)
            self.attempt += 1
            self.counts = Counts(steps=self.counts.steps)
            await self.happens(noise.starts)
        return sights


async def healthy(playing: Playing, days: float) -> None:
    """Play a healthy job of so many days."""
    rng, until_s = playing.rng, days * DAY_S
    await playing.happens(noise.starts)
    rates = {what: rng.uniform(*bounds) for what, bounds in noise.PER_DAY.items()}
    times = [(rng.uniform(0.0, until_s), what) for what, rate in rates.items() for _ in range(_times(rng, rate * days))]
    slow = [(rng.uniform(0.0, until_s), None) for _ in range(_times(rng, noise.STRAGGLES_PER_DAY * days))]
    for at_s, what in sorted([*times, *slow], key=lambda each: each[0]):
        playing.skip(at_s - playing.loop.now_s)
        if what is not None:
            await playing.happens(what)
        else:
            await _straggles(playing)
    playing.skip(until_s - playing.loop.now_s)
    await playing.happens(noise.ends)


async def _straggles(playing: Playing) -> None:
    """Let one rank be slower for an hour."""
    rng = playing.rng
    slow = {rng.randrange(playing.plan.world): rng.uniform(1.3, 3.0)}
    for _ in range(3):
        await playing.happens(noise.plain, slow)
        playing.skip(noise.STRAGGLES_S / 3)


def _times(rng: random.Random, expected: float) -> int:
    """Return how often something happens that is expected so often."""
    whole = int(expected)
    return whole + (rng.random() < expected - whole)
