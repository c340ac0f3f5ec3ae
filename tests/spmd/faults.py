"""Puts one fault into some ranks' part of a program, and knows which ranks it has changed."""

import random
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from ncclwatch.contract.model.rank import Op
from tests.spmd.generator import ROOTED
from tests.spmd.program import Deviation, Kind, Program, Ranks, Step, lines_of, steps_of


class What(Enum):
    """What is wrong with the changed ranks."""

    NOTHING = "nothing"
    SKIP = "skip"  # a call is left out
    EXTRA = "extra"  # a call is made once more, at a line of its own
    AGAIN = "again"  # a call is made twice at its line
    SWAP = "swap"  # two neighbouring calls change places
    GROUP = "group"  # a call is made with another group
    ROOT = "root"  # a rooted call names another root
    SHAPE = "shape"  # another number of elements
    OTHER = "other"  # another operation
    BRANCH = "branch"  # a test comes out the other way, once
    UNEVEN = "uneven"  # a loader gives fewer batches
    EXIT = "exit"  # it ends early, and well
    CRASH = "crash"
    KILL = "kill"
    STALL = "stall"  # it stands still between two steps, for ever
    STOP = "stop"  # state T, for ever
    HOLD = "hold"  # a file lock is given back only after the next call
    UNMADE = "unmade"  # a group that these ranks are not in is not made
    REMADE = "remade"  # a group is made once more, at a line of its own


class Fault(NamedTuple):
    """What is wrong, with whom, and where: at the n-th time that these ranks come to a line."""

    what: What
    ranks: Ranks = ()
    line: int = 0
    turn: int = 0
    other: str = ""  # another group
    number: int = 0  # another root or shape, or so many batches less
    op: Op = Op.UNKNOWN


HEALTHY = Fault(What.NOTHING)
EXTRA_LINE = 1000  # above the line of the call that is made once more
_ENDS = {What.EXIT: "exit", What.CRASH: "crash", What.KILL: "kill"}
_STANDS = {What.STALL: "still", What.STOP: "stopped"}
# The more frequent ones first, as in life.
_DRAWN = (
    *(What.SKIP,) * 4, *(What.EXTRA,) * 3, What.AGAIN, What.SWAP, What.SWAP, What.GROUP, What.ROOT, What.SHAPE,
    What.OTHER, *(What.BRANCH,) * 3, *(What.UNEVEN,) * 3, What.EXIT, What.CRASH, What.KILL, *(What.STALL,) * 2,
    What.STOP,
)  # fmt: skip

_KINDS = {
    What.SKIP: (Kind.CALL, Kind.KEY),
    What.HOLD: (Kind.GIVE,),
    What.UNMADE: (Kind.MAKE,),
    What.REMADE: (Kind.MAKE,),
}


def draw(rng: random.Random, program: Program, what: What | None = None) -> Fault:
    """Return a fault of a program, of this kind or any; HEALTHY where the one that was drawn has no place in it."""
    what = what or rng.choice(_DRAWN)
    ranks = _ranks(rng, program, what)
    if what in (What.UNMADE, What.REMADE):  # several that count differently hang apart from each other
        ranks = ranks[:1]
    if what in (What.BRANCH, What.UNEVEN):
        return _of_source(rng, program, what, ranks)
    places = _places(program, what, ranks)
    return _at(rng, program, what, ranks, rng.choice(places)) if places else HEALTHY


def _places(program: Program, what: What, ranks: Ranks) -> list[Step]:
    """Return the steps at which a fault may be."""
    steps = steps_of(program, ranks[0])
    if what in _ENDS or what in _STANDS:
        return steps
    kinds = _KINDS.get(what, (Kind.CALL,))
    steps = [step for step in steps if step.kind in kinds]
    if what is What.ROOT:
        return [step for step in steps if step.op in ROOTED]
    if what is What.SHAPE:
        return [step for step in steps if step.numel]
    groups = list(program.groups.values())
    if what is What.REMADE:  # of equal groups the wrong ones would be taken for each other
        return [step for step in steps if groups.count(program.groups[step.group]) == 1]
    if what is What.UNMADE:
        return [step for step in steps if set(ranks).isdisjoint(program.groups[step.group])]
    return steps


def _ranks(rng: random.Random, program: Program, what: What) -> Ranks:
    """Return one rank, or several that are few in each group: of half of them nobody could say who is wrong."""
    few = (program.world - 1) // 2
    if few > 1 and what not in _ENDS and rng.random() < 0.3:
        ranks = tuple(sorted(rng.sample(range(program.world), rng.randint(2, few))))
        if are_few(program, ranks):
            return ranks
    return (rng.randrange(program.world),)


