"""Reads the rows of digests, joins them, and says whether they can be true."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclwatch.contract import digests
from ncclwatch_server import limits

RANK_DTYPE = np.dtype([(name, f"<{kind}") for name, kind in digests.RANK_FIELDS])
GROUP_DTYPE = np.dtype([(name, f"<{kind}") for name, kind in digests.GROUP_FIELDS])

# What every tick looks at. `head` is the rank and the bytes behind it, `ages_s` are both ages, each at once.
_LOOKED_AT = (
    "rank", "state", "ended", "detached", "pulse_age_s", "wait_age_s", "issued", "completed", "saves_to", "device",
    "noted",
)  # fmt: skip
_AT: Mapping[str, Any] = RANK_DTYPE.fields or {}
SCREENED = np.dtype(
    {
        "names": [*_LOOKED_AT, "head", "ages_s"],
        "formats": [*(_AT[name][0] for name in _LOOKED_AT), "<u8", "<u8"],
        "offsets": [*(_AT[name][1] for name in _LOOKED_AT), _AT["rank"][1], _AT["pulse_age_s"][1]],
        "itemsize": RANK_DTYPE.itemsize,
    }
)
# The bits of `head` that tell which rank it is, whether it has ended and whether it has detached.
STANDING = np.uint64(0xFF00FF00FFFFFFFF)

Rows = NDArray[np.void]
Numbers = NDArray[np.int64]


def join(parts: list[bytes]) -> tuple[list[slice], bytearray]:
    """Return all parts in one buffer, and where each lies."""
    ends = list(itertools.accumulate((len(part) for part in parts), initial=0))
    return [slice(*pair) for pair in itertools.pairwise(ends)], bytearray(b"".join(parts))


def slot_of_rows(parts: list[bytes], dtype: "np.dtype[np.void]") -> Numbers:
    """Return for each row of all parts the number of its part."""
    return np.repeat(np.arange(len(parts)), [len(part) // dtype.itemsize for part in parts])


def rows_in(data: bytes | bytearray | memoryview, dtype: "np.dtype[np.void]") -> Rows:
    """Return the rows that a buffer holds, without a copy."""
    # numpy refuses to look at an empty buffer.
    return np.frombuffer(data, dtype) if data else np.zeros(0, dtype)


def plausible(news: list[tuple[bytes, bytes]], world_size: int) -> bool:
    """Whether each connection names ranks of a job once, and a bounded number of groups of these."""
    rank_parts, group_parts = [ranks for ranks, _ in news], [groups for _, groups in news]
    rank = rows_in(b"".join(rank_parts), RANK_DTYPE)["rank"].astype(np.int64)
    member = rows_in(b"".join(group_parts), GROUP_DTYPE)["rank"].astype(np.int64)
    everyone = np.concatenate([rank, member])
    if len(everyone) and (everyone.min() < 0 or everyone.max() >= world_size):
        return False
    known = np.sort(slot_of_rows(rank_parts, RANK_DTYPE) * world_size + rank)
    if (known[1:] == known[:-1]).any() or len(member) > limits.GROUP_ROWS_MAX:
        return False
    if not len(member):
        return True
    wanted = slot_of_rows(group_parts, GROUP_DTYPE) * world_size + member
    place = np.searchsorted(known, wanted)
    if not len(known) or place.max() >= len(known) or (known[place] != wanted).any():
        return False
    return int(np.bincount(place).max()) <= limits.GROUPS_PER_RANK_MAX
