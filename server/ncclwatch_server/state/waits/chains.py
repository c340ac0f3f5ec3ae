"""Follows the waits of a big job to where they lead, and so finds the ranks that are worth a look.

The digests say of every rank in which group or for which rank it waits, and how far it has come in each group. From
a waiting rank one step leads to a member that keeps it waiting: the one that has come least far. Following such
steps ends at ranks that wait for nobody, or in a circle. All ranks are followed at once by doubling the steps
(pointer jumping; Wyllie, 1979), so that 100,000 of them cost a few passes over an array.

This decides nothing: it says whose full views the judge should see, so that a few hundred show what all would.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ncclwatch.contract.digests import PROCESS_STATES, WAIT_KINDS
from ncclwatch.contract.model.rank import ProcessState, WaitKind
from ncclwatch_server.state.group_index import Topology

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

CLASS_MAX = 16  # members of one group that are at the same place with the same history, before the largest class
NEAR_MAX = 32  # ranks at the end of the waits whose groups are looked at

_CODE = {kind: code for code, kind in enumerate(WAIT_KINDS)}
_TOGETHER = (WaitKind.INIT, WaitKind.NEW_GROUP)
_P2P = (WaitKind.SEND, WaitKind.RECV)
P2P_CODES = tuple(_CODE[kind] for kind in _P2P)
FROZEN_CODES = tuple(PROCESS_STATES.index(state) for state in (ProcessState.STOPPED, ProcessState.TRACED))

# How a member of a group stands to it. Of two that have come equally far, the first of these keeps the others waiting.
_FREE, _ELSEWHERE, _HERE = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """What each rank waits in. All by rank, so of the length of the world."""

    waiting: Flags  # in a wait that only peers can end, for some time, and still
    group: Numbers  # number of the group it waits in; -1: in none
    peer: Numbers  # the rank it waits for in send or recv; -1: anyone, or no such wait
    kind: Numbers  # index into WAIT_KINDS; -1: none
    present: Flags  # ranks that exist


@dataclass(frozen=True, slots=True, kw_only=True)
class Memberships:
    """One entry for each group of each rank."""

    rank: Numbers
    topology: Topology
    enqueued: NDArray[np.uint64]
    prefix_hash: NDArray[np.uint64]

    @property
    def group(self) -> Numbers:
        """The number of each entry's group."""
        return self.topology.number


@dataclass(frozen=True, slots=True, kw_only=True)
class Leads:
    """One step from each rank towards who keeps it waiting, and where such steps end. An end leads to itself."""

    step: Numbers
    end: Numbers

    def ends(self) -> Numbers:
        """Return the ranks in which the steps end. Of a circle that is every rank: each ends at another one of it."""
        return np.unique(self.end)

    def led_to(self, waits: Waits, ranks: Iterable[int]) -> Flags:
        """Return the waiting ranks whose steps end where those of some ranks do, in them or in a circle with them."""
        ends = set(self.end[list(ranks)].tolist())
        for rank in tuple(ends):
            after = int(self.step[rank])
            while after not in ends:
                ends.add(after)
                after = int(self.step[after])
        found = np.isin(self.end, list(ends))
        # Where all are inside of one collective, each is an end, and one of them holds up all.
        stands = waits.waiting & (waits.group >= 0) & (self.step == np.arange(len(self.step)))
        groups = [waits.group[rank] for rank in ends if stands[rank]]
        if groups:
            found |= np.isin(self.end, np.flatnonzero(stands & np.isin(waits.group, groups)))
        return found & waits.waiting


def waits_in(
    rows: NDArray[np.void],
    rank: NDArray[np.int64],
    waiting: Iterable[int],
    topology: Topology,
    seen: NDArray[np.bool_],
) -> Waits:
    """Return what the waiting ranks wait for, by the rows of all, the rank of each row and the groups."""
    waits = np.zeros(len(seen), np.bool_)
    waits[np.fromiter(waiting, np.int64)] = True
    # One that was stopped inside waits for nobody: the others wait for it.
    waits[rank[np.isin(rows["state"], FROZEN_CODES)]] = False
    p2p = np.isin(rows["wait_kind"], P2P_CODES)
    group, peer, kind = (np.full(len(seen), -1, np.int64) for _ in range(3))
    group[rank] = np.where(p2p, -1, topology.number_of(rows["waits_in"]))
    peer[rank] = np.where(p2p, rows["waits_for"], -1)
    kind[rank] = rows["wait_kind"]
    return Waits(waiting=waits, group=group, peer=peer, kind=kind, present=seen.copy())


