"""Measures on random programs with one changed rank whether the smallest repair names that rank.

Each hang is judged twice: with all that was recorded, and with rings that have forgotten some of it.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ncclwatch_server.judge.theory.repair.findings import Finding, find
from ncclwatch_server.judge.theory.repair.hang import Failure
from ncclwatch_server.judge.theory.repair.tapes import Tapes, read
from ncclwatch_server.judge.theory.waits.rank_standing import standings
from tests.spmd import faults, generator, machine, views
from tests.spmd.check import settled_s
from tests.spmd.faults import HEALTHY, Fault
from tests.spmd.machine import Run
from tests.spmd.program import Program
from tests.spmd.views import Sight

CUT_HISTORIES = (3, 10, 30, views.HISTORY_MAX)  # operations that a ring may still have


class Changed(NamedTuple):
    """A program, and the change to one of its ranks."""

    seed: int
    program: Program
    fault: Fault


def draw(seed: int) -> Changed | None:
    """Return a program with one rank changed; None where the change that was drawn has no place in it."""
    rng = random.Random(seed)
    program = generator.draw(rng)
    fault = faults.draw(rng, program)
    return None if fault is HEALTHY else Changed(seed, program, fault._replace(ranks=fault.ranks[:1]))


def carried_out(changed: Changed) -> Run:
    """Return what happens."""
    steps = faults.steps_with(changed.program, changed.fault)
    return machine.run(changed.program, steps, random.Random(changed.seed))


class ChangedTwice(NamedTuple):
    """A program with changes to two of its ranks, fewer than the others in each group, both of which are needed."""

    seed: int
    program: Program
    both: tuple[Fault, Fault]


def draw_two(seed: int) -> ChangedTwice | None:
    """Return a program with two ranks changed; None where one change alone leads to the same waits."""
    rng = random.Random(seed)
    program = generator.draw(rng)
    one, other = (faults.draw(rng, program) for _ in range(2))
    if HEALTHY in (one, other) or one.ranks[0] == other.ranks[0]:
        return None
    if not faults.are_few(program, tuple(sorted((one.ranks[0], other.ranks[0])))):
        return None
    both = one._replace(ranks=one.ranks[:1]), other._replace(ranks=other.ranks[:1])
    changed = ChangedTwice(seed, program, both)
    together = _waits(carried_out_twice(changed), both)
    alone = [_waits(carried_out(Changed(seed, program, fault)), both) for fault in both]
    return changed if together and all(alone) and together not in alone else None


def _waits(run: Run, both: Sequence[Fault]) -> dict[int, int]:
    """Return which of its calls each rank waits in for ever, but for those that were changed."""
    wrong = {fault.ranks[0] for fault in both}
    waiting = {rank: calls for rank, calls in enumerate(run.calls) if calls and calls[-1].done_s == machine.NEVER}
    return {rank: len(calls) for rank, calls in waiting.items() if rank not in wrong}


def carried_out_twice(changed: ChangedTwice) -> Run:
    """Return what happens with both changes."""
    steps = faults.steps_with(changed.program, HEALTHY)
    for fault in changed.both:
        (rank,) = fault.ranks
        steps[rank] = faults.steps_with(changed.program, fault)[rank]
    return machine.run(changed.program, steps, random.Random(changed.seed))


def tapes_of(run: Run, history: tuple[int, ...] = ()) -> Tapes:
    """Return what is recorded when nothing goes on any more."""
    return read(standings(views.snapshot(run, Sight(settled_s(run), history=history))))


@dataclass(slots=True)
class Measured:
    """How often which rank was told."""

    hangs: Counter[bool] = field(default_factory=Counter)  # by whether there are three ranks or more
    told: Counter[bool] = field(default_factory=Counter)
    alone: Counter[bool] = field(default_factory=Counter)
    certain: int = 0
    certain_wrong: list[int] = field(default_factory=list)  # seeds
    missed: list[int] = field(default_factory=list)  # seeds
    by_kind: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: Counter[Failure] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)  # with histories that were cut
    used_s: list[float] = field(default_factory=list)  # CPU of each hang

    def take(self, changed: Changed, finding: Finding) -> None:
        """Count one hang."""
        ranks = [suspect.rank for suspect in finding.suspects]
        (wrong,) = changed.fault.ranks
        big = changed.program.world > 2
        how = "alone" if ranks == [wrong] else "one of" if wrong in ranks else "missed"
        self.hangs[big] += 1
        self.told[big] += wrong in ranks
        self.alone[big] += ranks == [wrong]
        self.by_kind[changed.fault.what.value, how] += 1
        if wrong not in ranks:
            self.missed.append(changed.seed)
        if finding.failure is not None:
            self.failures[finding.failure] += 1
        self.certain += finding.certain
        if finding.certain and ranks != [wrong]:
            self.certain_wrong.append(changed.seed)

    def take_cut(self, changed: Changed, finding: Finding) -> None:
        """Count the same hang with histories that were cut."""
        ranks = [suspect.rank for suspect in finding.suspects]
        (wrong,) = changed.fault.ranks
        self.cut["hangs"] += 1
        self.cut["incomplete"] += finding.failure is Failure.INCOMPLETE
        self.cut["told"] += wrong in ranks
        self.cut["alone"] += ranks == [wrong]
        self.cut["certain"] += finding.certain
        if finding.certain and ranks != [wrong]:
            self.cut["certain and wrong"] += 1
            self.certain_wrong.append(changed.seed)


def measured(first: int, count: int) -> Measured:
    """Return how often the changed rank is told, over programs of consecutive seeds."""
    found = Measured()
    for seed in range(first, first + count):
        changed = draw(seed)
        if changed is None:
            continue
        run = carried_out(changed)
        began_s = time.process_time()
        finding = find(tapes_of(run))
        used_s = time.process_time() - began_s
        if finding.failure is Failure.MOVING:
            continue
        found.used_s.append(used_s)
        found.take(changed, finding)
        rng = random.Random(seed + 1)
        found.take_cut(changed, find(tapes_of(run, tuple(rng.choice(CUT_HISTORIES) for _ in run.steps))))
    return found


def measured_twice(first: int, count: int) -> Counter[str]:
    """Return how often both of two changed ranks are told."""
    found: Counter[str] = Counter()
    for seed in range(first, first + count):
        changed = draw_two(seed)
        if changed is None:
            continue
        finding = find(tapes_of(carried_out_twice(changed)))
        if finding.failure is Failure.MOVING:
            continue
        wrong = {fault.ranks[0] for fault in changed.both}
        told = {suspect.rank for suspect in finding.suspects}
        pairs = [set(ranks) for ranks in finding.together]
        found["hangs"] += 1
        found["both told"] += wrong <= told
        found["both told, as a pair"] += wrong in pairs
        found["both told, as the only pair"] += pairs == [wrong]
        found["one of both told"] += bool(wrong & told) and not wrong <= told
        found["neither told"] += bool(told) and not wrong & told
        found["no explanation"] += not told
        found["certain of a rank that was not changed"] += finding.certain and not told <= wrong
        if not wrong & told:
            found[f"  seed {seed}"] += 1
    return found


def lines_of(found: Measured) -> Iterator[str]:
    """Yield what was measured, for people."""
    hangs = found.hangs.total()
    if not hangs:
        yield "no program hangs"
        return
    yield (
        f"{hangs} hangs; {1000 * sum(found.used_s) / hangs:.1f} ms of CPU each, at most "
        f"{1000 * max(found.used_s):.0f} ms, views included"
    )
    for name, big in (("2 ranks", False), ("3 ranks or more", True)):
        of = max(found.hangs[big], 1)
        yield (
            f"{name:16} {found.hangs[big]:6} hangs: the changed rank told in {found.told[big] / of:.1%}, "
            f"alone in {found.alone[big] / of:.1%}"
        )
    yield (
        f"{'all':16} {hangs:6} hangs: the changed rank told in {found.told.total() / hangs:.1%}, "
        f"alone in {found.alone.total() / hangs:.1%}"
    )
    yield f"certain in {found.certain}; certain and wrong: {len(found.certain_wrong)} {found.certain_wrong[:5]}"
    yield f"missed: {len(found.missed)}, by seeds {found.missed[:10]}"
    yield f"failures: {', '.join(f'{each.name} {number}' for each, number in found.failures.items()) or 'none'}"
    yield f"with cut histories: {', '.join(f'{name} {number}' for name, number in found.cut.items())}"
    for kind in sorted({kind for kind, _ in found.by_kind}):
        counts = ", ".join(f"{how} {found.by_kind[kind, how]}" for how in ("alone", "one of", "missed"))
        yield f"  {kind:8} {counts}"
