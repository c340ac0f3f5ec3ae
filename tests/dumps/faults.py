"""Draws jobs with faults, lets them come to rest and tells what went wrong: which ranks, and what may be told of them.

What is injected is known, and what a rank waits for is read off the machine, so nothing here depends on a judge. Two
faults count only if neither explains the other; otherwise another job is drawn.
"""

import random
from dataclasses import dataclass, field
from enum import Enum
from itertools import combinations, pairwise

from ncclwatch.contract.model.rank import Op
from tests.dumps.machine import STEPS, Call, Cut, Death, Fault, Halt, Machine, Stall
from tests.dumps.program import Action, Job, Kind, draw_job, exchanged, without
from tests.dumps.truth import circles_of, roots_of, waits_of

DRAWS_MAX = 400
REST_US = 600e6  # after which NCCL gives an operation up and writes its files
FAULTY_STEP = 1


class What(str, Enum):
    """What can go wrong."""

    HOST_STOPPED = "host_stopped"  # the main thread stands, the rest of the process lives
    GIL_HELD = "gil_held"  # the same, and no thread that needs Python's lock runs
    DEVICE_DEAD = "device_dead"  # it fell off the bus while it executed a collective
    DEVICE_STALLED = "device_stalled"  # a kernel of its own never ends; nothing in a file tells it from its peers
    LINK_DOWN = "link_down"
    CALL_SKIPPED = "call_skipped"
    ORDER_CROSSED = "order_crossed"


