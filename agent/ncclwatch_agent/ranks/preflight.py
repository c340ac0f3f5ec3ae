"""Reads what the ranks of this node say of how they were set up when it has changed; tells it once for ranks alike."""

import os
from collections.abc import Iterable

from ncclwatch.contract import config, wire
from ncclwatch.contract.machine.private_dirs import PrivateDir
from ncclwatch.contract.model import preflight
from ncclwatch.contract.model.preflight import RankFacts

Stamp = tuple[int, int, int]  # inode, size and time of change of a file; (0, 0, 0): there is none


class FactsFile:
    """The file beside one ring."""

    def __init__(self, place: PrivateDir, ring: str) -> None:
        self._place = place
        self._name = ring + config.FACTS_SUFFIX
        self._stamp: Stamp = (0, 0, 0)
        self.facts: RankFacts | None = None  # None: the rank has said nothing yet

    def look(self) -> bool:
        """Read the file if it is another one than before. Returns whether it says something else."""
        stamp = _stamp(self._place.stat(self._name))
        if stamp == self._stamp or stamp == (0, 0, 0):
            return False
        self._stamp, before = stamp, self.facts
        self.facts = preflight.parse(self._read())
        return self.facts != before

    def parameters(self, kind: str, members: str) -> tuple[str, ...]:
        """Return what was wrapped in one way for some ranks, by name and shape. Read anew: few ever ask."""
        return preflight.parse_parameters(self._read(), (kind, members))

    def _read(self) -> str:
        return self._place.read(self._name, config.FACTS_BYTES_MAX).decode("utf-8", "replace")


def grouped(ranks: Iterable[tuple[int, RankFacts | None]]) -> tuple[wire.Alike, ...]:
    """Return the ranks that have said how they were set up, those that are alike together."""
    alike: dict[RankFacts, list[int]] = {}
    for rank, facts in ranks:
        if facts is not None:
            alike.setdefault(facts, []).append(rank)
    return tuple(wire.Alike(ranks=tuple(found), facts=facts) for facts, found in alike.items())


def forget(place: PrivateDir, ring: str) -> None:
    """Remove the file of a ring that goes."""
    for suffix in (config.FACTS_SUFFIX, f"{config.FACTS_SUFFIX}.new"):
        place.unlink(ring + suffix)


def _stamp(found: os.stat_result | None) -> Stamp:
    return (found.st_ino, found.st_size, found.st_mtime_ns) if found is not None else (0, 0, 0)
