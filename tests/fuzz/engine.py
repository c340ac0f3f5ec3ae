"""Gives a surface one input after the other, so many or for so long, and keeps those that bring up something new."""

import hashlib
import importlib
import math
import random
import resource
import time
import traceback
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from tests.fuzz.mutation import Mutate

CORPUS = Path(__file__).parent / "corpus"
POOL_MAX = 4000
BYTES_MAX = 512 * 1024  # of an input that is tried further
SMALLER_S = 5.0  # for making a finding smaller
SURFACES = (
    "agent_line", "digests", "messages", "judge", "rings", "postmortem", "node_files", "notify_answers",
    "server_messages", "tokens",
)  # fmt: skip


class Broken(AssertionError):
    """An input did what none may do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """One way in, and what must hold for whatever comes through it."""

    name: str
    seeds: tuple[bytes, ...]
    mutate: Mutate
    check: Callable[[bytes], Hashable]  # what became of an input; raises on what must not be
    cpu_s_max: float = 3.0  # for one input
    growth_bytes_max: int = 256 << 20  # of this process over a run

    @property
    def corpus(self) -> tuple[Path, ...]:
        """The inputs that are kept in the repository."""
        return tuple(sorted((CORPUS / self.name).glob("*")))


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a run has tried, and what it found."""

    surface: str
    seed: int
    inputs: int = 0
    outcomes: set[Hashable] = field(default_factory=set)
    findings: dict[str, tuple[bytes, str]] = field(default_factory=dict)  # by place: the input, the traceback
    growth_bytes: int = 0
    wall_s: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.surface:<16} {self.inputs:>9,} inputs in {self.wall_s:5.1f} s, {len(self.outcomes):>5} outcomes, "
            f"+{self.growth_bytes / 1e6:.0f} MB, {len(self.findings)} findings (seed {self.seed})"
        )


def surface(name: str) -> Surface:
    """Return a surface by its name."""
    module: ModuleType = importlib.import_module(f"tests.fuzz.surfaces.{name}")
    found: Surface = module.SURFACE
    return found


def run(this: Surface, seed: int, *, inputs_max: float = math.inf, seconds_max: float = math.inf) -> Tally:
    """Try all seeds, then inputs up to one of the limits; with `inputs_max` alone, the same ones each time."""
    rng, tally = random.Random(f"{this.name}-{seed}"), Tally(surface=this.name, seed=seed)
    pool = [*this.seeds, *(path.read_bytes() for path in this.corpus)]
    began, memory = time.monotonic(), _peak_bytes()
    for data in pool:
        _try(this, data, tally)
    memory = max(memory, _peak_bytes()) if len(pool) > 1 else memory
    inputs_max += tally.inputs
    while tally.inputs < inputs_max and time.monotonic() - began < seconds_max:
        data = this.mutate(rng, rng.choice(pool))[:BYTES_MAX]
        if _try(this, data, tally) and len(pool) < POOL_MAX:
            pool.append(data)
    tally.growth_bytes, tally.wall_s = _peak_bytes() - memory, time.monotonic() - began
    if tally.growth_bytes > this.growth_bytes_max:
        tally.findings["memory"] = (b"", f"it grew by {tally.growth_bytes} bytes")
    return tally


def _try(this: Surface, data: bytes, tally: Tally) -> bool:
    """Try one input. Returns whether it brought up something new that does not break anything."""
    tally.inputs += 1
    found, place, told = outcome(this, data)
    if place:
        if place not in tally.findings:
            tally.findings[place] = (_smaller(this, data, place), told)
        return False
    new = found not in tally.outcomes
    tally.outcomes.add(found)
    return new


def outcome(this: Surface, data: bytes) -> tuple[Hashable, str, str]:
    """Return what became of an input; or where and how it broke something."""
    began = time.process_time()
    try:
        found = this.check(data)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "/tests/fuzz/engine" not in frame.filename] or frames
        return (
            None,
            f"{type(error).__name__} at {Path(ours[-1].filename).name}:{ours[-1].lineno}",
            traceback.format_exc(),
        )
    spent_s = time.process_time() - began
    if spent_s > this.cpu_s_max:
        return None, "time", f"one input of {len(data)} bytes took {spent_s:.1f} s of CPU"
    return found, "", ""


def _smaller(this: Surface, data: bytes, place: str) -> bytes:
    """Return a smaller input that breaks the same."""
    until, size = time.monotonic() + SMALLER_S, max(1, len(data) // 2)
    while size and time.monotonic() < until:
        at = 0
        while at < len(data) and time.monotonic() < until:
            less = data[:at] + data[at + size :]
            if outcome(this, less)[1] == place:
                data = less
            else:
                at += size
        size //= 2
    return data


def keep(tally: Tally, directory: Path) -> list[Path]:
    """Write what was found, and return where."""
    kept = []
    for place, (data, told) in tally.findings.items():
        name = "".join(c if c.isalnum() else "_" for c in place) + "-" + hashlib.sha256(data).hexdigest()[:8]
        path = directory / tally.surface / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.with_suffix(".txt").write_text(told)
        kept.append(path)
    return kept


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
