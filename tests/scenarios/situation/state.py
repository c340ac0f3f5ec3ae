"""Holds what the commands of a situation have built up so far."""

import dataclasses
from collections.abc import Callable

from ncclwatch.contract.model.job import Contact, Habit, WaitClass
from ncclwatch.contract.model.preflight import ModelFacts, SamplerFacts
from ncclwatch.contract.model.rank import GroupView, OpView, RankView, StackDump, WaitView
from ncclwatch.contract.model.testimony import Testimony


class State:
    """What is known of a job, rank by rank."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankView] = {}
        self.world = 0
        self.groups: dict[str, list[int]] = {}
        self.descs: dict[str, str] = {}  # of groups that have another one than their name
        self.habits: dict[WaitClass, Habit] = {}
        self.under_way: dict[tuple[str, int], tuple[WaitClass, ...]] = {}
        self.testimonies: dict[int, Testimony] = {}
        self.launched: dict[str, dict[int, int]] = {}
        self.known_s = 3600.0
        self.unasked: set[int] = set()
        self.facts: dict[int, dict[str, str]] = {}
        self.samplers: dict[int, tuple[SamplerFacts, ...]] = {}
        self.models: dict[int, tuple[ModelFacts, ...]] = {}
        self.parameters: dict[tuple[str, str], dict[int, tuple[str, ...]]] = {}
        self.worlds: dict[int, list[int]] = {}
        self.twice: dict[int, tuple[str, ...]] = {}
        self.clocks_s: dict[str, float] = {}
        self.stacks: dict[int, StackDump] = {}
        self.silent: dict[int, float] = {}  # seconds since their node last spoke
        self.contacts: dict[int, tuple[Contact, float]] = {}  # what the connection to that node shows, for how long
        self.reached_from: dict[int, str] = {}  # the host that gets an answer of it, where the server gets none
        self.cut_off_host = ""
        self.live = False  # real ranks can play it
        self.limits: dict[str, str] = {}  # why the text cannot be told in another way, by its word for that

    def change(self, rank: int, **changes: object) -> None:
        """Replace parts of the view of a rank."""
        self.ranks[rank] = dataclasses.replace(self.ranks[rank], **changes)

    def main(self, rank: int, **changes: object) -> None:
        """Replace parts of its main thread."""
        first, *rest = self.ranks[rank].threads
        self.change(rank, threads=(dataclasses.replace(first, **changes), *rest))

    def process(self, rank: int, **changes: object) -> None:
        """Replace parts of what the node sees of its process."""
        self.change(rank, process=dataclasses.replace(self.ranks[rank].process, **changes))

    def block(self, rank: int, wait: WaitView) -> None:
        """Let its main thread stand in a wait, for as long as the wait is old."""
        still = {"cpu_still_s": wait.age_s, "same_s": wait.age_s}
        self.main(rank, wait=wait, doing=wait.site, frames=(wait.site,), **still)
        self.process(rank, cpu_still_s=wait.age_s, io_still_s=wait.age_s)

    def block_second(self, rank: int, wait: WaitView) -> None:
        """Let its second thread stand in a wait, beside what the main thread does."""
        main, second = self.ranks[rank].threads
        still = {"cpu_still_s": wait.age_s, "same_s": wait.age_s}
        second = dataclasses.replace(second, wait=wait, doing=wait.site, frames=(wait.site,), **still)
        self.change(rank, threads=(main, second))

    def put_group(self, rank: int, name: str, enqueued: int, pending: OpView | None) -> None:
        """Let it have come so far in a group; `pending` is what is not through there, unless something older is not."""
        before = next((group for group in self.ranks[rank].groups if group.name == name), None)
        if pending is not None and before is not None and before.pending is not None and not before.asynchronous:
            pending = before.pending
        completed = pending.seq - 1 if pending is not None else enqueued
        group = GroupView(
            name=name, desc=self.descs.get(name, name), ranks=tuple(self.groups[name]), enqueued=enqueued,
            completed=completed, prefix_hash=0, pending=pending,
        )  # fmt: skip
        others = tuple(g for g in self.ranks[rank].groups if g.name != name)
        self.change(rank, groups=(*others, group))


Command = Callable[[State, list[str]], None]
