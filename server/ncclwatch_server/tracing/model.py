"""Holds a trace before it is written: slices of time on tracks, all times in seconds of one clock."""

from dataclasses import dataclass

Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Something that took time. A slice of no length is a moment."""

    begin_s: float
    end_s: float
    name: str
    kind: str  # Perfetto's category: "collective", "p2p", "hang", "state", "batch", "phase", "save", "incident"
    facts: Facts = ()
    flow: int = 0  # the same in all members of one collective; 0: it is linked to none


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One row: slices that do not overlap, in order."""

    name: str
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTracks:
    """All that is known of one rank."""

    rank: int
    host: str
    tracks: tuple[Track, ...]
    culprit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How a clock, of a host, a message or a file, differs from the first one."""

    offset_s: float = 0.0  # to add to its times
    error_s: float | None = 0.0  # at most so much more or less; None: nothing bounds it


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A job over time."""

    job: str
    ranks: tuple[RankTracks, ...]
    incidents: tuple[Slice, ...]
    clocks: tuple[tuple[str, Clock], ...]  # by name
    notes: tuple[str, ...]  # what is left out or uncertain
