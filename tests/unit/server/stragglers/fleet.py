"""Ranks that report once a second, as the tests of slow ranks have them."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from ncclwatch_server.state.digest_rows import RANK_DTYPE
from ncclwatch_server.stragglers.tracker import Finding, Stragglers
from ncclwatch_server.stragglers.windows import Rows
from ncclwatch_server.stragglers.words import Whereabouts

S = 1000
MESSAGES_S = 2.5
WORLD = 4
NOWHERE = Whereabouts(host_of=lambda rank: f"node{rank}", site_of=lambda _: None)
Blocked = Callable[[int, int], float]  # rank, window -> share of the time


class Fleet:
    """Ranks that report once a second; a window is two seconds and eight operations long."""

    def __init__(self, blocked: Blocked, world: int = WORLD, **spent: dict[int, float]) -> None:
        self.world, self.blocked, self.spent = world, blocked, spent
        self.rows = np.zeros(world, RANK_DTYPE)
        self.rows["rank"] = np.arange(world)
        self.rows["pace_group"] = 7
        self.window, self.now = 0, 100.0

    def step(self) -> tuple[Rows, np.ndarray]:
        self.window += 1
        self.now += 2.0
        self.rows["pace_seq"] += 8
        self.rows["steps"] += 8
        self.rows["pace_ms"] += 2 * S
        for rank in range(self.world):
            self.rows["pace_waited_ns"][rank] += int(self.blocked(rank, self.window) * 2e9)
        for name, shares in self.spent.items():
            for rank, share in shares.items():
                self.rows[name][rank] += int(share * 2 * S)
        return self.rows.copy(), np.arange(self.world)

    def findings(self, windows: int, known: Stragglers | None = None) -> tuple[Finding, ...]:
        stragglers = known or Stragglers(self.world)
        for _ in range(windows):
            stragglers.add_rows(*self.step(), self.now)
        return stragglers.findings


class Pausing(Fleet):
    """A fleet with pauses of a kind in some windows, as shares of the time."""

    def __init__(self, blocked: Blocked, name: str, pauses: dict[int, Blocked], world: int = 2) -> None:
        super().__init__(blocked, world)
        self.name, self.pauses = name, pauses

    def step(self) -> tuple[Rows, np.ndarray]:
        for rank, share in self.pauses.items():
            self.rows[self.name][rank] += int(share(rank, self.window + 1) * 2 * S)
        return super().step()


def slow(which: Iterable[int], share: float = 0.5) -> Blocked:
    """Ranks that never wait while the others do."""
    late = set(which)
    return lambda rank, _: 0.0 if rank in late else share


class Pipeline(Fleet):
    """Ranks that only send and receive: no group that all cut at."""

    def step(self) -> tuple[Rows, np.ndarray]:
        before = self.rows["pace_waited_ns"].copy()
        super().step()
        self.now += MESSAGES_S - 2.0
        self.rows["pace_group"] = 0
        self.rows["issued"] += 4
        self.rows["peers_ms"] += ((self.rows["pace_waited_ns"] - before) // 2_000_000 * MESSAGES_S).astype(np.uint32)
        return self.rows.copy(), np.arange(self.world)


def every_third(_: int, window: int) -> float:
    return 0.7 if window % 3 == 0 else 0.05


def drawing_alike(world: int, seed: int, often: NDArray[np.float64] | float = 0.3) -> Pausing:
    """Ranks whose loaders meet a large item in some windows, by chance; `often`: in that share of them."""
    drawn = np.where(np.random.default_rng(seed).random((400, world)) < often, 0.6, 0.02)
    return Pausing(
        lambda rank, window: float(drawn[window].max() - drawn[window, rank]), "data_ms",
        {rank: lambda rank, window: float(drawn[window, rank]) for rank in range(world)}, world,
    )  # fmt: skip
