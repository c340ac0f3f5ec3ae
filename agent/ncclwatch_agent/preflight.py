"""What do the ranks of this node say of how they were set up? Read when it has changed, told once for ranks alike."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from ncclwatch.contract import config, preflight, wire
from ncclwatch.contract.preflight import RankFacts

Stamp = tuple[int, int, int]  # inode, size and time of change of a file; (0, 0, 0): there is none


class FactsFile:
    """The file beside one ring."""

    def __init__(self, ring: str) -> None:
        self._path = ring + config.FACTS_SUFFIX
        self._stamp: Stamp = (0, 0, 0)
        self.facts: RankFacts | None = None  # None: the rank has said nothing yet

    def look(self) -> bool:
        """Read the file if it is another one than before. Returns whether it says something else."""
        stamp = _stamp(self._path)
        if stamp == self._stamp or stamp == (0, 0, 0):
            return False
        self._stamp, before = stamp, self.facts
        self.facts = preflight.parse(_read(self._path))
        return self.facts != before

    def parameters(self, kind: str, members: str) -> tuple[str, ...]:
        """Return what was wrapped in one way for some ranks, by name and shape. Read anew: few ever ask."""
        return preflight.parse_parameters(_read(self._path), (kind, members))


def grouped(ranks: Iterable[tuple[int, RankFacts | None]]) -> tuple[wire.Alike, ...]:
    """Return the ranks that have said how they were set up, those that are alike together."""
    alike: dict[RankFacts, list[int]] = {}
    for rank, facts in ranks:
        if facts is not None:
            alike.setdefault(facts, []).append(rank)
    return tuple(wire.Alike(ranks=tuple(found), facts=facts) for facts, found in alike.items())


def forget(ring: str) -> None:
    """Remove the file of a ring that goes."""
    for suffix in (config.FACTS_SUFFIX, f"{config.FACTS_SUFFIX}.new"):
        with contextlib.suppress(OSError):
            Path(ring + suffix).unlink()


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - each second and rank, as in rings.is_whole
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _read(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, config.FACTS_BYTES_MAX).decode("utf-8", "replace")
    except OSError:  # anything may lie there: a directory, a pipe
        return ""
    finally:
        os.close(fd)
