"""Whom does everybody wait for, in the end?

Edges run from a rank to an operation it is in, and from the operation to those who have not come. A rank
that waits for others itself is on the way, never the end: only one that is in nothing, one without a file,
or a circle can be a root. So the rank that reports the timeout is as innocent as any other.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ncclwatch_server.judge.theory.waits.components import strong_components
from ncclwatch_server.offline.recording import Recording
from ncclwatch_server.postmortem.frontier import Stuck


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Who is in what, and whom that needs."""

    stuck: tuple[Stuck, ...]
    of_rank: Mapping[int, tuple[Stuck, ...]]

    @property
    def blocked(self) -> tuple[int, ...]:
        """Return the ranks that are in something."""
        return tuple(sorted(self.of_rank))


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """Ranks that others wait for in the same operations, and that wait for nobody."""

    ranks: tuple[int, ...]
    operations: tuple[Stuck, ...]  # those they have not come to
    victims: tuple[int, ...]  # who waits for them, directly or through others


def waits_of(stuck: Iterable[Stuck]) -> Waits:
    """Return the waits that these operations make."""
    found = tuple(stuck)
    of_rank: dict[int, list[Stuck]] = {}
    for each in found:
        for rank in each.waiting:
            of_rank.setdefault(rank, []).append(each)
    return Waits(stuck=found, of_rank={rank: tuple(each) for rank, each in of_rank.items()})


def outside_roots(waits: Waits, recordings: Mapping[int, Recording]) -> tuple[Root, ...]:
    """Return the ranks with a file that are in nothing while others need them."""
    free = {rank for rank in recordings if rank not in waits.of_rank}
    return _clustered(waits, [(each, tuple(rank for rank in each.absent if rank in free)) for each in waits.stuck])


def unknown_roots(waits: Waits) -> tuple[Root, ...]:
    """Return the ranks nobody can tell of, where all others have come. One that waits elsewhere is on the way."""
    return _clustered(
        waits,
        [
            (each, () if each.absent else tuple(rank for rank in each.unknown if rank not in waits.of_rank))
            for each in waits.stuck
        ],
    )


def _clustered(waits: Waits, needed: Sequence[tuple[Stuck, tuple[int, ...]]]) -> tuple[Root, ...]:
    """Put ranks that are needed by one operation into one root."""
    clusters: list[set[int]] = []
    for _, ranks in needed:
        if ranks:
            touched = [cluster for cluster in clusters if cluster & set(ranks)]
            clusters = [cluster for cluster in clusters if cluster not in touched]
            clusters.append(set(ranks).union(*touched))
    roots = []
    for cluster in clusters:
        operations = tuple(each for each, ranks in needed if cluster & set(ranks))
        victims = reaching(waits, cluster, through_unknown=True)
        roots.append(Root(ranks=tuple(sorted(cluster)), operations=operations, victims=victims))
    return tuple(sorted(roots, key=lambda root: (-len(root.victims), root.ranks)))


def reaching(waits: Waits, roots: Iterable[int], *, through_unknown: bool = False) -> tuple[int, ...]:
    """Return the blocked ranks whose waits lead to one of `roots`, these left out."""
    wanted = set(roots)
    by_needed: dict[int, list[Stuck]] = {}
    for each in waits.stuck:
        for rank in (*each.absent, *(each.unknown if through_unknown else ()), *_held_up_inside(waits, each)):
            by_needed.setdefault(rank, []).append(each)
    reached, queue = set(wanted), list(wanted)
    while queue:
        for each in by_needed.pop(queue.pop(), ()):
            fresh = [rank for rank in each.waiting if rank not in reached]
            reached.update(fresh)
            queue += fresh
    return tuple(sorted(reached - wanted))


def _held_up_inside(waits: Waits, stuck: Stuck) -> tuple[int, ...]:
    """Return who has entered an operation that all have entered, and is held up in another one."""
    if stuck.absent or stuck.unknown:
        return ()
    inside = {*stuck.waiting, stuck.source, stuck.target} if stuck.source >= 0 else stuck.waiting
    return tuple(rank for rank in inside if any(other is not stuck for other in waits.of_rank.get(rank, ())))


def circle(waits: Waits, excluded: Iterable[int]) -> tuple[int, ...]:
    """Return blocked ranks that need each other and nobody else, of those that lead to no other root; () if none."""
    left = set(waits.of_rank) - set(excluded)
    # Nodes: ranks as they are, operations as negative numbers. So edges are as few as memberships.
    edges: dict[int, list[int]] = {rank: [] for rank in left}
    for number, each in enumerate(waits.stuck, 1):
        needed = [rank for rank in each.absent if rank in left]
        if needed:
            edges[-number] = needed
            for rank in each.waiting:
                if rank in left:
                    edges[rank].append(-number)
    for component in strong_components(edges):
        ranks = [node for node in component if node >= 0]
        if len(ranks) > 1 and all(to in component for node in component for to in edges[node]):
            return tuple(sorted(ranks))
    return ()
