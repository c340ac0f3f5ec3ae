"""Draws what happens in healthy jobs, each as a change of one stretch. See the table in the package's docstring."""

import math
import random
from collections.abc import Callable, Mapping

from ncclwatch.contract.model.rank import Op
from tests.spmd.program import Kind, Step
from tests.years import doing
from tests.years.plans import INIT, SAVE, TRAIN, VALIDATE, WORLD, call, work
from tests.years.stretches import AFTER_S, BEFORE_S, Outage, Stretch

TIMEOUT_SHARE = 0.85  # that a healthy wait takes of the timeout at most
Noise = Callable[[Stretch], None]


def between(rng: random.Random, least: float, most: float) -> float:
    """Return a duration, as likely in each octave."""
    return math.exp(rng.uniform(math.log(least), math.log(max(least, most))))


def _bounded(stretch: Stretch, least: float, most: float) -> float:
    return between(stretch.rng, least, min(most, TIMEOUT_SHARE * stretch.plan.timeout_s))


def plain(stretch: Stretch) -> None:
    """Let nothing happen."""


def validation(stretch: Stretch) -> None:
    """Let all ranks validate, some for longer than others, and share the result."""
    lasts_s, how = _bounded(stretch, 5, 900) / 1.4, stretch.how(doing.VALIDATES)
    spread = stretch.rng.choice((1.02, 1.1, 1.4))
    stretch.all(lambda rank: [
        work(VALIDATE, lasts_s * stretch.rng.uniform(1.0, spread), how), call(VALIDATE + 1, WORLD, Op.ALL_REDUCE, 2)
    ])  # fmt: skip


def validation_of_one(stretch: Stretch) -> None:
    """Let rank 0 validate alone."""
    lasts_s, how = _bounded(stretch, 10, 1800), stretch.how(doing.VALIDATES)
    stretch.all(lambda rank: [work(VALIDATE, lasts_s, how)] * (rank == 0) + [call(VALIDATE + 2, WORLD)])


def save(stretch: Stretch) -> None:
    """Let rank 0 save, and the others wait in a barrier."""
    _saves(stretch, lambda rank: rank == 0, _bounded(stretch, 5, 1200), "/ckpt/{step}.pt")


def save_of_all(stretch: Stretch) -> None:
    """Let each rank save its own part."""
    _saves(stretch, lambda rank: True, _bounded(stretch, 5, 600), "/ckpt/{step}/{rank}.pt")


def _saves(stretch: Stretch, who: Callable[[int], bool], lasts_s: float, path: str) -> None:
    rng, step = stretch.rng, stretch.counts.steps + stretch.trained
    cpu_s, flush_s = min(lasts_s * rng.uniform(0.05, 0.3), 60.0), min(lasts_s * 0.2, between(rng, 0.05, 30.0))
    parts_s = (cpu_s, lasts_s - cpu_s - flush_s, flush_s)

    def steps(rank: int) -> list[Step]:
        if not who(rank):
            return [call(SAVE + 1, WORLD)]
        pieces = doing.saves(path.format(step=step, rank=rank))
        factor = rng.uniform(0.7, 1.0)
        found = [work(SAVE, part_s * factor, stretch.how(piece)) for piece, part_s in zip(pieces, parts_s, strict=True)]
        return [*found, call(SAVE + 1, WORLD)]

    stretch.all(steps)


def save_in_background(stretch: Stretch) -> None:
    """Let a thread of rank 0 write, after a short copy."""
    step = stretch.counts.steps + stretch.trained
    how = stretch.how(doing.saves("")[0]._replace(wait=None))
    copies_s = between(stretch.rng, 0.2, 5.0)
    stretch.all(lambda rank: [work(SAVE, copies_s, how)] * (rank == 0))
    stretch.background.append((0, f"/ckpt/{step}.pt", between(stretch.rng, 5, 600)))


def compiles(stretch: Stretch) -> None:
    """Let some ranks, or all, compile for minutes, each for a time of its own."""
    rng, how = stretch.rng, stretch.how(doing.COMPILES)
    lasts_s, share = _bounded(stretch, 10, 500), rng.choice((1.0, 1.0, 0.3))
    who = {rank for rank in range(stretch.plan.world) if rng.random() < share} or {0}
    stretch.all(lambda rank: [work(40, lasts_s * rng.uniform(0.4, 1.0), how)] * (rank in who))