HEALTHY = "healthy"
HEALTHY_COPIED = "healthy_copied"  # the same, and the times of the files say nothing
STALE = "stale"  # one file is older than the others, and its own time says so
STALE_COPIED = "stale_copied"  # the same, and the times of the files say nothing
QUIET = (
    HEALTHY,
    HEALTHY_COPIED,
    STALE,
    STALE_COPIED,
)  # what is there decides nothing: right is not to name an innocent for certain


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """One fault, and what it is right to say of it."""

    what: What
    ranks: frozenset[int]  # the rank that is at fault; of a link both
    answers: tuple[frozenset[int], ...]  # each is right to name for certain
    suspects: frozenset[int]  # right to name as "one of"
    undecidable: bool  # no evidence tells the root from other suspects: it is right to name none for certain


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job at the moment when somebody looks."""

    kind: str
    seed: int
    machine: Machine
    blames: tuple[Blame, ...]
    at_us: float
    early: dict[int, float] = field(default_factory=dict)  # ranks whose file is older, and the moment of it
    copied: bool = False  # the files' times are those of a copy, made later

    @property
    def is_quiet(self) -> bool:
        """Whether it is right to name nobody."""
        return self.kind in QUIET

    @property
    def roots(self) -> frozenset[int]:
        """All ranks that are at fault."""
        return frozenset(rank for blame in self.blames for rank in blame.ranks)


@dataclass(slots=True)
class _Plan:
    """Faults before they happen."""

    whats: list[tuple[What, tuple[int, ...]]] = field(default_factory=list)
    pairs: set[int] = field(default_factory=set)  # ranks that depart in a group of two: which of both, nothing tells
    faults: list[Fault] = field(default_factory=list)
    programs: dict[int, tuple[Action, ...]] = field(default_factory=dict)


def draw_case(kind: str, seed: int, world: int = 16) -> Case:
    """Return a job with the faults that a kind names ("host_stopped", "host_stopped+device_dead", "healthy")."""
    rng = random.Random(f"{kind}/{seed}/{world}")
    if kind in (HEALTHY, HEALTHY_COPIED):
        return _healthy(rng, kind, seed, world)
    if kind in (STALE, STALE_COPIED):
        return _stale(rng, kind, seed, world)
    whats = [What(name) for name in kind.split("+")]
    machine, blames = _at_rest(rng, whats, world)
    return Case(
        kind=kind, seed=seed, machine=machine, blames=blames, at_us=machine.now_us + REST_US,
        copied=rng.random() < 0.7,
    )  # fmt: skip


def _healthy(rng: random.Random, kind: str, seed: int, world: int) -> Case:
    job = draw_job(rng, world)
    machine = Machine(job, rng)
    machine.run()
    issued = [call.issued_us for host in machine.hosts.values() for call in host.calls]
    at_us = rng.uniform(0.25, 0.75) * max(issued)
    return Case(kind=kind, seed=seed, machine=machine, blames=(), at_us=at_us, copied=kind == HEALTHY_COPIED)


def _stale(rng: random.Random, kind: str, seed: int, world: int) -> Case:
    machine, blames = _at_rest(rng, [rng.choice([What.HOST_STOPPED, What.DEVICE_DEAD])], world)
    roots = {rank for blame in blames for rank in blame.ranks}
    rank = rng.choice(sorted(machine.hosts.keys() - roots))
    calls = machine.hosts[rank].calls
    last = calls[-rng.randint(1, 8)]
    return Case(
        kind=kind, seed=seed, machine=machine, blames=blames, at_us=machine.now_us + REST_US,
        early={rank: last.issued_us - 1.0}, copied=kind == STALE_COPIED,
    )  # fmt: skip


def _at_rest(rng: random.Random, whats: list[What], world: int) -> tuple[Machine, tuple[Blame, ...]]:
    for _ in range(DRAWS_MAX):
        job = draw_job(rng, world)
        plan = _Plan()
        if not all(_inject(rng, job, what, plan) for what in whats):
            continue
        machine = Machine(job, rng, plan.faults, plan.programs)
        machine.run()
        blames = _blames(machine, plan)
        if blames and not machine.finished:
            return machine, blames
    raise AssertionError(f"no job with {whats} was found in {DRAWS_MAX} draws")


def _inject(rng: random.Random, job: Job, what: What, plan: _Plan) -> bool:
    """Add a fault of a rank that has none so far. False if this job cannot have it."""
    taken = {rank for _, ranks in plan.whats for rank in ranks}
    rank = rng.choice(sorted(job.steps.keys() - taken))
    step = job.steps[rank]
    calls = [action for action in step if action.is_call]
    first = FAULTY_STEP * len(calls)
    ranks: tuple[int, ...] = (rank,)
    if what in (What.HOST_STOPPED, What.GIL_HELD):
        plan.faults.append(Halt(rank=rank, action=FAULTY_STEP * len(step) + rng.randrange(len(step))))
    elif what is What.DEVICE_DEAD:
        fit = [n for n, action in enumerate(calls) if needs_all(job, action)]
        plan.faults.append(Death(rank=rank, call=first + rng.choice(fit)))
    elif what is What.DEVICE_STALLED:
        computes = sum(action.kind is Kind.COMPUTE for action in step)
        plan.faults.append(Stall(rank=rank, compute=FAULTY_STEP * computes + rng.randint(1, computes)))
    elif what is What.LINK_DOWN:
        number = rng.choice([n for n, action in enumerate(calls) if needs_all(job, action)])
        other = rng.choice([each for each in job.groups[calls[number].group].members if each != rank])
        plan.faults.append(Cut(ranks=(rank, other), call=first + number))
        ranks = (rank, other)
    elif not _depart(rng, job, what, rank, plan):
        return False
    plan.whats.append((what, ranks))
    return not taken & set(ranks)


def needs_all(job: Job, action: Action) -> bool:
    """Say whether an operation ends for nobody before all members have begun it."""
    several = len(job.groups[action.group].members) > 1
    return action.kind is Kind.COLLECTIVE and action.op is not Op.BROADCAST and several


def _depart(rng: random.Random, job: Job, what: What, rank: int, plan: _Plan) -> bool:
    """Let a rank leave a collective out, or exchange two of different groups that have other members in common."""
    step = job.steps[rank]
    fit = [n for n, action in enumerate(step) if action.is_call and needs_all(job, action)]
    crossed = [(a, b) for a, b in pairwise(fit) if _cross(job, step[a], step[b])]
    if not (fit if what is What.CALL_SKIPPED else crossed):
        return False
    if what is What.CALL_SKIPPED:
        left_out = rng.choice(fit)
        changed, groups = without(step, left_out), (step[left_out].group,)
    else:
        first, second = rng.choice(crossed)
        changed, groups = exchanged(step, first, second), (step[first].group, step[second].group)
    if min(len(job.groups[group].members) for group in groups) == 2:
        plan.pairs.add(rank)
    plan.programs[rank] = step * FAULTY_STEP + changed + step * (STEPS - FAULTY_STEP - 1)
    return True


def _cross(job: Job, one: Action, other: Action) -> bool:
    if one.group == other.group or not (needs_all(job, one) and needs_all(job, other)):
        return False
    shared = set(job.groups[one.group].members) & set(job.groups[other.group].members)
    return one.blocking and other.blocking and len(shared) > 1


def _blames(machine: Machine, plan: _Plan) -> tuple[Blame, ...]:
    """Return what is to be said of each fault; () unless each came to bear and none explains another."""
    waits = waits_of(machine)
    roots, circles = roots_of(waits), circles_of(waits)
    found = tuple(blame for what, ranks in plan.whats if (blame := _blame(machine, what, frozenset(ranks), plan)))
    independent = all(not one.suspects & other.suspects for one, other in combinations(found, 2))
    ends = len(roots) + len(circles)
    return found if len(found) == len(plan.whats) == ends and independent else ()


def _blame(machine: Machine, what: What, ranks: frozenset[int], plan: _Plan) -> Blame | None:
    waits = waits_of(machine)
    if what in (What.HOST_STOPPED, What.GIL_HELD, What.DEVICE_DEAD, What.DEVICE_STALLED):
        if not ranks <= roots_of(waits):
            return None
        stalled = what is What.DEVICE_STALLED
        suspects = ranks | _companions(machine, ranks) if stalled else ranks
        return Blame(what=what, ranks=ranks, answers=(ranks,), suspects=suspects, undecidable=stalled)
    circle = next((each for each in circles_of(waits) if ranks <= each), None)
    if circle is None:
        return None
    if what is What.LINK_DOWN:
        return Blame(what=what, ranks=frozenset(), answers=(frozenset(),), suspects=circle, undecidable=True)
    pair = bool(ranks & plan.pairs)
    answers = (ranks, circle) if what is What.ORDER_CROSSED or pair else (ranks,)
    return Blame(what=what, ranks=ranks, answers=answers, suspects=circle, undecidable=pair)


def _companions(machine: Machine, ranks: frozenset[int]) -> frozenset[int]:
    """Return who stands in an operation that these ranks have issued and not begun."""
    found: set[int] = set()
    for rank in ranks:
        for call in machine.hosts[rank].calls:
            if call.meeting.begun and rank not in call.meeting.begun:
                found |= set(call.meeting.members)
    return frozenset(found)


def calls_at(machine: Machine, rank: int, at_us: float) -> list[Call]:
    """Return what a rank had issued at a moment."""
    return [call for call in machine.hosts[rank].calls if call.issued_us <= at_us]
