"""Keeps what the ranks of one job last said of themselves, and says whether there is anything to look at.

Digests are written as they come into one buffer per job, so that a tick reads all ranks in a
few numpy operations. The layout of that buffer changes only when an agent, a rank or a group
comes or goes. Time is the server's monotonic clock, passed in.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclwatch.contract.errors import WireError
from ncclwatch_server import limits
from ncclwatch_server.state.columns import turned
from ncclwatch_server.state.desync import Comparison
from ncclwatch_server.state.digest_rows import (
    GROUP_DTYPE,
    RANK_DTYPE,
    SCREENED,
    STANDING,
    Numbers,
    Rows,
    join,
    plausible,
    rows_in,
    slot_of_rows,
)
from ncclwatch_server.state.group_index import Topology
from ncclwatch_server.state.last_heard import Listening
from ncclwatch_server.state.owners import NOBODY, Owners, Speaker, Standing
from ncclwatch_server.state.picture import Picture
from ncclwatch_server.state.suspicion import Sharing, Suspicion, detached, noted, saving, stopped
from ncclwatch_server.state.waits import chains

_NOBODY = -2  # stands for connections that broke; -1 is the owner of ranks nobody spoke for
_UNKNOWN = Speaker()


@dataclass(slots=True, kw_only=True)
class _Slot:
    """Where the rows of one connection lie, or those that still have to be laid out."""

    rank_at: slice = field(default_factory=lambda: slice(0, 0))
    group_at: slice = field(default_factory=lambda: slice(0, 0))
    fresh: tuple[bytes, bytes] | None = None
    lost: bool = False  # the connection broke
    gone: bool = False  # all its ranks ended, the agent said so
    foreign: bool = False  # its digests tell of ranks that it does not own: those rows are left out
    left: bool = False  # the connection is no more


class JobState:
    """The tables of one attempt of one job."""

    _ranks: Rows
    _newest: Mapping[str, NDArray[Any]]  # the fields of its rows that are SCREENED, as of the last fold
    _groups: Rows
    _row_rank: Numbers  # the rank of each row
    _everyone: bool  # every rank has one
    _group_row_rank: Numbers
    _standing_told: NDArray[np.uint64]  # what its rows said of their ranks when it was read
    _reporting: NDArray[np.bool_]  # rows whose connection speaks for the rank and is alive
    _all_report: bool
    _issued: NDArray[np.uint64]  # as of the last fold
    _completed: NDArray[np.uint64]
    _sharing: Sharing
    _known_rank: NDArray[np.int32]  # what the rows said of their ranks when they were laid out

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.seen = np.zeros(world_size, np.bool_)
        self.seen_count = 0  # ranks
        self.ended = np.zeros(world_size, np.bool_)
        self._moved_at = np.broadcast_to(np.float64(-np.inf), world_size)  # no memory until a rank is seen
        self.owners = Owners(world_size)
        self._claimed_at = -np.inf
        self._taken_at = 0.0  # when the newest digest or announcement came
        self._slots: dict[int, _Slot] = {}
        self._stale = False
        self._comparison = Comparison()
        self._topology: Topology | None = None
        self._led: tuple[chains.Waits, chains.Leads] | None = None
        self._heard = Listening()
        self._lost: set[int] = set()
        self.completed = 0  # collectives of all ranks, as far as they were seen to rise
        self._rank_bytes, self._group_bytes = bytearray(), bytearray()
        self._adopt(bytearray(), bytearray(), np.zeros(0, np.int64))

    @property
    def _owner(self) -> Numbers:
        return self.owners.of_rank  # number of the connection that speaks for it

    def announce(self, link: int, ranks: Iterable[int], now: float, speaker: Speaker = _UNKNOWN) -> None:
        """Note that a connection wants to speak for these ranks. It is given those that no other one speaks for."""
        numbers = np.fromiter(ranks, np.int64)
        if numbers.size and (numbers.min() < 0 or numbers.max() >= self.world_size):
            raise WireError(f"an agent announced ranks outside of 0..{self.world_size - 1}")
        if link not in self._slots:
            self._slots[link] = _Slot()
            self._heard.note(link, now)
        self._slots[link].gone = self._slots[link].foreign = False
        self._taken_at = now
        self.owners.enter(link, speaker)
        self._claim(link, numbers, now)
        self._stale = self._stale or numbers.size > 0

    def _claim(self, link: int, ranks: Numbers, now: float) -> None:
        """Give a connection what it may have of these ranks."""
        unowned = ranks[self._owner[ranks] == NOBODY]  # whoever said that these ended did not speak for them
        mine = self.owners.claim(link, ranks, lambda holder: self.standing(holder, now), self.ended)
        if len(mine) and not self._moved_at.flags.writeable:
            self._moved_at = self._moved_at.copy()
        self.seen[mine], self.ended[np.intersect1d(mine, unowned)] = True, False
        self.seen_count = int(self.seen.sum())

    def standing(self, link: int, now: float) -> Standing:
        """Return how a connection that is remembered is doing."""
        slot = self._slots[link]
        return Standing(quiet_s=now - self._heard.at(link), lost=slot.lost or slot.gone)

    def unseen(self, ranks: Sequence[int]) -> int:
        """Return how many of some ranks were not seen yet."""
        return len(ranks) - int(self.seen[list(ranks)].sum()) if ranks else 0

    @property
    def links(self) -> int:
        """How many connections are remembered."""
        return len(self._slots)

    def knows(self, link: int) -> bool:
        """Whether a connection is."""
        return link in self._slots

    def is_spoken_for(self, now: float) -> bool:
        """Whether any rank of it lives, and its connection was heard lately."""
        return any(
            self._lives(link) and now - self._heard.at(link) <= limits.SILENT_S for link in self._living_owners()
        )

    def belongs_to_others(self, speaker: Speaker, now: float) -> bool:
        """Whether any rank of it may live whose agent this one may not replace: that may be away for a while."""
        return any(
            not self.owners.may_replace(link, speaker, self.standing(link, now)) for link in self._living_owners()
        )

    def _living_owners(self) -> list[int]:
        numbers = np.unique(self._owner[self.seen & ~self.ended]).tolist()
        return [link for link in numbers if link != NOBODY]

    @property
    def first_speaker(self) -> Speaker:
        """Return who speaks for the lowest rank that was seen."""
        return self.owners.speaker(self.owner(int(self.seen.argmax())))

    @property
    def under_way(self) -> bool:
        """Whether all ranks have come together: each has completed something."""
        return bool(self.seen.all()) and self._everyone and bool((self._newest["completed"] > 0).all())

    @property
    def contested(self) -> dict[int, tuple[int, ...]]:
        """Return the ranks that connections claim and others own, by number of the connection."""
        return {link: tuple(ranks.tolist()) for link, ranks in self.owners.waiting.items() if self._lives(link)}

    def _lives(self, link: int) -> bool:
        return link in self._slots and not self._slots[link].lost

    def _claim_again(self, now: float) -> None:
        """Give ranks to those who wait for them, if their owners have fallen silent."""
        if now - self._claimed_at < limits.CLAIM_AGAIN_S:
            return
        self._claimed_at = now
        for link, ranks in list(self.owners.waiting.items()):
            if self._lives(link):
                self._claim(link, ranks, now)
                self._slots[link].foreign = link in self.owners.waiting

    def receive_digest(self, link: int, ranks: memoryview, groups: memoryview, now: float) -> None:
        """Keep a digest's rows. They are read at the next `fold`."""
        slot = self._slots.get(link)
        if slot is None:
            return  # all its ranks had ended, and others speak for them by now
        self._heard.note(link, now)
        self._taken_at = now
        if slot.foreign:
            ranks, groups = self._own_rows(link, ranks, groups)
        at, group_at = slot.rank_at, slot.group_at
        if slot.fresh is None and (len(ranks), len(groups)) == (
            at.stop - at.start,
            group_at.stop - group_at.start,
        ):
            self._rank_bytes[at] = ranks
            self._group_bytes[group_at] = groups
        else:
            slot.fresh = (bytes(ranks), bytes(groups))
            self._stale = True

    def _own_rows(
        self, link: int, ranks: memoryview | bytes, groups: memoryview | bytes
    ) -> tuple[memoryview, memoryview]:
        """Return the rows of a digest that are of ranks its connection owns; all of one that cannot be."""
        rank_rows, group_rows = rows_in(ranks, RANK_DTYPE), rows_in(groups, GROUP_DTYPE)
        known = [rows["rank"].astype(np.int64) for rows in (rank_rows, group_rows)]
        if any(((of < 0) | (of >= self.world_size)).any() for of in known):
            return memoryview(ranks), memoryview(groups)
        mine = [self._owner[of] == link for of in known]
        return memoryview(rank_rows[mine[0]].tobytes()), memoryview(group_rows[mine[1]].tobytes())

    def lose(self, link: int, now: float) -> None:
        """Note that a connection broke."""
        if link not in self._slots:
            return
        self._slots[link].left = self._stale = True
        if not self._slots[link].gone:
            self._slots[link].lost = True
            self._lost.add(link)

    def gone(self, link: int) -> None:
        """Note that all ranks of a connection have ended and no more is to be expected."""
        if link in self._slots:
            self._slots[link].gone = self._stale = True
            self.ended[self._owner == link] = True

    def note_ended(self, rank: int) -> None:
        """Note that a rank has ended, before a digest says so."""
        self.seen[rank] = self.ended[rank] = True
        self.seen_count = int(self.seen.sum())

    @property
    def stale(self) -> bool:
        """Whether ranks, groups or connections have come or gone since the last `fold`."""
        return self._stale or bool(self.owners.waiting)

    @property
    def rank_bytes(self) -> bytearray:
        """The rows of its ranks, as they were told last."""
        return self._rank_bytes

    @property
    def heard_at(self) -> float:
        """When the quietest connection was heard; infinity if there is none."""
        return self._taken_at if len(self._slots) == 1 else self._heard.quietest

    @property
    def over(self) -> bool:
        """Whether every rank that was ever seen has ended."""
        return bool(self.seen.any() and self.ended[self.seen].all())

    @property
    def steps(self) -> int:
        """The furthest rank's optimizer steps."""
        return int(self._ranks["steps"].max(initial=0))

    def owner(self, rank: int) -> int:
        """Return the number of the connection that speaks for a rank, -1 if none."""
        return int(self._owner[rank])

    def speaks(self, link: int) -> bool:
        """Whether a connection speaks for any rank."""
        return bool((self._owner == link).any())

    def ranks_of(self, link: int) -> tuple[int, ...]:
        """Return the ranks a connection speaks for."""
        return tuple(np.flatnonzero(self._owner == link).tolist())

    def heard_ago_s(self, link: int, now: float) -> float:
        """Return for how long a connection has been quiet."""
        return now - self._heard.at(link) if link in self._slots else 0.0

    def fold(self, now: float) -> tuple[int, ...]:
        """Read what came since the last time. Returns the connections whose rows cannot be."""
        rejected: tuple[int, ...] = ()
        if self.owners.waiting:
            self._claim_again(now)
        self._newest = turned(self._ranks, SCREENED)
        standing = self._newest["head"] & STANDING
        if self._stale or self.owners.waiting or not np.array_equal(standing, self._standing_told):
            rejected = self._read_standing(now)
        issued, completed = self._newest["issued"], self._newest["completed"]
        moved = issued != self._issued
        if self._everyone and moved.all():  # as in most ticks of a healthy job
            self._moved_at[:] = now
        else:
            moved |= completed != self._completed
            if moved.any():
                self._moved_at[self._row_rank[moved]] = now
        self.completed += self._risen(completed)
        self._issued, self._completed = issued, completed
        return rejected

    def _read_standing(self, now: float) -> tuple[int, ...]:
        """Read which ranks there are, and which have ended. Returns as `fold` does."""
        rejected: tuple[int, ...] = ()
        if self._stale or not np.array_equal(self._newest["rank"], self._known_rank):
            rejected = self._lay_out(now)
        over = self._newest["ended"] != 0
        if over.any():
            self.ended[self._row_rank[over & self._reporting]] = True
        self._standing_told = self._newest["head"] & STANDING
        return rejected

    def _risen(self, completed: NDArray[np.uint64]) -> int:
        """Return by how much the counts of the rows that report have grown since the last fold."""
        risen = (completed - self._completed).view(np.int64)
        if not self._all_report or risen.min(initial=0) < 0:
            risen = np.where(self._reporting & (risen > 0), risen, 0)
        return int(risen.sum())

    def picture(self, now: float) -> Picture:
        """Return everything that figures are made of, in a few microseconds for each thousand ranks."""
        return Picture(
            ranks=self._ranks,
            groups=self._groups,
            row_rank=self._row_rank,  # these three are replaced, never changed
            group_rank=self._group_row_rank,
            reporting=self._reporting,
            topology=self._topology,
            seen=self.seen.copy(),
            ended=self.ended.copy(),
            owner=self._owner.copy(),
            moved_ago_s=now - self._moved_at,
            heard=self._heard.copied(),
            now=now,
        )

    def living(self) -> tuple[Rows, Numbers]:
        """Return the rows of the ranks that live and want to be judged, and these ranks; as of the last `fold`."""
        live = self._reporting & ~self.ended[self._row_rank] & (self._newest["detached"] == 0)
        # A copy of all rows would cost more than all that is done with them.
        return (self._ranks, self._row_rank) if live.all() else (self._ranks[live], self._row_rank[live])

    def suspicion(self, now: float) -> Suspicion:
        """Say what deserves a look, as of the last `fold`."""
        rows, rank = self._newest, self._row_rank
        live = self._reporting & ~self.ended[rank] if self.ended.any() else self._reporting
        off = detached(rows, live, rank)
        live = live & (rows["detached"] == 0) if off else live
        long = bool((rows["ages_s"].view(np.float32) > limits.WAIT_S).any())  # somebody's wait, or since a pulse
        if not long:
            self._led = None
        waiting, longest_s = self._waiting(live, now) if long else ((), 0.0)
        silent, unheard = self._silence(now)
        ended = self.ended & self.seen if self.ended.any() else self.ended
        some_ended = ended.any() and not ended[self.seen].all()
        return Suspicion(
            desynced=tuple(each for each in self._desynced(now) if each not in off),
            saving=saving(rows, live, rank),
            sharing=self._sharing.ranks(rows["device"], live, self._reporting, rank),
            stopped=stopped(rows, live, rank) if long else (),
            noted=noted(rows, live, rank),
            waiting=waiting,
            ended=tuple(np.flatnonzero(ended).tolist()) if some_ended else (),
            silent=silent,
            longest_wait_s=longest_s,
            unheard=unheard,
            detached=off,
        )

    def _waiting(self, live: NDArray[np.bool_], now: float) -> tuple[tuple[int, ...], float]:
        """Return the ranks that wait and stand still, and the longest of their waits."""
        age_s, rank = self._newest["wait_age_s"], self._row_rank
        waiting = live & (age_s > limits.WAIT_S)
        if not waiting.any():
            self._led = None
        else:
            waiting &= now - self._moved_at[rank] > limits.STILL_S
        return tuple(rank[waiting].tolist()), float(age_s[waiting].max(initial=0.0))

    def _desynced(self, now: float) -> tuple[int, ...]:
        """Return ranks that have issued equally much in a group, and not the same; looked for now and then."""
        if self._comparison.is_due(now):
            if self._topology is None:
                self._topology = Topology.of(self._groups)
            self._stale |= not self._comparison.compare(self._topology, self._groups, self._group_row_rank, now)
        return self._comparison.apart

    def worth_a_look(self, waiting: Iterable[int], limit: int) -> tuple[int, ...]:
        """Return the ranks to inspect in a big job, of which at most so many can be: see `leads`."""
        rows = self._groups
        if self._topology is not None and not self._topology.fits(rows):
            self._topology, self._stale = None, True
        self._topology = self._topology or Topology.of(rows)
        members = chains.Memberships(
            rank=np.clip(rows["rank"], 0, self.world_size - 1).astype(np.int64),  # checked when they are laid out
            topology=self._topology,
            enqueued=rows["enqueued"],
            prefix_hash=rows["prefix_hash"],
        )
        waits = chains.waits_in(
            self._ranks[self._reporting], self._row_rank[self._reporting], waiting, self._topology, self.seen
        )
        found = chains.follow(waits, members)
        self._led = waits, found
        return tuple(chains.worth_a_look(waits, members, found, limit).tolist())

    def explained_by(self, culprits: Iterable[int]) -> tuple[int, int] | None:
        """Return how many of all waiting ranks wait for these in the end, and how many wait, when ranks were chosen.

        None where nothing was chosen: the judge saw all ranks then, and counted itself.
        """
        ranks = [rank for rank in culprits if rank < self.world_size]
        if self._led is None or not ranks:
            return None
        waits, found = self._led
        return int(found.led_to(waits, ranks).sum()), int(waits.waiting.sum())

    def _silence(self, now: float) -> tuple[dict[int, float], frozenset[int]]:
        quiet = self._heard.quiet_since(now - limits.SILENT_S / 2)
        if not quiet and not self._lost:
            return {}, frozenset()
        numbers = [number for number in {*quiet, *self._lost} if not self._slots[number].gone]
        living = np.isin(self._owner, numbers) & ~self.ended
        ranks = np.flatnonzero(living)
        silent: dict[int, float] = {}
        for rank, number in zip(ranks.tolist(), self._owner[ranks].tolist(), strict=True):
            quiet_s = now - self._heard.at(number)
            if quiet_s > limits.SILENT_S:
                silent[rank] = quiet_s
        return silent, frozenset(ranks.tolist())

    def _lay_out(self, now: float) -> tuple[int, ...]:
        """Give every connection its place in new buffers, the newest connection last."""
        numbers = sorted(self._slots)
        slots = [self._slots[number] for number in numbers]
        news = [slot.fresh or self._placed(slot) for slot in slots]
        rejected = self._reject_implausible(news, numbers)
        self._leave_out_foreign(news, numbers)
        rank_ends, rank_bytes = join([ranks for ranks, _ in news])
        group_ends, group_bytes = join([groups for _, groups in news])
        fresh = np.array([slot.fresh is not None for slot in slots], np.bool_)
        alive = np.array([not slot.lost for slot in slots], np.bool_)
        for slot, rank_at, group_at in zip(slots, rank_ends, group_ends, strict=True):
            slot.rank_at, slot.group_at, slot.fresh = rank_at, group_at, None
        slot_of_row = slot_of_rows([ranks for ranks, _ in news], RANK_DTYPE)
        rank = rows_in(rank_bytes, RANK_DTYPE)["rank"].astype(np.int64)
        link = np.array(numbers, np.int64)[slot_of_row]
        if len(rank):
            self._moved_at[rank[fresh[slot_of_row]]] = now
        self._adopt(rank_bytes, group_bytes, np.where(alive[slot_of_row], link, _NOBODY))
        self._forget_replaced()
        return rejected

    def _placed(self, slot: _Slot) -> tuple[bytes, bytes]:
        return bytes(self._rank_bytes[slot.rank_at]), bytes(self._group_bytes[slot.group_at])

    def _reject_implausible(self, news: list[tuple[bytes, bytes]], numbers: list[int]) -> tuple[int, ...]:
        """Empty the rows of connections that cannot be true. All are checked at once, each only if need be."""
        if plausible(news, self.world_size):
            return ()
        rejected, kept = [], 0
        for place, number in enumerate(numbers):
            kept += len(news[place][1]) // GROUP_DTYPE.itemsize
            if kept > limits.GROUP_ROWS_MAX or not plausible([news[place]], self.world_size):
                kept -= len(news[place][1]) // GROUP_DTYPE.itemsize
                news[place] = (b"", b"")
                rejected.append(number)
        return tuple(rejected)

    def _leave_out_foreign(self, news: list[tuple[bytes, bytes]], numbers: list[int]) -> None:
        """Empty the rows of living connections that tell of ranks which are not theirs."""
        parts = [ranks for ranks, _ in news]
        rank, place = rows_in(b"".join(parts), RANK_DTYPE)["rank"].astype(np.int64), slot_of_rows(parts, RANK_DTYPE)
        foreign = self._owner[rank] != np.array(numbers, np.int64)[place]
        for at in np.unique(place[foreign]).tolist() if foreign.any() else ():
            slot = self._slots[numbers[at]]
            if not slot.lost:  # else what it said last stands until somebody else speaks for all its ranks
                slot.foreign = True
                ranks, groups = self._own_rows(numbers[at], *news[at])
                news[at] = bytes(ranks), bytes(groups)

    def _adopt(self, rank_bytes: bytearray, group_bytes: bytearray, row_link: Numbers) -> None:
        self._rank_bytes, self._group_bytes = rank_bytes, group_bytes
        self._topology = None
        self._comparison.begin_anew()
        self._ranks, self._groups = rows_in(rank_bytes, RANK_DTYPE), rows_in(group_bytes, GROUP_DTYPE)
        self._row_rank = self._ranks["rank"].astype(np.int64)
        self._group_row_rank = self._groups["rank"].astype(np.int64)
        self._everyone = bool(np.bincount(self._row_rank, minlength=self.world_size).all())
        self._newest = turned(self._ranks, SCREENED)
        self._known_rank = self._newest["rank"]
        self._sharing = Sharing(len(self._ranks))
        self._issued, self._completed = self._newest["issued"], self._newest["completed"]
        self._standing_told = np.zeros(0, np.uint64)
        self._reporting = self._owner[self._row_rank] == row_link
        self._all_report = bool(self._reporting.all())
        self._stale = False

    def _forget_replaced(self) -> None:
        """Drop broken connections all of whose ranks another one speaks for by now."""
        for number, slot in list(self._slots.items()):
            if slot.left and not (self._owner == number).any():
                del self._slots[number]
                self._lost.discard(number)
                self._heard.forget(number)
                self.owners.forget(number)
                self._stale = True
