"""Keeps how the ranks of one job were set up, and says when they differ in anything.

What ranks say is kept once for all that say the same, so that 16,384 ranks that are alike are one text, and compared
when it has changed, at most once a second. Time is the server's monotonic clock, passed in.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ncclwatch.contract import wire
from ncclwatch.contract.model.job import Habit, WaitClass
from ncclwatch.contract.model.preflight import (
    PARAMETER_CHARS_MAX,
    PARAMETERS_MAX,
    LikeRanks,
    Places,
    RankFacts,
    Setup,
    trimmed,
)
from ncclwatch_server import limits
from ncclwatch_server.judge.rules.drift import findings as drift
from ncclwatch_server.judge.rules.drift import models as drift_models

_UNIT_BYTES = 60  # in memory of a unit of a model, besides its letters


@dataclass(slots=True, kw_only=True)
class _Node:
    """What one agent said of its ranks."""

    host: str
    alike: dict[RankFacts, tuple[int, ...]]
    twice: tuple[int, ...]
    joined: frozenset[int]
    lost: bool = False  # the connection broke

    def forget(self, ranks: set[int]) -> None:
        """Speak no more for ranks of which another node does."""
        kept = {facts: tuple(rank for rank in own if rank not in ranks) for facts, own in self.alike.items()}
        self.alike = {facts: own for facts, own in kept.items() if own}


class Likeness:
    """What is known of the setup of one job's ranks."""

    def __init__(self, *, one_rendezvous: bool = True) -> None:
        self._one_rendezvous = one_rendezvous  # no: ranks of other nodes that have the same number are of another job
        self._nodes: dict[str, _Node] = {}  # by agent
        self._agent_of: dict[int, str] = {}
        self._interned: dict[RankFacts, RankFacts] = {}
        self._weight = 0  # bytes that they take, about
        self._interned_max = limits.SETUPS_PER_NODE_MAX  # then those are left out that no rank says any more
        self._parameters: dict[tuple[str, str], dict[int, tuple[str, ...]]] = {}
        self._worlds: dict[int, dict[str, tuple[int, ...]]] = {}
        self._claims: dict[int, set[str]] = {}  # hosts of ranks that two nodes say to have
        self._claimants: dict[int, str] = {}  # agents that say to have a rank of which another one speaks
        self._clocks_s: dict[str, float] = {}
        self._changed = False
        self._looked_at = float("-inf")
        self._first_at: float | None = None
        self._setup = Setup()
        self._drifted: tuple[int, ...] = ()
        self._to_ask: tuple[tuple[tuple[str, str], tuple[int, ...]], ...] = ()

    @property
    def setup(self) -> Setup:
        """What the judge gets to see, as of the last look."""
        return self._setup

    def receive_facts(
        self, agent: str, host: str, said: wire.Facts, now: float, claimed: frozenset[int] = frozenset()
    ) -> None:
        """Keep what a node said; it replaces what it said before. For ranks it only claimed another node speaks."""
        if len(self._nodes) >= limits.AGENTS_MAX and agent not in self._nodes:
            return
        alike: dict[RankFacts, tuple[int, ...]] = {}
        self._nodes[agent] = _Node(host=host, alike=alike, twice=said.twice, joined=frozenset(said.joined))
        for each in said.alike[: limits.SETUPS_PER_NODE_MAX]:
            facts = self._intern(trimmed(each.facts))
            alike[facts] = (*alike.get(facts, ()), *each.ranks)
        replaced: dict[str, set[int]] = {}  # ranks of which another agent has spoken until now, by that
        for rank in {*said.joined, *(rank for ranks in alike.values() for rank in ranks)}:
            other = self._agent_of.get(rank, agent)
            if other != agent:
                self._compare(rank, self._nodes[other], self._nodes[agent])
            if rank in claimed:
                self._claimants[rank] = agent
                continue
            claimant = self._nodes.get(self._claimants.get(rank, agent))
            if claimant is not None and claimant is not self._nodes[agent]:
                self._compare(rank, claimant, self._nodes[agent])
            if other != agent:
                replaced.setdefault(other, set()).add(rank)
            self._agent_of[rank] = agent
        for other, ranks in replaced.items():
            self._nodes[other].forget(ranks)
        self._forget_replaced(agent)
        self._note(now)

    def _forget_replaced(self, newest: str) -> None:
        """Forget agents that are no more, and for all ranks of which another one speaks by now."""
        if any(node.lost for node in self._nodes.values()):
            speak = {newest, *self._agent_of.values(), *self._claimants.values()}
            self._nodes = {agent: node for agent, node in self._nodes.items() if not node.lost or agent in speak}
            hosts = {node.host for node in self._nodes.values()}
            if len(self._clocks_s) > 2 * len(hosts) + 16:
                self._clocks_s = {host: ahead_s for host, ahead_s in self._clocks_s.items() if host in hosts}

    def _compare(self, rank: int, one: _Node, other: _Node) -> None:
        """Note that a rank exists twice, if the ranks that two nodes say to have are both."""
        if self._one_rendezvous and not one.lost and one.host != other.host and rank in one.joined & other.joined:
            self._claims.setdefault(rank, set()).update((one.host, other.host))

    def lose(self, agent: str) -> None:
        """Note that the connection of an agent broke."""
        if agent in self._nodes:
            self._nodes[agent].lost = True

    def learn(self, said: wire.Parameters) -> None:
        """Keep what ranks have wrapped, by name."""
        known = self._parameters.setdefault(said.key, {})
        if len(self._parameters) > limits.PARAMETERS_KEPT_MAX:
            del self._parameters[next(iter(self._parameters))]
        for rank, wrapped in said.ranks[: drift_models.RANKS_ASKED_MAX]:
            known[rank] = tuple(text[:PARAMETER_CHARS_MAX] for text in wrapped[:PARAMETERS_MAX])
        while len(known) > limits.PARAMETER_RANKS_MAX:
            del known[next(iter(known))]
        self._changed, self._looked_at = True, float("-inf")

    def note_world(self, host: str, world_size: int, ranks: tuple[int, ...], now: float) -> None:
        """Note that a node takes part in the job with another number of ranks."""
        if len(self._worlds) < limits.WORLDS_MAX or world_size in self._worlds:
            self._worlds.setdefault(world_size, {})[host] = ranks
            self._note(now)

    def note_clock(self, host: str, ahead_s: float) -> None:
        """Note by how much a host's clock is ahead of the server's, as far as the way between them lets it be told."""
        self._clocks_s[host] = ahead_s
        self._changed = True

    @property
    def pending(self) -> bool:
        """Whether something has changed that was not compared yet."""
        return self._changed

    @property
    def timeout_s(self) -> float:
        """The timeout of the default group, as of the last comparison; 0: unknown."""
        return drift.timeout_s(self._setup)

    def compare(self, now: float, seen: int, habits: Mapping[WaitClass, Habit]) -> tuple[int, ...]:
        """Return some ranks of each kind that differ from each other, () if all are alike or that is no use to say.

        `seen` is how many ranks of the job are known. Those that have not spoken are waited for a while: with
        half of them the larger part may be another.
        """
        if not self._changed or now - self._looked_at < limits.TICK_S:
            return self._drifted
        known = sum(len(ranks) for node in self._nodes.values() for ranks in node.alike.values())
        if known < seen and self._first_at is not None and now - self._first_at < limits.SETUP_S:
            return self._drifted
        self._changed, self._looked_at = False, now
        self._setup = self._gathered()
        found = drift.findings(self._setup, habits)
        self._drifted = tuple(sorted({rank for each in found for rank in (each.odd[:1] + each.others[:1])}))
        self._to_ask = drift_models.to_ask(self._setup)
        return self._drifted

    def questions(self) -> tuple[tuple[tuple[str, str], tuple[int, ...]], ...]:
        """Return whose parameters to ask for, once each."""
        asked, self._to_ask = self._to_ask, ()
        return asked

    def _intern(self, facts: RankFacts) -> RankFacts:
        """Return the one copy of what ranks say. What they have wrapped is left out where that is too much to keep."""
        known = self._interned.get(facts)
        if known is not None:
            return known
        weight = _weight(facts)
        if len(self._interned) >= self._interned_max or self._weight + weight > limits.SETUPS_BYTES_MAX:
            self._forget_unsaid()
        if self._weight + weight > limits.SETUPS_BYTES_MAX:
            facts = facts._replace(models=())
            weight = 0
        self._weight += weight
        return self._interned.setdefault(facts, facts)

    def _forget_unsaid(self) -> None:
        """Forget what ranks said once."""
        self._interned = {each: each for node in self._nodes.values() for each in node.alike}
        self._interned_max = min(limits.SETUPS_MAX, 2 * len(self._interned) + limits.SETUPS_PER_NODE_MAX)
        self._weight = sum(map(_weight, self._interned))

    def _note(self, now: float) -> None:
        self._changed = True
        self._first_at = now if self._first_at is None else self._first_at

    def _gathered(self) -> Setup:
        places: dict[RankFacts, list[tuple[str, tuple[int, ...]]]] = {}
        twice: dict[int, set[str]] = {rank: set(hosts) for rank, hosts in self._claims.items()}
        for node in self._nodes.values():
            for facts, ranks in node.alike.items():
                places.setdefault(facts, []).append((node.host, ranks))
            for rank in node.twice:
                twice.setdefault(rank, set()).add(node.host)
        return Setup(
            alike=tuple(LikeRanks(facts=facts, places=tuple(found)) for facts, found in places.items()),
            parameters={key: dict(found) for key, found in self._parameters.items()},
            worlds={size: _places(said) for size, said in self._worlds.items()},
            twice={rank: tuple(sorted(hosts)) for rank, hosts in twice.items()},
            clocks_s=dict(self._clocks_s),
        )


def _weight(facts: RankFacts) -> int:
    """Return about how many bytes of memory the models take that a rank has wrapped."""
    return sum(_UNIT_BYTES * len(model.units) + sum(map(len, model.units)) for model in facts.models)


def _places(said: Mapping[str, tuple[int, ...]]) -> Places:
    return tuple(sorted(said.items()))
