"""Writes down the members of a group, however many, so that whoever reads them knows whether these are all.

Nearly all groups that programs make are a few arithmetic progressions, and every view of a rank names the members of
all of its groups: they travel as runs, and the default group of 98,304 ranks is three numbers. They stay runs until
somebody judges: a few bytes can stand for a million ranks, so whoever expands them says how many there is room for.

In a ring they stand as what zlib makes of the differences between neighbours, with their number and a digest of the
whole list beside them. A list that found no room, or does not agree with these two, is unknown. It is never short.
"""

import functools
import hashlib
import threading
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, groupby, repeat
from operator import sub
from typing import NamedTuple

from ncclwatch.contract.model.rank import GroupView, RankView

Run = tuple[int, int, int]  # (first rank, step, how many)
Runs = tuple[Run, ...]

SMALL = 32  # members of a group that travel as they are
MEMBERS_MAX = 4_000_000  # that the lists of one ring, or of views that are read together, may have, each counted once
GROUP_MEMBERS_MAX = 1_000_000  # of one group in a ring
REMEMBERED_MAX = 1_000_000  # members of lists that were expanded lately: 8 bytes each, as they share their numbers
_NUMBERS_MAX = 262_144  # numbers of ranks that are shared
_ZLIB_LEVEL = 6
_WORD = 4  # bytes of a rank


class Roster(NamedTuple):
    """The members of a group: `ranks` or, where these are shorter, `runs`; neither where they are not known."""

    size: int = 0  # how many they are; 0: nobody said
    digest: int = 0  # of all of them, in their order; 0: nobody said
    ranks: tuple[int, ...] = ()
    runs: Runs = ()

    @property
    def members(self) -> tuple[int, ...]:
        """All members in their order, () if they are not known."""
        return self.ranks or _ranks_of(self.runs)


def digest_of(ranks: Iterable[int]) -> int:
    """Return 64 bits that stand for a list of ranks and their order, never 0: BLAKE2b over them as int32.

    Raises TypeError or OverflowError on what is no rank.
    """
    return int.from_bytes(hashlib.blake2b(array("i", ranks), digest_size=8).digest(), "little") or 1


@functools.lru_cache(maxsize=64)
def digest_of_all(world_size: int) -> int:
    """Return the digest of ranks 0 to `world_size` - 1, which are the members of the default group."""
    return digest_of(range(world_size))


def pack(ranks: Sequence[int]) -> bytes:
    """Return a list of ranks in the few bytes that a ring keeps: zlib over the steps between them, byte by byte.

    Raises TypeError or OverflowError on what is no rank.
    """
    steps = array("i", chain(ranks[:1], map(sub, ranks[1:], ranks))).tobytes()
    # Alike bytes side by side: the upper ones of nearly all steps are the same.
    return zlib.compress(b"".join(steps[byte::_WORD] for byte in range(_WORD)), _ZLIB_LEVEL)


@functools.lru_cache(maxsize=32)  # the ranks of a node are in groups with the same members
def unpack(data: bytes, size: int, digest: int) -> Roster:
    """Return the members that a ring keeps as `data`: all `size` of them as the digest says, or none."""
    unknown = Roster(size, digest)
    if not 0 < size <= GROUP_MEMBERS_MAX:
        return unknown
    try:
        reader = zlib.decompressobj()
        planes = reader.decompress(data, size * _WORD)
        steps = array("i", bytes(size * _WORD))
        view = memoryview(steps).cast("B")
        for byte in range(_WORD):
            view[byte::_WORD] = planes[byte * size : (byte + 1) * size]
        view.release()
        ranks = array("i", accumulate(steps))
    except (zlib.error, ValueError, OverflowError):
        return unknown
    if digest_of(ranks) != digest or min(ranks) < 0:
        return unknown
    return roster_of(tuple(ranks), digest)


def roster_of(ranks: tuple[int, ...], digest: int = 0) -> Roster:
    """Return members in their shorter form."""
    runs = _shorter(ranks)
    return Roster(len(ranks), digest, runs=runs) if runs else Roster(len(ranks), digest, ranks=ranks)


@functools.lru_cache(maxsize=256)
def _shorter(ranks: tuple[int, ...]) -> Runs:
    """Return ranks as progressions where that is shorter, else ()."""
    runs = runs_of(ranks) if len(ranks) > SMALL else ()
    return runs if 3 * len(runs) < len(ranks) else ()


