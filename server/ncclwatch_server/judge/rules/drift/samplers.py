"""Finds ranks that do not share a loop's data as its sampler means it: each another part of one list, in one order.

Compared only where a sampler splits into as many parts as there are ranks, and once all ranks have begun that loop.
Ranks of one tensor-parallel or pipeline group read one part on purpose, jobs with several roles split twice, and ranks
with data of their own have no such sampler: of all these nothing is said. Nor of unequal numbers of batches as such:
`predicted` tells whether a hang comes of them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ncclwatch.contract.model.preflight import PART_FIRST, PART_LOCAL, PART_OTHER, PART_OWN, SamplerFacts, Setup

Site = tuple[str, int, str]
Told = Mapping[SamplerFacts, tuple[int, ...]]  # of one loop: ranks by what they said


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One thing in which ranks split the data of a loop otherwise."""

    site: Site
    kind: str  # class of the sampler
    what: str
    sides: Mapping[str, tuple[int, ...]]  # ranks by the value that they have
    odd: tuple[int, ...] = ()  # who is wrong, where that does not depend on how many they are
    leads_to: str
    do: str


def differences(setup: Setup) -> Iterator[Split]:
    """Return in what ranks split the data of one loop otherwise."""
    by_site: dict[Site, dict[SamplerFacts, tuple[int, ...]]] = {}
    for ranks in setup.alike:
        for sampler in ranks.facts.samplers:
            told = by_site.setdefault(sampler.site, {})
            told[sampler] = (*told.get(sampler, ()), *ranks.ranks)
    for found in by_site.values():
        of_all = {sampler.parts for sampler in found if sampler.part}
        everyone = {rank for ranks in found.values() for rank in ranks}
        whole = any(sampler.parts == 1 for sampler in found)  # one rank may evaluate on all of it, by the same helper
        if len(of_all) == 1 and len(everyone) == max(of_all) > 1 and not whole:
            yield from _of_loop(found)


def _of_loop(told: Told) -> Iterator[Split]:
    counts = _sides(told, lambda each: f"{each.parts} parts")
    if len(counts) > 1:
        yield _split(
            told, "their number", counts,
            "Some samples are read twice and others never, and ranks with more parts have fewer batches: where each "
            "batch needs all ranks, they leave the loop first and the others wait.",
            "Leave num_replicas out, or pass dist.get_world_size(): a number from a file or a variable is stale on "
            "these ranks.",
        )  # fmt: skip
        return
    yield from _one_part_twice(told)
    samples = _sides(told, lambda each: f"{each.samples} samples" if each.samples else "")
    if len(samples) > 1:
        uneven = len({each.length for each in told}) > 1
        yield _split(
            told, "the length of the data set", samples,
            "Lists of unequal length are split otherwise. "
            + ("The ranks have unequal numbers of batches: where each batch needs all ranks, those with fewer leave "
               "the loop and the others wait." if uneven else "Parts overlap, and some samples are never read."),
            "See that all nodes read the same files: a download, a cache or a filter may not be whole on one of them. "
            "Where each rank has data of its own, it needs no such sampler.",
        )  # fmt: skip
    orders = _sides(told, lambda each: each.order)
    if len(orders) > 1:
        yield _split(
            told, "the order", orders,
            "Parts of different orders overlap: in each epoch some samples are read by several ranks and others by "
            "none. Nothing hangs, and no error is raised.",
            "Give the sampler one seed and one shuffle= on all ranks; it gives each rank another part by itself.",
        )  # fmt: skip


def _one_part_twice(told: Told) -> Iterator[Split]:
    """Tell of ranks that read the part of another one, where nobody can have taken theirs."""
    names = {PART_OWN: "its own rank", PART_FIRST: "0", PART_LOCAL: "the local rank", PART_OTHER: PART_OTHER}
    sides = _sides(told, lambda each: names.get(each.part, PART_OTHER))
    if PART_OTHER in sides or set(sides) <= {names[PART_OWN]}:
        return
    wrong = tuple(sorted(rank for name, ranks in sides.items() if name != names[PART_OWN] for rank in ranks))
    yield _split(
        told, "the part that a rank reads", sides,
        "Several ranks read one part of the data, and the parts of these ranks are read by nobody. Nothing hangs, and "
        "no error is raised: training continues with less data and the same batch on several ranks.",
        "Leave rank= out, or pass dist.get_rank(): LOCAL_RANK is the same on every node, and 0 on every rank.",
        odd=wrong,
    )  # fmt: skip


def _sides(told: Told, value: Callable[[SamplerFacts], str]) -> dict[str, tuple[int, ...]]:
    """Return ranks by a value, without those of which it is unknown."""
    found: dict[str, tuple[int, ...]] = {}
    for sampler, ranks in told.items():
        if value(sampler):
            found[value(sampler)] = tuple(sorted((*found.get(value(sampler), ()), *ranks)))
    return found


def _split(
    told: Told, what: str, sides: Mapping[str, tuple[int, ...]], leads_to: str, do: str, *, odd: tuple[int, ...] = ()
) -> Split:
    first = next(iter(told))
    return Split(site=first.site, kind=first.kind, what=what, sides=sides, odd=odd, leads_to=leads_to, do=do)
