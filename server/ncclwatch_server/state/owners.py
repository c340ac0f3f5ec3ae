"""Which connection speaks for which rank of one job: the first that claims it, for as long as that is heard.

A second one that claims an owned rank waits. The same agent on a new connection gets the rank at once, and so does its
successor, an agent with the same token on the same machine, when the owner's line has broken or is quiet. Anybody else
is a stranger, and gets the rank when its owner was not heard for `ABANDONED_S`; until then its state is unknown.
Whoever had the rank before the present owner gets it back: an agent that was replaced because it died never comes back.
Agents of the attempt before have a right to what anybody else was first to claim.

A machine is known by what its agents say of it (`boot.machine`), which agents elsewhere cannot guess. The successor of
an agent of a version that does not say it only has to be on a host of the same name.
Time is the server's monotonic clock, passed in.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ncclwatch_server import limits

NOBODY = -1

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """Who talks on a connection, as its hello says."""

    agent: str = ""
    host: str = ""
    token: str = ""  # whose it is
    machine: str = ""

    def succeeds(self, other: "Speaker") -> bool:
        """Whether it may be the same agent as another one, started again."""
        same = self.machine == other.machine if other.machine else self.host == other.host
        return same and self.token == other.token


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a connection that owns ranks is doing."""

    quiet_s: float
    lost: bool  # it broke, or has said that all its ranks ended


class Owners:
    """The owners of the ranks of one job, and who waits to be one."""

    def __init__(self, world_size: int) -> None:
        # Without memory for each rank until one is claimed: a job may say to have 200,000.
        self.of_rank: Numbers = np.broadcast_to(np.int64(NOBODY), world_size)
        self._before = np.zeros(world_size, np.int64)  # the mark of the agent that had the rank before; 0: none had
        self._speakers: dict[int, Speaker] = {}  # by number of the connection
        self.heirs: frozenset[str] = frozenset()  # agents that spoke for ranks of the attempt before
        self.waiting: dict[int, Numbers] = {}  # ranks that a connection claims and another one owns

    def first_ranks(self) -> dict[int, int]:
        """Return the lowest rank that each connection speaks for, by its number."""
        numbers, firsts = np.unique(self.of_rank, return_index=True)
        return {number: first for number, first in zip(numbers.tolist(), firsts.tolist(), strict=True) if number >= 0}

    def enter(self, link: int, speaker: Speaker) -> None:
        """Note who talks on a connection."""
        self._speakers[link] = speaker

    def speaker(self, link: int) -> Speaker:
        """Return who talks on a connection; nobody that is known on `NOBODY`'s."""
        return self._speakers.get(link, Speaker())

    def speakers(self) -> Mapping[int, Speaker]:
        """Return who talks or has talked, on the connections that are not forgotten."""
        return self._speakers

    def forget(self, link: int) -> None:
        """Forget a connection that owns nothing."""
        self._speakers.pop(link, None)
        self.waiting.pop(link, None)

    def claim(
        self, link: int, ranks: Numbers, standing: Callable[[int], Standing], ended: NDArray[np.bool_]
    ) -> Numbers:
        """Give a connection the ranks that it may have, and return these. The others it waits for."""
        holders = self.of_rank[ranks]
        granted = (holders == NOBODY) | (holders == link)
        if not granted.all():
            for holder in np.unique(holders[~granted]).tolist():
                theirs = holders == holder
                granted[theirs] = self._yields(holder, link, standing(holder), ranks[theirs], ended)
        mine: Numbers = ranks[granted]
        taken = ranks[granted & (holders != NOBODY) & (holders != link)]
        ours = _mark(self._speakers[link].agent)
        for rank in taken[self._before[taken] != ours].tolist():
            self._before[rank] = _mark(self._speakers[int(self.of_rank[rank])].agent)
        if len(mine):
            if not self.of_rank.flags.writeable:
                self.of_rank = self.of_rank.copy()
            self.of_rank[mine] = link
        known = self.waiting.pop(link, ranks[:0])
        left = np.setdiff1d(np.union1d(known, ranks), mine)
        if len(left):
            self.waiting[link] = left
        return mine

    def may_replace(self, holder: int, speaker: Speaker, standing: Standing) -> bool:
        """Whether somebody may speak for living ranks in place of the connection that owns them."""
        if speaker.succeeds(self._speakers[holder]):
            return standing.lost or standing.quiet_s > limits.SILENT_S / 2
        return standing.quiet_s > limits.ABANDONED_S

    def may_follow(self, ranks: Sequence[int], speaker: Speaker, standing: Callable[[int], Standing]) -> bool:
        """Whether somebody may be the agents of all of these ranks, started again after these were lost."""
        for holder in {int(self.of_rank[rank]) for rank in ranks}:
            theirs = self._speakers.get(holder)
            if theirs is None or theirs.agent == speaker.agent or not speaker.succeeds(theirs):
                return False
            if not self.may_replace(holder, speaker, standing(holder)):
                return False
        return True

    def _yields(
        self, holder: int, link: int, standing: Standing, ranks: Numbers, ended: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Say for each of some ranks of one owner whether another connection may have it."""
        theirs, ours = self._speakers[holder], self._speakers[link]
        if theirs.agent == ours.agent or (ours.agent in self.heirs and theirs.agent not in self.heirs):
            return np.ones(len(ranks), np.bool_)
        free = np.full(len(ranks), self.may_replace(holder, ours, standing))
        if not ours.succeeds(theirs):
            free &= ~ended[ranks]  # how a rank ended is told by its own node, or by nobody
        found: NDArray[np.bool_] = free | (self._before[ranks] == _mark(ours.agent))
        return found


def _mark(agent: str) -> int:
    """Return what stands for an agent, never 0: that is the hash of an empty name, and stands for no agent."""
    return hash(agent) or 1
