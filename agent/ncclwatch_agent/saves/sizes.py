"""Predicts how large a save becomes and whether it fits, by its own tensors or by the last save like it.

Saves of one process are alike that come from one call and whose paths differ in numbers alone (step_100.pt and
step_200.pt).
"""

import re
from collections import OrderedDict

from ncclwatch.contract.ring.rows import SaveRow
from ncclwatch_agent.saves.file_places import FilePlace

KINDS_MAX = 32  # remembered of one process
# Here a file may take less room than it has bytes.
_PACKS = frozenset("zfs btrfs bcachefs squashfs f2fs erofs ntfs ntfs3 fuseblk".split())
# Of the size of a save that is only known from the one before it: states grow and shrink a little.
_DOUBT = 0.05
# A path with the number of a step or an epoch: the next save goes beside it, and not in its place.
_NUMBERED = re.compile(r"(?:step|epoch|iter|iteration|ckpt|checkpoint)s?[-_.=]?\d+(?![^/]*/[^/]*/)", re.IGNORECASE)

Kind = tuple[str, str]


class SaveSizes:
    """Remembers how large the saves of one process became. All times are `time.monotonic_ns()` of this node."""

    def __init__(self) -> None:
        self._sizes: OrderedDict[Kind, int] = OrderedDict()  # bytes of the last one
        self._doubted: set[Kind] = set()  # room was found to be wanting
        self._fits: set[Kind] = set()  # and it went well all the same: somebody makes room in between, and will again

    def ended(self, row: SaveRow, place: FilePlace) -> None:
        """Take in what became of a save that has ended well. `place`: of a look after its end."""
        kind = kind_of(row)
        if place.size_bytes > 0 and place.identity:
            self._sizes[kind] = place.size_bytes
            self._sizes.move_to_end(kind)
        if kind in self._doubted:
            self._fits.add(kind)
        while len(self._sizes) > KINDS_MAX:
            old, _ = self._sizes.popitem(last=False)
            self._doubted.discard(old)
            self._fits.discard(old)

    def total(self, row: SaveRow) -> tuple[int, bool]:
        """Return (bytes that a save has when it is whole, whether that is of the one before); (-1, False): unknown."""
        if row.least_bytes and not row.ended_ns:
            return row.least_bytes, False
        return self._sizes.get(kind_of(row), -1), not row.ended_ns and kind_of(row) in self._sizes

    def lacks(self, row: SaveRow, place: FilePlace | None) -> int:
        """Return how many bytes of room a save lacks or, once it has ended well, one more beside it; 0 if none."""
        kind = kind_of(row)
        if place is None or kind in self._fits or not _can_tell(place) or place.looked_ns < row.began_ns:
            return 0
        total, as_before = self.total(row)
        if total <= 0:
            return 0
        if row.ended_ns:
            beside = not row.error and place.looked_ns >= row.ended_ns and _NUMBERED.search(row.path)
            wanting = total - place.free_bytes if beside else 0
        else:
            wanting = total - place.held_bytes - place.free_bytes - int(total * _DOUBT * as_before)
        if wanting > 0:
            self._doubted.add(kind)
        return max(0, wanting)


def kind_of(row: SaveRow) -> Kind:
    """Return what the saves of one purpose have in common."""
    return row.call, re.sub(r"\d+", "#", row.path)


def _can_tell(place: FilePlace) -> bool:
    return bool(place.identity) and place.free_bytes >= 0 and place.filesystem not in _PACKS