def hiccup(stretch: Stretch) -> None:
    """Let one rank, or one node, wait for its next batch; now and then its storage gives nothing for seconds."""
    rng, plan = stretch.rng, stretch.plan
    rank = rng.randrange(plan.world)
    who = {rank} if rng.random() < 0.6 else {each for each in range(plan.world) if plan.host(each) == plan.host(rank)}
    left_s, pieces = between(rng, 1.0, 90.0), []
    while left_s > 0:
        quiet_s = between(rng, 0.3, 5.0)
        pieces += [(doing.READS_NOTHING, quiet_s), (doing.READS, between(rng, 0.5, 10.0))]
        left_s -= quiet_s + pieces[-1][1]
    number = stretch.counts.steps + stretch.trained
    draws = [
        Step(TRAIN, Kind.DRAW, seconds=lasts_s, batch=number % plan.epoch + 1, loader=TRAIN, turn=number,
             how=stretch.how(piece))
        for piece, lasts_s in pieces
    ]  # fmt: skip
    stretch.all(lambda rank: draws if rank in who else [])


def collects(stretch: Stretch) -> None:
    """Let the garbage collector of one rank take its time."""
    rank, how = stretch.rng.randrange(stretch.plan.world), stretch.how(doing.COLLECTS)
    lasts_s = between(stretch.rng, 0.2, 8.0)
    stretch.all(lambda each: [work(45, lasts_s, how)] * (each == rank))


def node_pauses(stretch: Stretch) -> None:
    """Let a whole node stand still: its virtual machine moves, or all its processes are stopped, the agent too."""
    rng, plan = stretch.rng, stretch.plan
    moves = rng.random() < 0.7
    node, lasts_s = rng.randrange(plan.hosts), between(rng, 5, 120)
    how = stretch.how(doing.FROZEN if moves else doing.STOPPED)
    stretch.frozen = (node, "frozen" if moves else "stopped")
    stretch.all(lambda rank: [call(90, WORLD)] + [work(91, lasts_s, how)] * (plan.host(rank) == node))


def lag(stretch: Stretch) -> None:
    """Let digests of a node come late, and some never."""
    began_s = stretch.rng.uniform(0.0, 5.0)
    stretch.outages.append(Outage(_node(stretch), "lag", began_s, began_s + between(stretch.rng, 3.0, 60.0)))
    stretch.train(20.0)


def agent_restarts(stretch: Stretch) -> None:
    """Let an agent be started again, with training going on."""
    stretch.outages.append(Outage(_node(stretch), "agent", 2.0, 2.0 + between(stretch.rng, 2.0, 40.0)))
    stretch.train(15.0)


def cut_off(stretch: Stretch) -> None:
    """Let nothing come from a node for minutes, with training going on."""
    stretch.outages.append(Outage(_node(stretch), "cut", 2.0, 2.0 + between(stretch.rng, 20.0, 900.0)))
    stretch.train(15.0)


def _node(stretch: Stretch) -> int:
    return stretch.rng.randrange(stretch.plan.hosts)


def epoch_ends(stretch: Stretch) -> None:
    """Let an epoch end: all run out of batches, some draw a shorter last one, and they meet in a barrier."""
    number = stretch.counts.steps + stretch.trained - 1
    stretch.all(lambda rank: [_over(number), work(80, stretch.rng.uniform(0.1, 4.0), stretch.how(doing.VALIDATES)),
                              call(81, WORLD)])  # fmt: skip


def joined(stretch: Stretch) -> None:
    """Let ranks with fewer batches shadow the others' collectives, as in torch's Join."""
    rng, plan = stretch.rng, stretch.plan
    short = {rank for rank in range(plan.world) if rng.random() < 0.4}
    if len(short) == plan.world or plan.tp * plan.pp > 1:
        short = set()
    number = stretch.counts.steps + stretch.trained - 1

    def shadows(rank: int, turn: int) -> list[Step]:
        steps = plan.train(rank, turn)
        if rank not in short:
            return [step._replace(numel=1) if step.kind is Kind.DRAW else step for step in steps]
        return [step._replace(line=130 + step.line, batch=0) for step in steps if step.kind is Kind.CALL]

    more = rng.randint(1, 4)
    for extra in range(1, more + 1):
        turn = number + extra
        stretch.all(lambda rank, turn=turn, extra=extra: (  # type: ignore[misc]
            [_over(number, even=True)] * (rank in short and extra == 1) + shadows(rank, turn)
        ))  # fmt: skip
    stretch.trained += more
    stretch.all(lambda rank: [_over(number + more, even=True)] * (rank not in short) + [call(81, WORLD)])


