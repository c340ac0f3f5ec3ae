"""Puts one fault into one job, and knows which ranks it touches."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ncclwatch.contract.model.rank import Op
from tests.spmd.machine import NEVER
from tests.spmd.program import Kind, Step
from tests.years import doing, noise
from tests.years.cluster import PASSES_ALL_S, Said
from tests.years.day import Playing
from tests.years.plans import SAVE, WORLD, call, work
from tests.years.stretches import Outage, Stretch

BEFORE_S, WATCHED_S = 600.0, 120.0
DEAD_LINK_S = 500.0  # a large transfer may take long: the judge waits for minutes
MIDST = 4  # steps in which the fault may lie


@dataclass(frozen=True)
class Outcome:
    """What the server said of a fault."""

    seed: int
    fault: str
    ranks: tuple[int, ...]  # that it touches
    world: int
    onset_s: float  # since the job began
    early: tuple[Said, ...]  # critical before the fault
    verdict: Said | None  # the first critical one after it
    last: tuple[Said, ...]  # what critical incidents say in the end
    warned: Said | None  # the first warning that names a rank that it touches, if nothing is critical

    @property
    def wrong(self) -> tuple[Said, ...]:
        """Return what names ranks for certain that the fault did not touch."""
        return tuple(said for said in self.last if not said.verdict.one_of and not _names(said) <= {*self.ranks})


def _names(said: Said) -> set[int]:
    return {culprit.rank for culprit in said.verdict.culprits}


Fault = Callable[[Stretch, int], tuple[int, ...]]


def _instead(stretch: Stretch, rank: int, change: Callable[[list[Step]], list[Step]]) -> None:
    """Change what a rank does from the first step of what happens on."""
    at = stretch.happens_at[rank]
    stretch.steps[rank] = [*stretch.steps[rank][:at], *change(stretch.steps[rank][at:])]


def _a_call(rng: random.Random, steps: list[Step]) -> int:
    """Return the place of a collective that others wait in."""
    places = [at for at, step in enumerate(steps) if step.kind is Kind.CALL and not step.op.is_p2p]
    return rng.choice(places)


def skips(stretch: Stretch, rank: int) -> tuple[int, ...]:
    """Let a rank leave a collective out."""
    at = _a_call(stretch.rng, stretch.steps[rank][stretch.happens_at[rank] :])
    _instead(stretch, rank, lambda steps: [*steps[:at], *steps[at + 1 :]])
    return (rank,)


def mismatches(stretch: Stretch, rank: int) -> tuple[int, ...]:
    """Let a rank come with another number of elements, or make another operation."""
    at = _a_call(stretch.rng, stretch.steps[rank][stretch.happens_at[rank] :])
    other = stretch.rng.random() < 0.5

    def change(steps: list[Step]) -> list[Step]:
        step = steps[at]
        changed = step._replace(op=Op.ALL_GATHER) if other else step._replace(numel=step.numel + 7)
        return [*steps[:at], changed, *steps[at + 1 :]]

    _instead(stretch, rank, change)
    return (rank,)


def one_more_batch(stretch: Stretch, rank: int) -> tuple[int, ...]:
    """Let a rank have one batch more than the others, which come to the end of their epoch."""
    number = stretch.counts.steps + stretch.trained - MIDST - 1  # the last one that all have made

    def change(each: int) -> list[Step]:
        more = stretch.plan.train(each, number + 1) if each == rank else []
        over = Step(30, Kind.DRAW, batch=0, loader=30, turn=number + (each == rank))
        return [*more, over, call(81, WORLD)]

    for each in range(stretch.plan.world):
        stretch.steps[each] = [*stretch.steps[each][: stretch.happens_at[each]], *change(each)]
    return tuple(range(stretch.plan.world)) if stretch.plan.world == 2 else (rank,)


def _stands(what: doing.Doing) -> Fault:
    def fault(stretch: Stretch, rank: int) -> tuple[int, ...]:
        how = stretch.how(what)
        at = stretch.rng.randrange(len(stretch.plan.train(rank, 0)))
        _instead(stretch, rank, lambda steps: [*steps[:at], work(43, NEVER, how)])
        return (rank,)

    return fault


locked, loops, stopped = _stands(doing.LOCKED), _stands(doing.LOOPS), _stands(doing.STOPPED)


def _ends(how: str) -> Fault:
    def fault(stretch: Stretch, rank: int) -> tuple[int, ...]:
        at = stretch.rng.randrange(len(stretch.plan.train(rank, 0)))
        _instead(stretch, rank, lambda steps: [*steps[:at], Step(43, Kind.END, how=how)])
        return (rank,)

    return fault


crashes, exits = _ends("crash"), _ends("exit")


def node_lost(stretch: Stretch, rank: int) -> tuple[int, ...]:
    """Let a node lose its power."""
    plan, how = stretch.plan, stretch.how(doing.FROZEN)
    ranks = tuple(each for each in range(plan.world) if plan.host(each) == plan.host(rank))
    for each in range(plan.world):
        _instead(stretch, each, lambda steps, each=each: [  # type: ignore[misc]
            call(90, WORLD), *([work(91, NEVER, how)] if each in ranks else []), *steps
        ])  # fmt: skip
    stretch.outages.append(Outage(plan.host(rank), "frozen", 0.0, PASSES_ALL_S))  # begins when it is known
    return ranks


def save_stuck(stretch: Stretch, rank: int) -> tuple[int, ...]:
    """Let rank 0 come no further in a save."""
    first, written, _ = doing.saves("/ckpt/stuck.pt")
    stuck = written._replace(io=False, kernel="nfs_wait_bit_killable")
    pieces = [work(SAVE, 2.0, stretch.how(first)), work(SAVE, 4.0, stretch.how(written)),
              work(SAVE, NEVER, stretch.how(stuck))]  # fmt: skip
    for each in range(stretch.plan.world):
        _instead(stretch, each, lambda _, each=each: [*(pieces if each == 0 else []), call(SAVE + 1, WORLD)])  # type: ignore[misc]
    return (0,)


def dead_link(stretch: Stretch, rank: int) -> tuple[int, ...]:
    """Let an operation never end that all of its members are in: which of them is at fault nothing shows."""
    how = stretch.how(doing.FROZEN)
    for each in range(stretch.plan.world):
        _instead(stretch, each, lambda _: [call(50, WORLD, Op.ALL_REDUCE, 1_000_000), work(92, NEVER, how)])
    return tuple(range(stretch.plan.world))


FAULTS: Mapping[str, Fault] = {
    "skips a collective": skips,
    "held by a lock": locked,
    "endless loop": loops,
    "frozen process": stopped,
    "node lost": node_lost,
    "crash": crashes,
    "exits early": exits,
    "one more batch": one_more_batch,
    "mismatched operation": mismatches,
    "dead link": dead_link,
    "save stuck": save_stuck,
}


def play(seed: int) -> Outcome:
    """Play one faulty job."""
    rng = random.Random(seed)
    name = rng.choice(list(FAULTS))
    playing = Playing(seed, (16,) if name == "node lost" else (), norm=True)
    found: dict[str, object] = {}

    async def story(playing: Playing) -> None:
        for what in (noise.starts, rng.choice((noise.save, noise.validation, noise.plain))):
            await playing.happens(what)
            playing.skip(rng.uniform(10.0, BEFORE_S))
        stretch = playing.stretch()
        stretch.train(4.0)
        stretch.begin()
        for _ in range(MIDST):
            stretch.step()
        rank = rng.randrange(playing.plan.world)
        found["ranks"] = FAULTS[name](stretch, rank)
        stretch.names.append(name)
        critical: list[float] = []

        def settled() -> bool:
            if not critical and any(said.critical and said.at_s >= began_s for said in playing.cluster.kept.said):
                critical.append(playing.loop.now_s)
            return bool(critical) and playing.loop.now_s > critical[0] + 6.0

        began_s = playing.loop.now_s
        sights = await playing.show(stretch, settled, DEAD_LINK_S if name == "dead link" else WATCHED_S)
        found["began"], found["onset"] = began_s, began_s + sights.onset_s

    played = playing.run(story)
    began_s, onset_s = found["began"], found["onset"]
    assert isinstance(began_s, float)
    assert isinstance(onset_s, float)
    ranks = found["ranks"]
    assert isinstance(ranks, tuple)
    after = [said for said in played.said if said.at_s >= began_s]
    critical = [said for said in after if said.critical]
    newest = {said.incident: said for said in critical}
    warned = next((said for said in after if _names(said) & {*ranks}), None)
    return Outcome(
        seed=seed, fault=name, ranks=ranks, world=played.plan.world, onset_s=onset_s,
        early=tuple(said for said in played.said if said.critical and said.at_s < began_s),
        verdict=critical[0] if critical else None, last=tuple(newest.values()), warned=None if critical else warned,
    )  # fmt: skip
