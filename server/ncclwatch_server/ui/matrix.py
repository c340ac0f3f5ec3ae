"""Keeps what every rank did in the last minutes: one byte for each rank and second, packed.

Neighbours mostly do the same, so that a column of 16,384 ranks takes a hundred bytes in a healthy job.
"""

import struct
import zlib
from collections import deque
from dataclasses import dataclass

from ncclwatch_server.jobs.rank_states import States

COLUMNS_MAX = 600
KEPT_S = 600.0  # also where a job is not painted every second, lest thousands of jobs keep as many columns each
LEVEL = 1  # of compression: what repeats is found at any

HEAD = struct.Struct("<4sIII")  # magic, ranks, columns, number of the first column
TIME = struct.Struct("<d")  # seconds since 1970, one for each column
MAGIC = b"NWMX"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """All ranks at one moment."""

    at: float  # seconds since 1970, for people
    packed: bytes  # one byte for each rank


class Matrix:
    """The newest columns of one job."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.newest = -1  # number of the newest column
        self._columns: deque[Column] = deque(maxlen=COLUMNS_MAX)

    def add(self, states: States, at: float) -> int:
        """Keep a column and return its number. The oldest go when there are too many, or their time is over."""
        while self._columns and self._columns[0].at < at - KEPT_S:
            self._columns.popleft()
        self._columns.append(Column(at=at, packed=zlib.compress(states.tobytes(), LEVEL)))
        self.newest += 1
        return self.newest

    def columns(self) -> tuple[int, tuple[Column, ...]]:
        """Return (number of the first column that is kept, the columns)."""
        return self.newest - len(self._columns) + 1, tuple(self._columns)


def encoded(world_size: int, first: int, columns: tuple[Column, ...]) -> bytes:
    """Return columns for a browser: HEAD, their times, then column by column one byte for each rank."""
    parts = [HEAD.pack(MAGIC, world_size, len(columns), first)]
    parts += [TIME.pack(column.at) for column in columns]
    parts += [zlib.decompress(column.packed) for column in columns]
    return b"".join(parts)