def runs_of(ranks: tuple[int, ...]) -> Runs:
    """Return ranks, in their order, as arithmetic progressions."""
    return tuple(_runs(ranks))


def _runs(ranks: tuple[int, ...]) -> Iterator[Run]:
    at, skipped = 0, 0  # the step from one run to the next belongs to neither
    for step, alike in groupby(map(sub, ranks[1:], ranks)):
        steps = sum(1 for _ in alike) - skipped
        skipped = 0
        if steps:
            yield ranks[at], step, steps + 1
            at, skipped = at + steps + 1, 1
    if at < len(ranks):
        yield ranks[at], 1, 1


def packed(view: RankView) -> RankView:
    """Return a view as it travels."""
    if all(len(group.ranks) <= SMALL for group in view.groups):
        return view
    return replace(view, groups=tuple(_packed_group(group) for group in view.groups))


def _packed_group(group: GroupView) -> GroupView:
    runs = _shorter(group.ranks)
    return replace(group, ranks=(), runs=runs) if runs else group


def unpacked(views: Iterable[RankView], members_max: int | None = None) -> tuple[RankView, ...]:
    """Return views as they were before they were packed. Lists beyond `members_max` in all stay unknown.

    The members of one group are one tuple in all views, however many of its ranks these are of.
    """
    left = MEMBERS_MAX if members_max is None else members_max
    known: dict[Runs, tuple[int, ...]] = {}
    found = []
    for view in views:
        for group in view.groups:
            if group.runs and group.runs not in known:
                count = _count(group.runs)
                known[group.runs] = _ranks_of(group.runs) if count <= min(left, GROUP_MEMBERS_MAX) else ()
                left -= len(known[group.runs])
        if any(group.runs for group in view.groups):
            view = replace(view, groups=tuple(_unpacked_group(group, known) for group in view.groups))
        found.append(view)
    return tuple(found)


def _unpacked_group(group: GroupView, known: Mapping[Runs, tuple[int, ...]]) -> GroupView:
    if not group.runs:
        return group
    ranks = known[group.runs]
    return replace(group, ranks=ranks, runs=(), size=group.size if ranks else max(group.size, _count(group.runs)))


def runs_outside(view: RankView, world_size: int) -> Runs:
    """Return the runs of a group of a view that a job of so many ranks cannot have, () if it can have all."""
    return next((group.runs for group in view.groups if group.runs and not fit(group.runs, world_size)), ())


def fit(runs: Runs, world_size: int) -> bool:
    """Whether a job of so many ranks can have a group with these members."""
    left = world_size
    for first, step, count in runs:
        left -= count
        last = first + step * (count - 1)
        if count < 1 or left < 0 or not (0 <= first < world_size and 0 <= last < world_size):
            return False
    return True


def known_in(roster: Roster, world_size: int) -> Roster:
    """Return the members of a group as a job of so many ranks can have them: a list that names others is unknown."""
    if fit(roster.runs, world_size) and max(roster.ranks, default=0) < world_size:
        return roster
    return Roster(roster.size, roster.digest)


def _count(runs: Runs) -> int:
    return sum(max(0, count) for _, _, count in runs)


class _Expanded:
    """Lists that were expanded lately: the views of a job name the same ones at each look. Bounded by their members."""

    def __init__(self) -> None:
        self._known: dict[Runs, tuple[int, ...]] = {}  # the one used last is the last
        self._members = 0
        self._numbers: list[int] = []  # of ranks, each once: a list of members is four times as long without them
        self._changing = threading.Lock()

    def get(self, runs: Runs) -> tuple[int, ...]:
        """Return the members that runs stand for."""
        with self._changing:
            ranks = self._known.pop(runs, None)
            if ranks is None:
                ranks = tuple(chain.from_iterable(map(self._progression, runs)))
                self._members += len(ranks)
            self._known[runs] = ranks
            while self._members > REMEMBERED_MAX and len(self._known) > 1:
                self._members -= len(self._known.pop(next(iter(self._known))))
            return ranks

    def _progression(self, run: Run) -> Iterable[int]:
        first, step, count = run
        if step == 0 or count < 1:
            return repeat(first, max(0, count))
        end = first + step * count
        if not (0 <= first < end <= _NUMBERS_MAX):
            return range(first, end, step)
        if end > len(self._numbers):
            self._numbers.extend(range(len(self._numbers), end))
        return self._numbers[first:end:step]


_ranks_of = _Expanded().get
