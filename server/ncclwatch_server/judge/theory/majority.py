"""Returns the part of several that more than half of all belong to: the one meaning of a majority in the judge."""

from collections.abc import Collection, Iterable
from typing import TypeVar

Part = TypeVar("Part", bound=Collection[object])


def majority(parts: Iterable[Part]) -> Part | None:
    """Return the part that has more members than all others together, None if no part has."""
    found = tuple(parts)
    largest = max(found, key=len, default=None)
    return largest if largest is not None and len(largest) * 2 > sum(map(len, found)) else None
