"""Tells a slow rank from one with big batches, by what batches of one data bucket cost on different ranks.

A bucket is the shape of a batch (`rank.loaders`), so equal buckets are equal work. A rank whose lateness is what its
mixture of buckets would cost on the others as well has no bad machine: the work is dealt unevenly.
"""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ncclwatch.contract.wire import Loop

TIMED_MIN = 5  # batches of a bucket, before its cost is believed
EXPLAINS = 0.6  # of what a rank works more than the others
MORE_MIN = 0.05  # it must work more by so much
SLOWER_MIN = 0.10  # a bucket is slower on a rank by so much
PEERS_MAX = 64  # ranks compared with; more tell nothing new
RENEW_S = 60.0  # between two baselines: what was long ago is forgotten

Costs = Mapping[str, tuple[int, float]]  # bucket -> batches, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Where a rank's work comes from."""

    by_batches: float  # share of its excess that its mixture of buckets explains, 0..1
    slower: tuple[tuple[str, float, float], ...] = ()  # (bucket, seconds a batch on it, on the others), worst first


class Batches:
    """What the batches of a job cost, rank by rank and bucket by bucket. Bounded by the wire: COSTS_MAX for a rank."""

    def __init__(self) -> None:
        self._base: dict[int, Costs] = {}
        self._newest: dict[int, Costs] = {}
        self._renewed_at = float("-inf")
        self._next: dict[int, Costs] = {}

    def add_loops(self, loops: Iterable[Loop], now: float) -> None:
        """Keep the totals that an agent told."""
        for loop in loops:
            self._newest[loop.rank] = {name: (timed, worked_s) for name, timed, worked_s in loop.costs}
        if now - self._renewed_at >= RENEW_S:
            self._renewed_at = now
            self._base, self._next = self._next, dict(self._newest)

    def mixture(self, rank: int, like: Iterable[int]) -> Mixture | None:
        """Return where the excess work of a rank comes from, None if that cannot be told."""
        own = self._recent(rank)
        others = [found for peer in like if peer != rank and (found := self._recent(peer))][:PEERS_MAX]
        if not own or not others:
            return None
        return mixture(own, others)

    def _recent(self, rank: int) -> Costs:
        base = self._base.get(rank, {})
        found = {}
        for name, (timed, worked_s) in self._newest.get(rank, {}).items():
            before, before_s = base.get(name, (0, 0.0))
            if timed > before:
                found[name] = (timed - before, worked_s - before_s)
        return found


def mixture(own: Costs, others: list[Costs]) -> Mixture | None:
    """Return how much of a rank's excess work is that of its buckets; None if it has none, or nothing to compare."""
    usual = _usual(others)
    a_batch = [_mean(costs) for costs in others if sum(timed for timed, _ in costs.values()) >= TIMED_MIN]
    if not usual or not a_batch or sum(timed for timed, _ in own.values()) < TIMED_MIN:
        return None
    like_s, own_s = statistics.median(a_batch), _mean(own)
    if own_s < like_s * (1 + MORE_MIN):
        return None
    known = {name: cost for name in own if (cost := _cost_of(name, usual)) is not None}
    batches = sum(own[name][0] for name in known)
    if batches < TIMED_MIN:
        return None
    expected_s = sum(own[name][0] * cost for name, cost in known.items()) / batches
    slower = [
        (name, worked_s / timed, known[name])
        for name, (timed, worked_s) in own.items()
        if name in usual and timed >= TIMED_MIN and worked_s / timed > usual[name] * (1 + SLOWER_MIN)
    ]
    return Mixture(
        by_batches=min(1.0, max(0.0, (expected_s - like_s) / (own_s - like_s))),
        slower=tuple(sorted(slower, key=lambda each: each[2] - each[1])),
    )


def _usual(others: list[Costs]) -> dict[str, float]:
    """Return what a batch of each bucket costs on the ranks that are compared with."""
    found: dict[str, list[float]] = {}
    for costs in others:
        for name, (timed, worked_s) in costs.items():
            if timed >= TIMED_MIN:
                found.setdefault(name, []).append(worked_s / timed)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def _cost_of(name: str, usual: Mapping[str, float]) -> float | None:
    """Return what a bucket costs on the others: as they have it, or by its size where they never had one."""
    if name in usual:
        return usual[name]
    size = _elements(name)
    sized = [(elements, cost) for each, cost in usual.items() if (elements := _elements(each))]
    if not size or not sized:
        return None
    return size * statistics.median(cost / elements for elements, cost in sized)


def _elements(name: str) -> int:
    sides = name.split("x")
    return math.prod(map(int, sides)) if all(side.isdigit() for side in sides) else 0


def _mean(costs: Costs) -> float:
    return sum(seconds for _, seconds in costs.values()) / max(1, sum(timed for timed, _ in costs.values()))