def are_few(program: Program, ranks: Ranks) -> bool:
    """Say whether ranks are one, or fewer than the others in each group that they are in."""
    shares = (len(set(ranks).intersection(members)) * 2 < len(members) for members in program.groups.values()
              if not set(ranks).isdisjoint(members))  # fmt: skip
    return len(ranks) == 1 or all(shares)


def _of_source(rng: random.Random, program: Program, what: What, ranks: Ranks) -> Fault:
    kind = Kind.EVERY if what is What.BRANCH else Kind.LOOP
    places = [
        stmt for stmt in lines_of(program.body) if stmt.kind is kind and (stmt.loader or what is What.BRANCH)
    ]  # fmt: skip
    if not places:
        return HEALTHY
    place = rng.choice(places)
    if what is What.UNEVEN:
        return Fault(what, ranks, place.line, number=rng.choice((1, 1, 1, 2, 3)))
    return Fault(what, ranks, place.line, turn=rng.randrange(4))


def _at(rng: random.Random, program: Program, what: What, ranks: Ranks, step: Step) -> Fault:
    place = Fault(what, ranks, step.line, step.turn)
    if what is What.GROUP:
        own = [name for name in program.own_groups(ranks[0]) if name not in ("", step.group)]
        own = [name for name in own if int(name) < program.begun_with]
        alike = [name for name in own if all(name in program.own_groups(rank) for rank in ranks)]
        return place._replace(other=rng.choice(alike)) if alike and step.root < 0 else HEALTHY
    if what is What.ROOT:
        others = [rank for rank in program.groups[step.group] if rank != step.root]
        return place._replace(number=rng.choice(others)) if others else HEALTHY
    if what is What.SHAPE and step.op.is_p2p:  # a receiver takes what comes
        return HEALTHY
    if what is What.SHAPE:
        return place._replace(number=step.numel + rng.choice((1, 7)))
    if what is What.OTHER:
        if step.op.is_p2p:
            return HEALTHY
        others = [op for op in (Op.ALL_REDUCE, Op.BARRIER, Op.ALL_GATHER) if op is not step.op]
        return place._replace(op=rng.choice(others))
    return place


def steps_with(program: Program, fault: Fault) -> list[list[Step]]:
    """Return what each rank does, with the fault."""
    found = []
    for rank in range(program.world):
        if rank not in fault.ranks:
            found.append(steps_of(program, rank))
        elif fault.what is What.UNEVEN:
            found.append(steps_of(program, rank, Deviation(short=fault.line, by=fault.number)))
        elif fault.what is What.BRANCH:
            found.append(steps_of(program, rank, Deviation(flipped=fault.line, turn=fault.turn)))
        else:
            found.append(_changed(steps_of(program, rank), fault))
    return found


def _changed(steps: list[Step], fault: Fault) -> list[Step]:
    at = next((n for n, step in enumerate(steps) if (step.line, step.turn) == (fault.line, fault.turn)), None)
    if at is None:
        return steps
    return [*steps[:at], *_instead(steps[at:], fault)]


def _instead(steps: Sequence[Step], fault: Fault) -> list[Step]:
    """Return what comes from the place of the fault on."""
    step, *rest = steps
    what = fault.what
    if what in _ENDS:
        return [step._replace(kind=Kind.END, how=_ENDS[what])]
    if what in _STANDS:
        return [step._replace(kind=Kind.COMPUTE, seconds=float("inf"), how=_STANDS[what]), *steps]
    if what in (What.SKIP, What.UNMADE):
        return rest
    if what in (What.EXTRA, What.AGAIN, What.REMADE):
        more = step._replace(line=step.line + EXTRA_LINE) if what is not What.AGAIN else step
        return [more, step, *rest]
    if what is What.SWAP:
        return _swapped(step, rest)
    if what is What.HOLD:
        at = _next_call(rest)
        return [step, *rest] if at is None else [rest[at], step, *rest[:at], *rest[at + 1 :]]
    if what is What.GROUP:
        return [step._replace(group=fault.other), *rest]
    if what is What.ROOT:
        return [step._replace(root=fault.number), *rest]
    if what is What.SHAPE:
        return [step._replace(numel=fault.number), *rest]
    return [step._replace(op=fault.op, root=-1, numel=0 if fault.op is Op.BARRIER else step.numel), *rest]


def _swapped(step: Step, rest: list[Step]) -> list[Step]:
    at = _next_call(rest)
    return [step, *rest] if at is None else [rest[at], *rest[:at], step, *rest[at + 1 :]]


def _next_call(rest: Sequence[Step]) -> int | None:
    """Return where the next call is; None where a group is made before, which it may need."""
    at = next((n for n, step in enumerate(rest) if step.kind in (Kind.CALL, Kind.MAKE)), None)
    return None if at is None or rest[at].kind is Kind.MAKE else at
