"""Simulates how long each rank is blocked, step by step, and what it spends its time in.

Every rank works for a share of each step that varies by 2 %, ranks differ a little for good, and all wait for the
last one. A slow rank works longer than its like from one moment on, and everybody's steps grow by as much.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ncclwatch.contract.model.slowness import SlowKind
from ncclwatch_server.stragglers.reasons.kinds import SPENT

NOISE = 0.02  # of a rank's work in a step, one standard deviation of the logarithm
APART = 0.002  # of what ranks differ by for good
SLACK = 0.15  # of a step that the median rank is blocked: the last of very many comes so much later, and data travels
WINDOW_S = 1.5  # between two boundaries, at least, as the agent does it
SHARE = 0.2  # that a slow rank works longer, if nothing is said
_KEPT = 4  # boundaries

COLUMN = {kind: name for name, kind in SPENT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """One rank that becomes slow."""

    kind: SlowKind
    share: float = SHARE  # it works longer by so much
    rank: int = -1  # not drawn yet
    since_s: float = math.inf

    @classmethod
    def parse(cls, text: str) -> "Slow":
        """Return what "slow", "slow:data_loading" or "slow:data_loading:0.1" stands for. Raises `ValueError`."""
        _, kind, share = (*text.split(":"), "", "")[:3]
        kinds = {each.value: each for each in COLUMN}
        if text.count(":") > 2 or (kind and kind not in kinds):
            raise ValueError(f"{text!r} is no slow rank; write slow:KIND:SHARE with one of {', '.join(sorted(kinds))}")
        try:
            much = float(share or SHARE)
        except ValueError:
            much = 0.0
        if not 0.0 < much <= 10.0:
            raise ValueError(f"{text!r}: a rank is slower by a share of a step, for example slow:compute:0.2")
        return cls(kind=kinds[kind or SlowKind.COMPUTE.value], share=much)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A training step, or in it a wait of all for one rank, from one moment to another."""

    began: float
    until: float
    step: int
    pause: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The columns of a digest from pace_group on, by rank; those that are not here are 0."""

    boundary: int
    time_ms: NDArray[np.uint32]
    waited_ns: NDArray[np.uint64]
    spent_ms: dict[str, NDArray[np.uint32]]

    def put(self, rows: NDArray[np.void], first: int, key: int) -> None:
        """Write the columns of neighbours, from one rank on, into their rows."""
        part = slice(first, first + len(rows))
        if self.boundary:
            rows["pace_group"], rows["pace_seq"] = key, self.boundary
            rows["pace_ms"], rows["pace_waited_ns"] = self.time_ms[part], self.waited_ns[part]
        for name, column in self.spent_ms.items():
            rows[name] = column[part]


class StepTimes:
    """The step times of all ranks of one job. Steps are asked for in their order, but for a few."""

    def __init__(
        self, ranks: int, spans: tuple[Span, ...], slow: Slow | None, seed: int, halts: Callable[[int], int]
    ) -> None:
        """`halts` returns the rank for which all wait in a pause, by its step."""
        self._spans, self._slow, self._seed, self._halts = spans, slow, seed, halts
        step_s = float(np.median([span.until - span.began for span in spans]))
        self._every = 1 << max(0, math.ceil(math.log2(WINDOW_S / step_s)))
        random = np.random.default_rng(seed)
        self._usual = random.normal(1.0, APART, ranks)
        self._clock_ms = random.integers(1, 2**32, ranks)  # everybody's own
        self._done = 0
        self._waited_s, self._ran_s = np.zeros(ranks), np.zeros(ranks)
        self._more_s = 0.0  # that the slow rank has spent in its kind
        self._told: OrderedDict[int, Told] = OrderedDict()
        self._keep(0.0)

    def after(self, step: int) -> Told:
        """Return what all ranks tell after so many steps."""
        while self._done < min(step, len(self._spans)):
            span = self._spans[self._done]
            self._live(span)
            self._done += 1
            if self._done % self._every == 0:
                self._keep(span.until)
        wanted = step // self._every * self._every
        return self._told.get(wanted) or next(iter(self._told.values()))

    def _live(self, span: Span) -> None:
        """Let all ranks go through one step."""
        length_s = span.until - span.began
        if span.pause:
            worked_s = np.zeros(len(self._usual))
            worked_s[self._halts(span.step)] = length_s
        else:
            slow = self._slow if self._slow is not None and span.began >= self._slow.since_s else None
            base_s = length_s * (1.0 - SLACK) / (1.0 + (slow.share if slow is not None else 0.0))
            noise = np.random.default_rng((self._seed, span.step)).lognormal(0.0, NOISE, len(self._usual))
            worked_s = base_s * self._usual * noise
            if slow is not None:
                more_s = worked_s[slow.rank] * slow.share
                worked_s[slow.rank] += more_s
                self._more_s += more_s
        worked_s = np.minimum(worked_s, length_s)
        self._ran_s += worked_s
        self._waited_s += length_s - worked_s

    def _keep(self, now_s: float) -> None:
        spent = {"ran_ms": (self._ran_s * 1e3).astype(np.uint32)}
        if self._slow is not None:
            name = COLUMN[self._slow.kind]
            column = spent.setdefault(name, np.zeros(len(self._usual), np.uint32))
            if name != "ran_ms":  # it does not compute meanwhile
                spent["ran_ms"][self._slow.rank] -= int(self._more_s * 1e3)
                column[self._slow.rank] += int(self._more_s * 1e3)
        self._told[self._done] = Told(
            boundary=self._done, spent_ms=spent, waited_ns=(self._waited_s * 1e9).astype(np.uint64),
            time_ms=((self._clock_ms + int(now_s * 1e3)) % 2**32).astype(np.uint32),
        )  # fmt: skip
        while len(self._told) > _KEPT:
            self._told.popitem(last=False)