def follow(waits: Waits, members: Memberships) -> Leads:
    """Return where the waits lead."""
    step = np.arange(len(waits.waiting), dtype=np.int64)
    leader = _leaders(waits, members)
    inside = waits.waiting & (waits.group >= 0)
    to = leader[waits.group[inside]]
    step[inside] = np.where(to >= 0, to, step[inside])
    for kind in _P2P:
        paired = waits.waiting & (waits.kind == _CODE[kind]) & (waits.peer >= 0) & (waits.peer < len(step))
        step[paired] = waits.peer[paired]
    for kind in _TOGETHER:
        together = waits.waiting & (waits.kind == _CODE[kind])
        missing = np.flatnonzero(waits.present & (waits.kind != _CODE[kind]))
        if len(missing):
            step[together] = missing[0]
    end = step
    for _ in range(max(1, len(step).bit_length())):
        end = end[end]
    return Leads(step=step, end=end)


def _leaders(waits: Waits, members: Memberships) -> Numbers:
    """Return for each group the member that keeps the others waiting, -1 where all wait inside."""
    leader = np.full(members.topology.groups, -1, np.int64)
    if not len(members.rank):
        return leader
    fewest = np.full(members.topology.groups, np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(fewest, members.group, members.enqueued)
    behind = np.minimum(members.enqueued - fewest[members.group], 2**40).astype(np.int64)
    order = behind * 4 + _attitudes(waits, members)
    best = np.full(members.topology.groups, np.iinfo(np.int64).max)
    np.minimum.at(best, members.group, order)
    first = np.flatnonzero((order == best[members.group]) & (order != _HERE))[::-1]
    leader[members.group[first]] = members.rank[first]
    return leader


def _attitudes(waits: Waits, members: Memberships, rows: Numbers | slice = slice(None)) -> Numbers:
    """Return how the members of these rows stand to their groups."""
    rank = members.rank[rows]
    waiting = waits.waiting[rank]
    here = waiting & (waits.group[rank] == members.group[rows])
    return np.where(here, _HERE, np.where(waiting, _ELSEWHERE, _FREE)).astype(np.int64)


def worth_a_look(waits: Waits, members: Memberships, leads: Leads, limit: int) -> Numbers:
    """Return at most `limit` ranks: where waits end, who waits there, who does not wait, and a sample."""
    ends = leads.ends()
    weight = np.bincount(leads.end[waits.waiting], minlength=len(waits.waiting))
    ends = ends[np.argsort(-weight[ends], kind="stable")]
    roots = ends[: limit // 4]
    chosen = [roots, _near(waits, members, leads, roots[:NEAR_MAX], limit // 2)]
    idle = np.flatnonzero(waits.present & ~waits.waiting)
    rest = np.flatnonzero(waits.waiting)
    chosen += [_spread(idle, limit // 8), _spread(rest, limit // 8)]
    return _distinct(chosen, limit)


def _near(waits: Waits, members: Memberships, leads: Leads, roots: Numbers, limit: int) -> Numbers:
    """Return members of the groups that roots wait in or are waited for in, and who waits for them in p2p."""
    at_root = np.zeros(len(leads.step), np.bool_)
    at_root[roots] = True
    callers = np.flatnonzero(waits.waiting & at_root[leads.step])
    groups = _distinct([waits.group[roots], waits.group[callers]], NEAR_MAX)
    groups = groups[groups >= 0]
    alone = callers[waits.group[callers] < 0][:CLASS_MAX]
    share = max(4, limit // max(1, len(groups)))
    parts = [alone]
    parts += [_sample(waits, members, members.topology.rows_of(group, group + 1), share) for group in groups.tolist()]
    return _distinct(parts, limit)


def _sample(waits: Waits, members: Memberships, rows: Numbers, limit: int) -> Numbers:
    """Return members of one group so that few who differ are all there, and those who agree are still the majority."""
    keys = np.stack(
        [members.enqueued[rows], members.prefix_hash[rows], _attitudes(waits, members, rows).astype(np.uint64)]
    )
    _, which, sizes = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    which = which.reshape(-1)
    parts, left = [], limit
    for number in np.argsort(sizes, kind="stable").tolist():
        share = min(CLASS_MAX, max(1, left // 2)) if number != int(np.argmax(sizes)) else left
        part = _spread(members.rank[rows[which == number]], share)
        parts.append(part)
        left -= len(part)
    return _distinct(parts, limit)


def _spread(ranks: Numbers, limit: int) -> Numbers:
    """Return at most so many of these ranks, evenly spread."""
    if len(ranks) <= limit:
        return ranks
    return ranks[np.linspace(0, len(ranks) - 1, max(0, limit)).astype(np.int64)]


def _distinct(parts: list[Numbers], limit: int) -> Numbers:
    """Return the ranks of all parts once each, the first ones first, at most so many."""
    every = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    _, first = np.unique(every, return_index=True)
    return every[np.sort(first)][:limit]
