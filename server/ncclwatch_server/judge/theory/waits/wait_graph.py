"""Finds who waits for whom, and which waits can never end.

Nodes are ranks and operations, never rank to rank. A blocked rank waits for its operations; an
operation waits for all members that have not entered it. What no future of the program can end is
the greatest set of blocked ranks that is closed under waiting: begin with all of them and take
out whoever has a way out, until nobody has. What remains is proven. The roots are what the waits
lead to in the end; the method is that of the wait-for graphs of MUST (Hilbrich et al., 2013).

On a device to enter means to start, and a member may have issued its part behind another one that is
not finished: it is *behind*. Two streams that each hold what the other waits for make a circle that
nobody sees who only counts what was issued.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch_server.judge.theory.histories.signatures import SYNCHRONISING
from ncclwatch_server.judge.theory.waits.components import strong_components
from ncclwatch_server.judge.theory.waits.device_order import comes_first, reads_from_device
from ncclwatch_server.judge.theory.waits.full_tables import lacks_threads, may_have_entered
from ncclwatch_server.judge.theory.waits.mismatches import (
    ROOTED,
    Mismatch,
    held_by,
    is_through,
    mismatch,
    needs_root_first,
    root_needed,
)
from ncclwatch_server.judge.theory.waits.rank_standing import (
    Block,
    Operation,
    RankStanding,
    Standing,
    find_issued,
    has_entered,
    held_back,
)
from ncclwatch_server.judge.theory.waits.settled import stopped_devices


class _Need(NamedTuple):
    operation: Operation
    root: int  # that has to come to it first; -1: it may need any member
    rooted: bool  # members may be through with it before all have come


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needs:
    """What blocked ranks need, and who holds that up."""

    waiting: Mapping[_Need, Sequence[int]]
    held_up: Mapping[int, Sequence[_Need]]  # by who has not come to it
    missing: Mapping[_Need, int]  # how many of those have to be reached before it is held up by them for certain
    inside: Mapping[int, Sequence[_Need]]  # by who has come to it, and may hold it up from there as a root
    able: Mapping[_Need, frozenset[int]]  # who may end it, where any one of several may


@dataclass(frozen=True, kw_only=True)  # without slots: what follows from it is worked out once
class WaitGraph:
    """The waits of a job at one moment."""

    blocks: Mapping[int, tuple[Block, ...]]  # of blocked ranks
    absent: Mapping[Operation, tuple[int, ...]]  # members that have not entered
    behind: Mapping[Operation, tuple[int, ...]]  # members whose device has to finish something else first
    unseen: Mapping[Operation, tuple[int, ...]]  # members of which there is no news at all
    untold: Mapping[Operation, tuple[int, ...]]  # members that may have entered: their rings had no room to say so
    mismatches: tuple[Mismatch, ...]
    doomed: frozenset[int]  # ranks whose waits nothing can end
    stopped: Mapping[int, Block] = field(default_factory=dict)  # ranks that are still in what others have completed
    held: Mapping[Operation, frozenset[int]] = field(default_factory=dict)  # by a mismatch
    free: frozenset[int] = frozenset()  # ranks that may go on for reasons that nobody sees
    passed: Mapping[Operation, frozenset[int]] = field(default_factory=dict)  # members that are through with it
    unasked: frozenset[int] = frozenset()  # ranks of which only is known that they exist
    gone: frozenset[int] = frozenset()

    @cached_property
    def needs(self) -> _Needs:
        """What blocked ranks need, and who holds that up."""
        return _needs_of(self)


def build(found: Mapping[int, RankStanding], silent: Iterable[int], unasked: frozenset[int] = frozenset()) -> WaitGraph:
    """Return the wait-for graph of all blocked ranks. Of those in `unasked` only is it known that they exist."""
    blocks = {rank: each.blocks for rank, each in found.items() if each.standing is Standing.BLOCKED}
    quiet = frozenset(silent)
    absent: dict[Operation, tuple[int, ...]] = {}
    unseen: dict[Operation, tuple[int, ...]] = {}
    untold: dict[Operation, tuple[int, ...]] = {}
    behind: dict[Operation, tuple[int, ...]] = {}
    for operation in dict.fromkeys(
        block.operation for each in found.values() for block in (*each.blocks, *each.queued)
    ):
        unseen[operation] = tuple(m for m in operation.members if m in quiet or (m not in found and m not in unasked))
        outside = tuple(
            m for m in operation.members if m in found and m not in quiet and not has_entered(found[m], operation)
        )
        maybe = {m for m in outside if _is_untold(found[m], operation)}
        untold[operation] = tuple(m for m in outside if m in maybe) if maybe else ()
        absent[operation] = tuple(m for m in outside if m not in maybe) if maybe else outside
        behind[operation] = _behind(operation, blocks, found, alone=not outside)
    mismatches = tuple(filter(None, (mismatch(operation, found) for operation in absent)))
    needed = {operation: (*absent[operation], *behind[operation]) for operation in absent}
    stopped = stopped_devices(found, absent, {each.operation for each in mismatches})
    # A thread that is in no row may let its rank go on; a device that has stopped waits for nobody.
    free = frozenset(rank for rank in blocks if lacks_threads(found[rank].view)) | stopped.keys()
    held = {each.operation: held_by(found, each) for each in mismatches}
    doomed = _doomed(blocks, needed, held, found, free)
    return WaitGraph(
        blocks=blocks,
        absent=absent,
        behind=behind,
        unseen=unseen,
        untold=untold,
        mismatches=mismatches,
        doomed=doomed,
        stopped=stopped,
        held=held,
        free=free,
        passed=_passed(blocks, absent, held, found),
        unasked=unasked.difference(found),
        gone=frozenset(rank for rank, each in found.items() if each.standing is Standing.GONE),
    )


def _behind(
    operation: Operation, blocks: Mapping[int, tuple[Block, ...]], found: Mapping[int, RankStanding], *, alone: bool
) -> tuple[int, ...]:
    """Return the members that have to finish something else before an operation.

    What may run beside it keeps a member from it only where nothing else tells why it does not end: `alone`, none of
    its members is absent. Who waits in it has come to it, whatever its device has not told yet, see `left_members`.
    """
    ranks = []
    for rank in operation.members:
        if rank not in blocks or blocks[rank][0].operation == operation:
            continue
        before, front = held_back(found[rank], operation), blocks[rank][0]
        own = find_issued(found[rank].view, operation.group, operation.seq) if front.on_device else None
        # Its front may be what a gone member keeps from it, however far it is from there, see `left_members`.
        if before is None or (own is not None and own.age_s > front.wait.age_s):
            continue
        if alone or before.group == operation.group or comes_first(front.thread, before):
            ranks.append(rank)
    return tuple(ranks)


def _passed(
    blocks: Mapping[int, tuple[Block, ...]],
    absent: Mapping[Operation, tuple[int, ...]],
    held: Mapping[Operation, frozenset[int]],
    found: Mapping[int, RankStanding],
) -> Mapping[Operation, frozenset[int]]:
    """Return the members that are through with what all others have entered as well, and cannot hold it up any more.

    What a rank sent in a mismatch may be the wrong thing. What it sent from its device may be still to be moved by its
    threads, but not in a collective that none completes before all have come, if it has ended since.
    """
    gone = frozenset(rank for rank, each in found.items() if each.standing is Standing.GONE)
    waiting: dict[Operation, list[Block]] = {}
    for each in blocks.values():
        for block in each:
            waiting.setdefault(block.operation, []).append(block)
    passed: dict[Operation, frozenset[int]] = {}
    for operation, its in waiting.items():
        if not absent[operation] and operation not in held and not any(block.on_device for block in its):
            may_have = frozenset(operation.members).intersection(found)
        elif gone and any(block.wait.op in SYNCHRONISING for block in its):
            may_have = gone.intersection(operation.members)
        else:
            continue
        done = is_through if operation.kind is WaitKind.COLLECTIVE else _has_met_its_peer
        if ranks := frozenset(rank for rank in may_have if done(found[rank], operation)):
            passed[operation] = ranks
    return passed


def _has_met_its_peer(standing: RankStanding, operation: Operation) -> bool:
    """Say whether a rank has told that its end of a send or receive is complete."""
    sends = operation.kind is WaitKind.RECV and standing.rank == operation.source
    receives = operation.kind is WaitKind.SEND and standing.rank == operation.target
    if not (sends or receives):
        return False
    other = operation.target if sends else operation.source
    completed = (
        each.sends_completed if sends else each.recvs_completed
        for each in standing.view.peers
        if (each.group, each.peer) == (operation.group, other)
    )
    return any(count >= operation.seq > 0 for count in completed)


def doomed_without_the_gone(graph: WaitGraph, found: Mapping[int, RankStanding]) -> frozenset[int]:
    """Return the ranks whose waits nothing could end even if those that are gone had come to all of them."""
    if not graph.blocks:
        return frozenset()
    gone = frozenset(rank for rank, each in found.items() if each.standing is Standing.GONE)
    needed = {
        operation: tuple(rank for rank in (*outside, *graph.behind[operation]) if rank not in gone)
        for operation, outside in graph.absent.items()
    }
    return _doomed(graph.blocks, needed, graph.held, found, graph.free, excused=gone)


def doomed_but_for(graph: WaitGraph, found: Mapping[int, RankStanding], ranks: frozenset[int]) -> frozenset[int]:
    """Return the ranks whose waits nothing could end even if these ranks went on."""
    needed = {operation: (*outside, *graph.behind[operation]) for operation, outside in graph.absent.items()}
    return _doomed(graph.blocks, needed, graph.held, found, graph.free | ranks)


def _is_untold(standing: RankStanding, operation: Operation) -> bool:
    """Say whether a member may have entered all the same; of one that is gone it makes no difference."""
    return standing.standing is not Standing.GONE and may_have_entered(standing.view, operation)


def _doomed(
    blocks: Mapping[int, tuple[Block, ...]],
    needed: Mapping[Operation, tuple[int, ...]],
    held: Mapping[Operation, frozenset[int]],
    found: Mapping[int, RankStanding],
    free: frozenset[int] = frozenset(),
    excused: frozenset[int] = frozenset(),
) -> frozenset[int]:
    """Return the blocked ranks whose waits nothing can end. Those in `free` may go on for reasons that nobody sees.

    `held` are the ranks that a mismatch holds up, by its operation. That those in `excused` are gone does not count.

    One pass over the memberships: an operation knows how many of those it needs are still doomed, and whoever is
    taken out is looked up only in the operations that need it.
    """
    if not blocks:
        return frozenset()
    gone = frozenset(rank for rank, each in found.items() if each.standing is Standing.GONE) - excused
    operations = {block.operation for each in blocks.values() for block in each}
    doomed = set(blocks) - free
    away = {each: frozenset(needed[each]) for each in operations}
    lost = {
        each: frozenset(rank for rank in gone.intersection(each.members) if not is_through(found[rank], each))
        for each in operations
    }
    waits = _Waits(
        needed=away,
        awaited={each: {rank for rank in ranks if rank in doomed} for each, ranks in away.items()},
        lost={each: ranks & away[each] for each, ranks in lost.items()},
        broken=frozenset(each for each, ranks in lost.items() if not ranks <= away[each]),
        held=held,
        gone=gone,
        known=found.keys(),
    )
    needing: dict[int, list[Operation]] = {}
    waiting: dict[Operation, list[int]] = {}
    for operation, ranks in waits.awaited.items():
        for rank in ranks:
            needing.setdefault(rank, []).append(operation)
    for rank, each in blocks.items():
        for block in each:
            waiting.setdefault(block.operation, []).append(rank)
    roots = {(block.operation, root_needed(rank, block)) for rank, each in blocks.items() for block in each}
    begun: set[Operation] = set()
    queue = list(blocks)
    while queue:
        rank = queue.pop()
        if rank not in doomed or all(_is_hopeless(rank, block, waits) for block in blocks[rank]):
            continue
        doomed.discard(rank)
        for operation in needing.get(rank, ()):
            waits.awaited[operation].discard(rank)
            # A wait for a root or for any member ends with the first that may come, a wait for all with the last one.
            if operation not in begun or (operation, rank) in roots or len(waits.awaited[operation]) < 2:
                begun.add(operation)
                queue += waiting[operation]
    return frozenset(doomed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waits:
    """Who is needed in operations, and who of them cannot come."""

    needed: Mapping[Operation, frozenset[int]]
    awaited: Mapping[Operation, set[int]]  # those of the needed whose own waits nothing is known to end
    lost: Mapping[Operation, frozenset[int]]  # those of the needed that have ended without it
    broken: frozenset[Operation]  # a member has ended inside of them
    held: Mapping[Operation, frozenset[int]]  # whom a mismatch holds up
    gone: frozenset[int]
    known: Collection[int]  # those that have a view


def _is_hopeless(rank: int, block: Block, waits: _Waits) -> bool:
    operation = block.operation
    needed, awaited = waits.needed[operation], waits.awaited[operation]
    if operation.from_anyone:  # one sender is enough, and it may be one that nobody knows
        never = awaited | waits.gone.intersection(operation.members)
        return not operation.unnamed and never >= set(operation.members) - {rank}
    if operation in waits.broken or rank in waits.held.get(operation, ()):
        return True
    if needed == {rank}:  # nothing but what its own device is in keeps it from going on
        return True
    never_come = len(awaited) - (rank in awaited) + len(waits.lost[operation])
    if not needs_root_first(rank, block):
        return never_come > 0
    root = root_needed(rank, block)
    if root in needed:
        return root in awaited or root in waits.lost[operation]
    if root >= 0 and root not in waits.known:
        return False  # it may come, and needs nobody else for that
    # The root has come: which of the others are needed is up to the backend, and one that may come may be the one.
    return never_come == len(needed) - (rank in needed) > 0


def cycles(graph: WaitGraph, told: frozenset[int] = frozenset()) -> list[tuple[int, ...]]:
    """Return the ranks of each terminal cycle of doomed ranks: they wait, through operations, for each other only.

    Or for ranks in `told`. Empty when the doomed ranks all lead to a mismatch or to a rank that is gone.
    """
    # Nodes: ranks as they are, operations as negative numbers. So edges are as few as memberships.
    numbers: dict[Operation, int] = {}
    among = graph.doomed - told
    edges: dict[int, list[int]] = {rank: [] for rank in sorted(among)}
    for rank in sorted(among):
        for block in graph.blocks[rank]:
            if rank in graph.behind[block.operation]:  # what it is behind in is nothing more to wait for
                continue
            number = numbers.setdefault(block.operation, -1 - len(numbers))
            if number not in edges:
                edges[number] = [member for member in waited_for(graph, block) if member in among]
            if edges[number]:
                edges[rank].append(number)
    circles = []
    for component in strong_components(edges):
        ranks = tuple(sorted(node for node in component if node >= 0))
        if len(ranks) > 1 and all(to in component for node in component for to in edges[node]):
            circles.append(ranks)
    return sorted(circles)


def waited_for(graph: WaitGraph, block: Block) -> tuple[int, ...]:
    """Return the members that a blocked rank waits for: those that have not entered, and those that are behind."""
    return (*graph.absent[block.operation], *graph.behind[block.operation])


def is_likely_only(graph: WaitGraph, circle: Iterable[int]) -> bool:
    """Say whether a circle holds only if its devices run what they were given one after the other.

    What was issued with async_op=True may run beside what the host reads: then neither the host nor what was
    issued later is held up by it for certain. After one that `comes_first` come all later ones on the device; but
    where another rank waits for something on the host, this host must stand where only its device can hold it.
    """
    blocks = [block for rank in circle for block in graph.blocks[rank]]
    devices = [block for block in blocks if block.on_device]
    if not all(comes_first(block.thread, block.issued) for block in devices):
        return True
    return len(devices) < len(blocks) and not all(reads_from_device(block.thread) for block in devices)


def victims_of(graph: WaitGraph, roots: Iterable[int]) -> tuple[int, ...]:
    """Return the blocked ranks whose waits lead to one of `roots`, the roots themselves left out.

    A wait that any one of several may end leads there only if the waits of all of them do. Each may be such a wait: so
    they count as held up until one of them turns out not to be.
    """
    wanted, needs = set(roots), graph.needs
    ended: set[_Need] = set()
    while True:
        reached = _reached(needs, wanted, ended)
        more = {need for need, able in needs.able.items() if need not in ended and not able <= reached}
        if not more:
            return tuple(sorted(reached - wanted))
        ended |= more


def _reached(needs: _Needs, wanted: set[int], ended: set[_Need]) -> set[int]:
    """Return `wanted`, and whom they hold up but for the waits in `ended`.

    One pass over the memberships: whoever is reached is looked up only in the operations that it holds up.
    """
    missing = dict(needs.missing)
    reached, queue = set(wanted), list(wanted)
    for need in {need for rank in wanted for need in needs.inside.get(rank, ())} - ended:
        missing[need] = 0
        new = set(needs.waiting[need]) - reached
        reached |= new
        queue += new
    while queue:
        for need in needs.held_up.get(queue.pop(), ()):
            missing[need] -= 1
            if missing[need] == 0 and need not in ended:
                new = set(needs.waiting[need]) - reached
                reached |= new
                queue += new
    return reached


def _needs_of(graph: WaitGraph) -> _Needs:
    waiting: dict[_Need, list[int]] = {}
    for rank, blocks in graph.blocks.items():
        for block in blocks:
            root = block.wait.peer if needs_root_first(rank, block) else -1
            waiting.setdefault(_Need(block.operation, root, block.wait.op in ROOTED), []).append(rank)
    held_up: dict[int, list[_Need]] = {}
    inside: dict[int, list[_Need]] = {}
    missing: dict[_Need, int] = {}
    able: dict[_Need, frozenset[int]] = {}
    for need in waiting:
        if need.operation.from_anyone and (can := able_to_come(graph, need.operation)):
            able[need] = can
        ranks, all_of_them = _holding_up(graph, need)
        missing[need] = len(set(ranks)) if all_of_them else 1
        for rank in set(ranks):
            held_up.setdefault(rank, []).append(need)
        for rank in _inside(graph, need):
            inside.setdefault(rank, []).append(need)
    return _Needs(waiting=waiting, held_up=held_up, missing=missing, inside=inside, able=able)


def _holding_up(graph: WaitGraph, need: _Need) -> tuple[tuple[int, ...], bool]:
    """Return the members that hold an operation up from outside, and whether it takes all of them to say so.

    Who waits for a root needs that one for certain. Once it has come, which of the others are needed is up to the
    backend: those that live may be the ones.
    """
    operation, root = need.operation, need.root
    outside = (*graph.absent[operation], *graph.behind[operation], *graph.unseen[operation])
    if root >= 0 and outside:
        return ((root,), False) if root in outside or root in graph.unasked else (outside, True)
    # A message of a batch may end with the whole batch only, and its other messages with those of other ranks.
    inside = _inside(graph, need) if operation.kind in (WaitKind.SEND, WaitKind.RECV) else ()
    return (*outside, *inside), False


def able_to_come(graph: WaitGraph, operation: Operation) -> frozenset[int]:
    """Return the members that have not come to an operation, live, and are not doomed.

    A wait that any one of several can end goes on for ever only if all of these stay away.
    """
    outside = (graph.absent, graph.behind, graph.unseen, graph.untold)
    ranks = graph.unasked.intersection(operation.members).union(*(each[operation] for each in outside))
    return ranks - graph.gone - graph.doomed


def _inside(graph: WaitGraph, need: _Need) -> tuple[int, ...]:
    """Return the members that are not through with an operation to which all have come.

    Of these it is held up by roots: who is frozen, gone, or mismatched. Who waits elsewhere has come to it as well. In
    a rooted one these may have done their part, and a member of which nothing is known may be the one that is missing.
    """
    operation = need.operation
    unknown = operation.unnamed or graph.unseen[operation] or graph.unasked.intersection(operation.members)
    if graph.absent[operation] or (need.rooted and (unknown or graph.behind[operation])):
        return ()
    passed = graph.passed.get(operation, ())
    return tuple(rank for rank in operation.members if rank not in passed) if passed else operation.members