def _over(number: int, *, even: bool = False) -> Step:
    return Step(TRAIN, Kind.DRAW, numel=int(even), batch=0, loader=TRAIN, turn=number)


def starts(stretch: Stretch) -> None:
    """Let all ranks come to the rendezvous, build the model, and skip batches where they resume."""
    rng = stretch.rng
    spread_s = between(rng, 0.5, 60.0)
    imports, skips = stretch.how(doing.IMPORTS), stretch.how(doing.SKIPS)
    resumes_s = _bounded(stretch, 5, 900) if stretch.counts.steps or rng.random() < 0.3 else 0.0

    def steps(rank: int) -> list[Step]:
        found = [work(1, rng.uniform(3.0, 3.0 + spread_s), imports), call(2, INIT), call(3, WORLD)]
        if resumes_s:
            found.append(work(25, resumes_s * rng.uniform(0.6, 1.0), skips))
        return found

    stretch.all(steps)


def preempted(stretch: Stretch) -> None:
    """Let all ranks be ended by their scheduler, whatever they are in."""
    stretch.ends = stretch.killed = True


def ends(stretch: Stretch) -> None:
    """Let all ranks end, seconds to minutes apart: rank 0 saves and uploads, others end one after the other."""
    rng = stretch.rng
    spread_s, last_s = between(rng, 0.5, 120.0), between(rng, 1.0, 300.0)
    pieces = doing.saves("/ckpt/last.pt")
    logs = stretch.how(doing.LOGS)
    stretch.ends = True
    saves = [work(96, last_s / 2, stretch.how(piece)) for piece in pieces[:2]]

    def steps(rank: int) -> list[Step]:
        own = [*saves, work(97, 2.0, logs)] if rank == 0 else [work(97, rng.uniform(0.0, spread_s), logs)]
        return [call(95, WORLD), *own]

    stretch.all(steps)


# What happens in a day of a job: between which numbers of times, of which each job draws its own.
PER_DAY: Mapping[Noise, tuple[float, float]] = {
    plain: (1.0, 2.0),
    validation: (0.0, 8.0),
    validation_of_one: (0.0, 3.0),
    save: (0.0, 6.0),
    save_of_all: (0.0, 4.0),
    save_in_background: (0.0, 6.0),
    compiles: (0.0, 3.0),
    hiccup: (0.0, 5.0),
    collects: (0.0, 4.0),
    lag: (0.0, 3.0),
    agent_restarts: (0.0, 0.5),
    cut_off: (0.0, 1.0),
    epoch_ends: (0.0, 3.0),
    joined: (0.0, 1.0),
    node_pauses: (0.0, 0.2),
    preempted: (0.0, 0.5),
}
STRAGGLES_PER_DAY, STRAGGLES_S = 0.3, 3600.0
TOGETHER = 0.25  # of what happens has something of the network beside it
NETWORK: tuple[Noise, ...] = (lag, agent_restarts, cut_off)


def stretch_with(stretch: Stretch, noise: Noise) -> Stretch:
    """Return a stretch with something happening in it."""
    if noise is starts:
        stretch.begin()
        starts(stretch)
    else:
        stretch.train(BEFORE_S)
        stretch.begin()
        noise(stretch)
    stretch.names.append(noise.__name__)
    if not stretch.ends:
        if noise not in (*NETWORK, preempted) and stretch.rng.random() < TOGETHER:
            other = stretch.rng.choice(NETWORK)
            _beside(stretch, other)
        stretch.train(AFTER_S)
    elif stretch.killed:
        stretch.train(BEFORE_S)
    return stretch


def _beside(stretch: Stretch, noise: Noise) -> None:
    rng = stretch.rng
    began_s = rng.uniform(0.0, 20.0)
    kind, most_s = {lag: ("lag", 60.0), agent_restarts: ("agent", 40.0), cut_off: ("cut", 300.0)}[noise]
    stretch.outages.append(Outage(_node(stretch), kind, began_s, began_s + between(rng, 3.0, most_s)))
    stretch.names.append(noise.__name__)
