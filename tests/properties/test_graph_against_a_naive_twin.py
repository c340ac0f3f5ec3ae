"""What nothing can end, and which circle it is, agree with the definitions written down without any care for time."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from ncclwatch.contract.model.rank import Op, WaitKind
from ncclwatch_server.judge.theory.waits import wait_graph as graph
from ncclwatch_server.judge.theory.waits.mismatches import is_through
from ncclwatch_server.judge.theory.waits.rank_standing import Operation, Standing

CASES = 2_000


def situation(rng: random.Random) -> dict[str, Any]:
    """Return a few ranks in a few operations, some ranks gone or elsewhere, some operations mismatched."""
    count = rng.randint(2, 7)
    operations = [operation(rng, number, count) for number in range(rng.randint(1, 5))]
    blocks, entered = {}, {each: set() for each in operations}
    for rank in range(count):
        mine = [each for each in operations if rank in each.members]
        chosen = rng.sample(mine, min(len(mine), rng.choice([1, 1, 1, 2]))) if rng.random() < 0.85 else []
        for each in chosen:
            entered[each].add(rank)
        if chosen:
            blocks[rank] = tuple(block(rng, each) for each in chosen)
    needed = {each: tuple(sorted(set(each.members) - entered[each])) for each in operations}
    outside = [Standing.OUTSIDE, Standing.OUTSIDE, Standing.GONE]
    standing = {r: Standing.BLOCKED if r in blocks else rng.choice(outside) for r in range(count)}
    unasked = {rank for rank in standing if rank not in blocks and rng.random() < 0.2}
    standing = {rank: each for rank, each in standing.items() if rank not in unasked}
    return {
        "blocks": blocks,
        "needed": {each: tuple(rank for rank in ranks if rank not in unasked) for each, ranks in needed.items()},
        "unasked": unasked,
        "held": {each: held(rng, each) for each in operations if rng.random() < 0.1},
        "found": {
            rank: SimpleNamespace(standing=each, view=SimpleNamespace(groups=through(rng, rank, operations)))
            for rank, each in standing.items()
        },
    }


def with_ranks_behind(case: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Let some ranks that wait in two operations come to the second one on their device after the first only."""
    needed = dict(case["needed"])
    for rank, blocks in case["blocks"].items():
        if blocks[1:] and rng.random() < 0.3:
            needed[blocks[1].operation] = tuple(sorted({*needed[blocks[1].operation], rank}))
    return case | {"needed": needed}


def held(rng: random.Random, each: Operation) -> frozenset[int]:
    """Return whom a mismatch of an operation holds up."""
    return frozenset(rank for rank in each.members if rng.random() < 0.7)


def through(rng: random.Random, rank: int, operations: list[Operation]) -> tuple[Any, ...]:
    """Return the groups of a rank, in some of which it has completed the operation."""
    mine = [each for each in operations if rank in each.members and rng.random() < 0.2]
    return tuple(SimpleNamespace(name=each.group, completed=each.seq, blind=False, untold=0) for each in mine)


def block(rng: random.Random, each: Operation) -> Any:
    """Return a wait in an operation, a third of them for a root."""
    rooted = each.kind is not WaitKind.RECV and rng.random() < 0.3
    op = Op.BROADCAST if rooted else Op.ALL_REDUCE
    return SimpleNamespace(operation=each, wait=SimpleNamespace(op=op, peer=rng.choice(each.members) if rooted else -1))


def operation(rng: random.Random, number: int, count: int) -> Operation:
    if rng.random() < 0.15:  # a receive that names no source
        everyone = tuple(range(count))
        return Operation(group=f"g{number}", seq=1, members=everyone, kind=WaitKind.RECV, target=rng.randrange(count))
    members = tuple(sorted(rng.sample(range(count), rng.randint(2, count))))
    return Operation(group=f"g{number}", seq=1, members=members)


