"""Holds what everything in the judge looks at: a snapshot, where its ranks stand, and who waits for whom."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import RankView, ThreadView, WaitKind
from ncclwatch_server.judge.theory.histories.batches import Furthest, furthest
from ncclwatch_server.judge.theory.moments import without_older_files
from ncclwatch_server.judge.theory.repair import SmallestRepair
from ncclwatch_server.judge.theory.repair.findings import Finding
from ncclwatch_server.judge.theory.waits.full_tables import legible
from ncclwatch_server.judge.theory.waits.group_identity import told_apart
from ncclwatch_server.judge.theory.waits.left_members import past_the_gone
from ncclwatch_server.judge.theory.waits.memberships import possible, with_members
from ncclwatch_server.judge.theory.waits.mismatches import in_front_of_queues
from ncclwatch_server.judge.theory.waits.rank_standing import Block, RankStanding, standings, timeout_of
from ncclwatch_server.judge.theory.waits.wait_graph import WaitGraph, build, victims_of

_RENDEZVOUS = (WaitKind.INIT, WaitKind.NEW_GROUP)
DEVICE_S = 300.0
DEVICE_OF_TIMEOUT = 0.5  # share of the group's timeout, where that is known


@dataclass(frozen=True, kw_only=True)  # without slots: what follows from it is worked out once
class Case:
    """One snapshot with its standings and its wait-for graph."""

    snapshot: JobSnapshot
    found: Mapping[int, RankStanding]
    graph: WaitGraph
    search: SmallestRepair  # of all of these cases together
    told: frozenset[int] = frozenset()  # ranks of the roots that were told already
    explained: frozenset[int] = frozenset()  # those of them that wait, and all whose waits lead to one of them

    @property
    def repair(self) -> Finding:
        """The smallest change to what ranks did after which all would go on; empty where their calls do not tell."""
        return self.search.finding

    @property
    def views(self) -> Mapping[int, RankView]:
        """The ranks somebody has seen."""
        return self.snapshot.ranks

    @cached_property
    def has_files(self) -> bool:
        """Whether of some ranks a file tells, rather than an agent."""
        return any(view.file is not None for view in self.views.values())

    @cached_property
    def blocked(self) -> tuple[int, ...]:
        """The ranks that wait for others."""
        return tuple(self.graph.blocks)

    @cached_property
    def unexplained(self) -> tuple[int, ...]:
        """The ranks that wait for others, and for no root that was told already."""
        return tuple(rank for rank in self.blocked if rank not in self.explained)

    @cached_property
    def in_rendezvous(self) -> bool:
        """Whether somebody waits for all ranks to be together."""
        return any(block.operation.kind in _RENDEZVOUS for each in self.graph.blocks.values() for block in each)

    @cached_property
    def furthest(self) -> Furthest:
        """How many batches those who wait have drawn in passes that they are still in."""
        return furthest(self.views, self.blocked)

    def beside(self, ranks: Iterable[int]) -> "Case":
        """Return what is left to explain beside a root of these ranks, victims of it or not."""
        root = frozenset(ranks)
        held_up = frozenset(victims_of(self.graph, root)) | root.intersection(self.graph.blocks)
        return Case(
            snapshot=self.snapshot,
            found=self.found,
            graph=self.graph,
            search=self.search,
            told=self.told | root,
            explained=self.explained | held_up,
        )


def open_case(snapshot: JobSnapshot) -> Case:
    """Return the case of a snapshot, with the members of all groups as far as they are known.

    Groups of one name and other members have names of their own in it.
    """
    views = legible(possible(snapshot.ranks, snapshot.world_size))
    complete = told_apart(without_older_files(with_members(views, snapshot.world_size, partly=True)))
    if complete is not snapshot.ranks:
        snapshot = replace(snapshot, ranks=complete)
    found = in_front_of_queues(past_the_gone(standings(snapshot)))
    graph = build(found, snapshot.silent, snapshot.unasked)
    return Case(snapshot=snapshot, found=found, graph=graph, search=SmallestRepair(found))


def onset_s(blocks: Iterable[Block]) -> float:
    """Return for how long the hang has lasted: since the last of its ranks came to wait."""
    ages = [block.wait.age_s for block in blocks]
    return min(ages, default=0.0)


def device_patience_s(case: Case, block: Block) -> float:
    """Return for how long a device may seem to stand in an operation: for a whole step it may compute before that.

    What it counts as unfinished may also be through, once a member is gone.
    """
    timeout_s = timeout_of(case.views[block.rank], block.operation.group)
    longest_s = max((habit.longest_s for habit in case.snapshot.habits.values()), default=0.0)
    return max(timeout_s * DEVICE_OF_TIMEOUT or DEVICE_S, 3 * longest_s)


def main_thread(view: RankView) -> ThreadView | None:
    """Return a rank's main thread, if anybody saw it."""
    threads = view.threads
    if threads and threads[0].main:  # nearly always
        return threads[0]
    return next((thread for thread in threads if thread.main), None)


def explained(case: Case, ranks: Iterable[int]) -> tuple[int, int]:
    """Return (blocked ranks among `ranks`, blocked ranks in all)."""
    blocked = set(case.blocked)
    return len(blocked & set(ranks)), len(blocked)
