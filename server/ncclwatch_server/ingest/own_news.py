"""Leaves out of an agent's news what is about ranks that its connection does not speak for.

Whoever holds an agent's token can say anything of any rank; only what the rank's own node says may become a verdict.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from ncclwatch.contract import config, wire
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.model.rank import RankView
from ncclwatch_server.state.job_state import JobState

News = TypeVar("News", bound=wire.JobNews)
T = TypeVar("T")


def ranks_of(message: wire.JobNews) -> Iterator[int]:
    """Yield every rank that a message is about."""
    if isinstance(message, wire.Stacks):
        yield from (dump.rank for dump in message.dumps)
    elif isinstance(message, wire.Facts):
        yield from (rank for alike in message.alike for rank in alike.ranks)
        yield from (*message.joined, *message.twice)
    elif isinstance(message, wire.Parameters):
        yield from (rank for rank, _ in message.ranks)
    elif not isinstance(message, wire.Probed | wire.Gone):
        yield from (each.rank for each in message.ranks)


def check_lengths(message: wire.JobNews, world_size: int) -> None:
    """Raise `WireError` if a message tells more than there is: ranks named again and again, buckets of a loop."""
    if isinstance(message, wire.Facts):
        alike = sum(len(each.ranks) for each in message.alike)
        for what, count in (("set up", alike), ("joined", len(message.joined)), ("there twice", len(message.twice))):
            if count > world_size:
                raise WireError(f"{count} ranks are said to be {what} in a job of {world_size}")
    elif isinstance(message, wire.Loops):
        for loop in message.ranks:
            if len(loop.buckets) > config.BUCKETS_MAX or len(loop.costs) > config.COSTS_MAX:
                raise WireError(
                    f"a loop of rank {loop.rank} with {len(loop.buckets)} data buckets and the costs of "
                    f"{len(loop.costs)}; the limits are {config.BUCKETS_MAX} and {config.COSTS_MAX}"
                )


def own_part(message: News, state: JobState, link: int) -> tuple[News, int]:
    """Return what of a message its connection may say, and of how many ranks it may not speak."""
    part = _Part(state, link)
    changes: dict[str, object] = {}
    if isinstance(message, wire.Views):
        changes["ranks"] = part.of(message.ranks, lambda view: view.rank, part.may_tell_of)
    elif isinstance(message, wire.Stacks):
        changes["dumps"] = part.of(message.dumps, lambda dump: dump.rank)
    elif isinstance(message, wire.Testimonies):
        changes["ranks"] = part.of(message.ranks, lambda testimony: testimony.rank)
        changes["communicators"] = message.communicators if state.speaks(link) else ()
    elif isinstance(message, wire.Loops):
        changes["ranks"] = part.of(message.ranks, lambda loop: loop.rank)
    elif isinstance(message, wire.Parameters):
        changes["ranks"] = part.of(message.ranks, lambda pair: pair[0])
    elif isinstance(message, wire.Facts):
        alike = [wire.Alike(ranks=part.of(each.ranks, int), facts=each.facts) for each in message.alike]
        changes["alike"] = tuple(each for each in alike if each.ranks)
        # That it claims them is said by somebody who has announced them: see `Likeness.receive_facts`.
        changes["joined"] = part.of(message.joined, int, part.claims)
        changes["twice"] = part.of(message.twice, int)
    return (msgspec.structs.replace(message, **changes) if part.foreign else message), len(part.foreign)


class _Part:
    def __init__(self, state: JobState, link: int) -> None:
        self._state = state
        self._link = link
        self._waits_for = frozenset(state.contested.get(link, ()))
        self.foreign: set[int] = set()

    def of(
        self, news: Iterable[T], rank_of: Callable[[T], int], beside: Callable[[T], bool] | None = None
    ) -> tuple[T, ...]:
        """Return the news of ranks that are the connection's own, or that it may tell of `beside` these."""
        found = []
        for each in news:
            if self._state.owner(rank_of(each)) == self._link or (beside is not None and beside(each)):
                found.append(each)
            else:
                self.foreign.add(rank_of(each))
        return tuple(found)

    def claims(self, rank: int) -> bool:
        """Whether it has announced a rank that another connection owns."""
        return rank in self._waits_for

    def may_tell_of(self, view: RankView) -> bool:
        """Whether a view is of a sibling of its ranks that has not attached, and of which nobody else speaks."""
        return not view.attached and self._state.owner(view.rank) < 0 and self._state.speaks(self._link)