def naively_doomed(case: dict[str, Any]) -> frozenset[int]:
    """Take out whoever has a way out, one after the other, until nobody has."""
    gone = {rank for rank, each in case["found"].items() if each.standing is Standing.GONE}
    doomed = set(case["blocks"])
    while True:
        free = [rank for rank in doomed if not all(naively_hopeless(rank, b, doomed, gone, case)
                                                   for b in case["blocks"][rank])]  # fmt: skip
        if not free:
            return frozenset(doomed)
        doomed.remove(free[0])


def naively_hopeless(rank: int, block: Any, doomed: set[int], gone: set[int], case: dict[str, Any]) -> bool:
    each = block.operation
    absent = (set(case["needed"][each]) & doomed) - {rank}
    if each.from_anyone:
        return absent | (set(each.members) & gone) >= set(each.members) - {rank}
    if rank in case["held"].get(each, ()):
        return True
    if set(case["needed"][each]) == {rank}:  # its device is in what it waits in before, and all others have come
        return True
    left = {other for other in set(each.members) & gone if not is_through(case["found"][other], each)}
    outside = set(case["needed"][each]) - {rank}
    if block.wait.op is Op.BROADCAST and left <= outside and outside:  # one may need the root alone, or nobody
        root = block.wait.peer
        if root in case["unasked"]:
            return False
        return root in absent | left if root in outside else outside <= absent | left
    return bool(absent | left)


def naive_circles(case: dict[str, Any], doomed: frozenset[int]) -> list[tuple[int, ...]]:
    """Return all sets of several ranks that reach each other and nobody else."""
    needed = {rank: {m for block in case["blocks"][rank] for m in case["needed"][block.operation]} for rank in doomed}
    edges = {rank: others & doomed - {rank} for rank, others in needed.items()}
    reach = {rank: set(edges[rank]) for rank in doomed}
    for _ in doomed:
        reach = {rank: each.union(*(reach[to] for to in each)) for rank, each in reach.items()}
    return [tuple(sorted(reach[r])) for r in sorted(doomed) if r in reach[r] and all(r in reach[o] for o in reach[r])]


def waits_of(case: dict[str, Any], doomed: frozenset[int], rng: random.Random) -> Any:
    """Return the graph of a situation, in which some members are behind or never seen instead of absent."""
    kinds: dict[str, dict[Operation, tuple[int, ...]]] = {"absent": {}, "behind": {}, "unseen": {}}
    for each, ranks in case["needed"].items():
        drawn = {rank: rng.choice(["absent", "absent", "behind", "unseen"]) for rank in ranks}
        for kind, found in kinds.items():
            found[each] = tuple(rank for rank in ranks if drawn[rank] == kind)
    passed = {each: frozenset(m for m in each.members if rng.random() < 0.1) for each in case["needed"]}
    gone = frozenset(rank for rank, each in case["found"].items() if each.standing is Standing.GONE)
    kinds["untold"] = dict.fromkeys(case["needed"], ())
    waits: Any = SimpleNamespace(
        blocks=case["blocks"], doomed=doomed, passed=passed, unasked=case["unasked"], gone=gone, **kinds
    )
    waits.needs = graph._needs_of(waits)
    return waits


def naive_victims(waits: Any, roots: set[int]) -> tuple[int, ...]:
    """Leave out one wait that somebody who was not reached may end, after the other, until there is none."""
    ended: set[Operation] = set()
    operations = {block.operation for blocks in waits.blocks.values() for block in blocks}
    while True:
        reached = naively_reached(waits, roots, ended)
        left = [each for each in operations - ended if each.from_anyone and naively_able(waits, each) - reached]
        if not left:
            return tuple(sorted(reached - roots))
        ended.add(left[0])


def naively_able(waits: Any, each: Operation) -> set[int]:
    outside = {*waits.absent[each], *waits.behind[each], *waits.unseen[each], *(waits.unasked & set(each.members))}
    return outside - waits.gone - waits.doomed


def naively_reached(waits: Any, roots: set[int], ended: set[Operation]) -> set[int]:
    """Add whoever waits for somebody that was reached, until nobody does."""
    reached = set(roots)
    while True:
        new = {
            rank
            for rank, blocks in waits.blocks.items()
            for block in blocks
            if rank not in reached and block.operation not in ended
            and naively_led(waits, rank, block, roots, reached)
        }  # fmt: skip
        if not new:
            return reached
        reached |= new


