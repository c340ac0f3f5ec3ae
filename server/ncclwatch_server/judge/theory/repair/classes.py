"""Finds ranks that all do the same in a replay, so that one of them can be replayed for all.

Ranks are of one class if they make the same calls from a cut on, each in its own groups, and the members of those
groups are of the same classes in turn. Classes are split until that holds (colour refinement). A rank that is to be
edited is a class of its own, so those around it fall into few classes: its row, its column, all others.
"""

from collections.abc import Collection, Hashable, Mapping
from typing import NamedTuple, TypeVar

from ncclwatch.contract.model.rank import Op
from ncclwatch_server.judge.theory.repair.peers import Peers

_Key = TypeVar("_Key", int, str)
_TREES = (Op.BROADCAST, Op.GATHER, Op.SCATTER, Op.REDUCE)


class Classes(NamedTuple):
    """Classes of ranks, and groups that stand for groups of the same classes."""

    class_of: Mapping[int, int]  # rank -> 0..n-1
    kin: Mapping[str, str]


def classes(peers: Peers, cut: Mapping[int, int], alone: Collection[int] = ()) -> Classes | None:
    """Return classes in which some ranks are alone; None: two calls of a rank would mean the same for its class."""
    refining = _Refining(peers, cut, alone)
    count = 0
    while len(set(refining.colours.values())) > count:
        count = len(set(refining.colours.values()))
        refining.split()
    return refining.found()


class _Refining:
    def __init__(self, peers: Peers, cut: Mapping[int, int], alone: Collection[int]) -> None:
        self.roles = peers.roles
        tapes = self.roles.tapes
        self.groups = tapes.groups
        self.used: dict[int, tuple[str, ...]] = {}  # groups by rank, in the order of their first use
        self.met: dict[int, tuple[int, ...]] = {}  # other sides of messages by rank
        seeds: dict[int, Hashable] = {}
        for rank, tape in tapes.by_rank.items():
            calls = dict.fromkeys(tape.calls[cut[rank] :])
            made = [self.roles.calls[number] for number in calls]
            self.used[rank] = tuple(dict.fromkeys(call.group for call in made))
            self.met[rank] = tuple(dict.fromkeys(call.peer for call in made if call.op.is_p2p))
            places = tuple(
                self.groups[call.group].index(rank)
                for call in made
                if call.op in _TREES and rank in self.groups.get(call.group, ())
            )
            seeds[rank] = peers.class_of[rank], cut[rank], tape.stop, places, rank if rank in alone else -1
        self.colours = _numbered(seeds)
        self.group_colours: dict[str, int] = {}
        self.colour_groups()

    def colour_groups(self) -> None:
        """Give groups with members of the same colours the same colour."""
        slots = {
            (rank, group): slot for rank, groups in self.used.items() for slot, group in enumerate(groups)
        }  # fmt: skip
        self.group_colours = _numbered({
            group: tuple(sorted((self.colours.get(rank, -1), slots.get((rank, group), -1)) for rank in members))
            for group, members in self.groups.items()
        })  # fmt: skip

    def split(self) -> None:
        """Split ranks whose groups, or whose other sides, are of different colours."""
        self.colours = _numbered({
            rank: (
                colour,
                tuple(self.group_colours.get(group, -1) for group in self.used[rank]),
                tuple(self.colours.get(peer, -1) for peer in self.met[rank]),
            )
            for rank, colour in self.colours.items()
        })  # fmt: skip
        self.colour_groups()

    def found(self) -> Classes | None:
        """Return the classes."""
        first: dict[int, str] = {}
        kin = {group: first.setdefault(colour, group) for group, colour in self.group_colours.items()}
        for rank in self.colours:
            own = [kin.get(group, group) for group in self.used[rank]]
            sides = [self.colours.get(peer, -1) for peer in self.met[rank]]
            if len(set(own)) < len(own) or len(set(sides)) < len(sides):
                return None
        return Classes(self.colours, kin)


def _numbered(values: Mapping[_Key, Hashable]) -> dict[_Key, int]:
    """Return a number for each value, equal ones for equal values."""
    numbers: dict[Hashable, int] = {}
    return {key: numbers.setdefault(value, len(numbers)) for key, value in values.items()}
