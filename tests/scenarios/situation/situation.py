"""Carries out the commands of a situation, and returns what the judge judges."""

import shlex
from collections.abc import Mapping

from ncclwatch.contract.model.job import JobSnapshot, QuietNode
from ncclwatch.contract.model.preflight import LikeRanks, RankFacts, Setup, bounded
from ncclwatch.contract.model.testimony import CommRank, Communicator
from tests.scenarios.situation import data, groups, learned, operations, processes, setup
from tests.scenarios.situation.state import Command, State

_COMMANDS: Mapping[str, Command] = {
    **groups.COMMANDS, **operations.COMMANDS, **processes.COMMANDS, **data.COMMANDS, **setup.COMMANDS,
    **learned.COMMANDS,
}  # fmt: skip


class Situation(State):
    """A situation, one command after the other."""

    def run(self, line: str) -> None:
        """Carry out one command."""
        verb, *words = shlex.split(line)
        _COMMANDS[verb](self, words)

    def snapshot(self) -> JobSnapshot:
        """Return what the judge gets."""
        return JobSnapshot(
            job="job",
            world_size=self.world,
            ranks={rank: view for rank, view in self.ranks.items() if rank not in self.silent},
            stacks=dict(self.stacks),
            silent=dict(self.silent),
            quiet_nodes=self._quiet_nodes(),
            cut_off_host=self.cut_off_host,
            habits=dict(self.habits),
            under_way=dict(self.under_way),
            absent_s=self.known_s,
            testimonies=dict(self.testimonies),
            communicators=tuple(self._communicator(group) for group in self.launched),
            unasked=frozenset(self.unasked),
            setup=self._setup(),
        )

    def _quiet_nodes(self) -> tuple[QuietNode, ...]:
        by_host: dict[str, list[int]] = {}
        for rank in sorted(self.silent):
            by_host.setdefault(self.ranks[rank].host, []).append(rank)
        return tuple(
            QuietNode(
                host=host, ranks=tuple(ranks), silent_s=self.silent[ranks[0]],
                contact=self.contacts[ranks[0]][0], contact_s=self.contacts[ranks[0]][1],
                reached_from=self.reached_from.get(ranks[0], ""),
            )
            for host, ranks in by_host.items()
        )  # fmt: skip

    def _setup(self) -> Setup:
        alike: dict[RankFacts, list[int]] = {}
        for rank in sorted(self.facts.keys() | self.models.keys() | self.samplers.keys()):
            said = RankFacts(
                values=bounded(self.facts.get(rank, {}).items()),
                models=self.models.get(rank, ()),
                samplers=self.samplers.get(rank, ()),
            )
            alike.setdefault(said, []).append(rank)
        return Setup(
            alike=tuple(LikeRanks(facts=said, places=self._places(ranks)) for said, ranks in alike.items()),
            parameters=self.parameters,
            worlds={size: self._places(ranks) for size, ranks in self.worlds.items()},
            twice=self.twice,
            clocks_s=self.clocks_s,
        )

    def _places(self, ranks: list[int]) -> tuple[tuple[str, tuple[int, ...]], ...]:
        hosts = sorted({self.ranks[rank].host for rank in ranks})
        return tuple((host, tuple(rank for rank in ranks if self.ranks[rank].host == host)) for host in hosts)

    def _communicator(self, group: str) -> Communicator:
        members = self.groups[group]
        ranks = tuple(
            CommRank(
                rank=members.index(rank), pid=1000 + rank, launched=max(count, 0), missing=count < 0, dead=count < 0
            )
            for rank, count in self.launched[group].items()
        )
        return Communicator(size=len(members), ranks=ranks)