def naively_led(waits: Any, rank: int, block: Any, roots: set[int], reached: set[int]) -> bool:
    each, root = block.operation, block.wait.peer
    outside = {*waits.absent[each], *waits.behind[each], *waits.unseen[each]}
    if outside and root != -1:  # once it has come, those of the others that live may be enough
        return root in reached if root in outside | waits.unasked else outside <= reached
    inside = set(each.members) - waits.passed[each]  # who came through holds nobody up
    # The others may need one that nobody has asked.
    if block.wait.op is Op.BROADCAST and waits.unasked & set(each.members):
        inside = set()
    # Who waits elsewhere holds up no collective that it has come to.
    leading = reached if each.kind is WaitKind.RECV else roots
    return bool(outside & reached) or (not waits.absent[each] and bool(inside & leading))


@pytest.mark.parametrize("seed", range(4))
def test_victims_are_those_whose_waits_lead_to_a_root(seed: int):
    rng = random.Random(seed)
    found = 0
    for _ in range(CASES):
        case = situation(rng)
        waits = waits_of(case, frozenset(), rng)
        roots = {rank for rank in case["found"] if rng.random() < 0.3}
        expected = naive_victims(waits, roots)
        assert graph.victims_of(waits, roots) == expected
        found += bool(expected)
    assert found > CASES / 10


def test_the_victims_in_a_chain_of_thousands_are_found_at_once():
    count = 16_384
    pairs = [
        Operation(group="w", seq=1, members=(rank, rank + 1), kind=WaitKind.RECV, source=rank + 1, target=rank)
        for rank in range(count)
    ]
    wait = SimpleNamespace(op=Op.RECV, peer=-1)
    blocks: Any = {rank: (SimpleNamespace(operation=each, wait=wait),) for rank, each in enumerate(pairs)}
    nobody = dict.fromkeys(pairs, ())
    absent = {each: (each.source,) for each in pairs}
    waits: Any = SimpleNamespace(
        blocks=blocks, absent=absent, behind=nobody, unseen=nobody, passed={}, unasked=frozenset()
    )
    waits.needs = graph._needs_of(waits)
    assert graph.victims_of(waits, {count}) == tuple(range(count))


@pytest.mark.parametrize("seed", range(4))
def test_doomed_ranks_and_circles_are_those_of_the_definition(seed: int):
    rng = random.Random(seed)
    circles = 0
    for _ in range(CASES):
        case = with_ranks_behind(situation(rng), rng)
        doomed = graph._doomed(**{name: value for name, value in case.items() if name != "unasked"})
        assert doomed == naively_doomed(case)
        waits: Any = SimpleNamespace(
            blocks=case["blocks"], absent=case["needed"], behind=dict.fromkeys(case["needed"], ()), doomed=doomed
        )
        expected = naive_circles(case, doomed)
        assert graph.cycles(waits) == sorted(set(expected))
        circles += bool(expected)
    assert circles > CASES / 10


def test_a_circle_of_a_thousand_ranks_is_found_at_once():
    count = 1024
    two = [Operation(group=name, seq=1, members=tuple(range(count))) for name in "ab"]
    wait = SimpleNamespace(op=Op.ALL_REDUCE, peer=-1)
    blocks: Any = {rank: (SimpleNamespace(operation=two[rank % 2], wait=wait),) for rank in range(count)}
    needed = {two[0]: tuple(range(1, count, 2)), two[1]: tuple(range(0, count, 2))}
    found: Any = {rank: SimpleNamespace(standing=Standing.BLOCKED) for rank in range(count)}
    doomed = graph._doomed(blocks, needed, {}, found)
    waits: Any = SimpleNamespace(blocks=blocks, absent=needed, behind=dict.fromkeys(needed, ()), doomed=doomed)
    assert graph.cycles(waits) == [tuple(range(count))]
