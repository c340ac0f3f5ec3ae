"""Follows the loops over data that this rank runs: how many batches they have drawn, and how the last one ended.

Batches are counted per place in the user's code, so that the counts of two ranks can be compared.
"""

import threading
import time
import weakref
from collections.abc import Hashable, Iterable
from types import CodeType

from ncclwatch.contract import config
from ncclwatch.contract.ring.layout import LoaderFlag, Word
from ncclwatch.contract.ring.shortening import short_text
from ncclwatch.rank.ring.ringfile import RingFile
from ncclwatch.rank.where.call_sites import Sites

_DEPTH_MAX = 3  # tuples in dicts in lists, looked through for a tensor
_WIDTH_MAX = 8
_NAME_BYTES_MAX = 60
_OTHERS = "other shapes"


class Pass:
    """One pass over a loader, and the place that draws from it: the same one batch after batch."""

    __slots__ = (
        "__weakref__",
        "at",
        "buckets",
        "code",
        "drawn",
        "length",
        "number",
        "row",
        "site",
        "together",
    )

    def __init__(self, row: int, number: int, length: int = 0) -> None:
        self.row = row  # -1: the ring had no room for it
        self.number = number
        self.length = length  # 0: unknown
        self.together: list[Pass] = []  # these, in the order in which they began; () of one alone
        self.drawn = 0
        self.buckets: dict[Hashable, list[int]] = {}  # bucket -> row, batches in this pass
        self.code: CodeType | None = None  # of the frame that drew last
        self.at = -1  # its instruction
        self.site = 0  # what was found for these


class _Driving(threading.local):
    depth = 0


class Loaders:
    """The passes over the loaders of one ring."""

    def __init__(self, ring: RingFile, sites: Sites) -> None:
        self._ring = ring
        self._sites = sites
        self.ended: dict[int, int] = {}  # row -> number of its latest pass that ended by itself
        self.joined = 0  # contexts of torch's Join that are entered
        self._driving = _Driving()
        self._newest = -1
        self._buckets: dict[int, dict[Hashable, int]] = {}  # row of a loader -> bucket -> row
        self._rows: dict[int, tuple[int, int]] = {}  # site -> row, passes
        self._begun_last: dict[int, weakref.ref[Pass]] = {}  # site -> the pass that began there last, while it lives
        # Row of the newest batch's bucket, when it was drawn, and the time that was no work until then.
        self._begun = (-1, 0, 0)

    @property
    def driven(self) -> bool:
        """Whether `even_batches` draws on this thread right now, and counts what comes of it itself."""
        return self._driving.depth > 0

    def drive(self, by: int) -> None:
        """Enter (1) or leave (-1) a draw of `even_batches`."""
        self._driving.depth += by

    def begin(self, loader: object, depth: int, *, even: bool = False) -> Pass:
        """Record that a pass over a loader begins, at the user's line at least `depth` frames out.

        `even`: something sees to it that ranks with unequal numbers of batches do not wait for each other.
        """
        ring = self._ring
        site = self._sites.line_here(depth + 1)
        row, passes = self._rows.get(site) or (ring.add_loader(site), 0)
        this = self._together(site, row, passes, length_of(loader)) or Pass(row, passes + 1, length_of(loader))
        self._rows[site] = (row, this.number)
        self._begun_last[site] = weakref.ref(this)
        if row >= 0:
            ring.set_loader_counts(row, 0, self.ended.get(row, 0))
            ring.set_loader_flags(row, LoaderFlag.EVEN if even or self.joined else 0)
            ring.set_loader(row, site, this.number, this.length)
            self._note_newest(row)
        return this

    def _together(self, site: int, row: int, passes: int, length: int) -> Pass | None:
        """Return the pass of a loader that a loop draws from together with the one before it, as zip() does.

        That one began at the same line, is not over, and has not given a batch yet. The shortest ends the loop.
        """
        known = self._begun_last.get(site)
        before = known() if known is not None else None
        if before is None or before.drawn or self.ended.get(row) == passes:
            return None
        this = Pass(row, passes, min(before.length, length))
        this.together = before.together = before.together or [before]
        this.together.append(this)
        return this

    def check_together(self, this: Pass) -> None:
        """Take passes apart that began together and are not drawn from in turn, after a batch of one of them.

        They are no zip(), but iterators that one line has made, say one for training and one for validation. The row is
        of the one that has come so far, with a number of its own; of the others nothing is told.
        """
        drawn = [each.drawn for each in this.together]
        if max(drawn) - min(drawn) <= 1:
            return
        row, first, count = this.row, this.number, len(this.together)
        place = this.together.index(this)
        for each in tuple(this.together):
            each.row, each.together, each.length = -1, [], 0
        this.row, this.number = row, first + place
        site = next((site for site, (known, _) in self._rows.items() if known == row), 0)
        self._rows[site] = (row, first + count - 1)
        self.ended.pop(row, None)
        if row >= 0:
            self._ring.set_loader_flags(row, LoaderFlag.EVEN if self.joined else 0)
            self._ring.set_loader_last(row, 0)
            self._ring.set_loader_counts(row, this.drawn, 0)
            self._ring.set_loader(row, site, this.number, 0)

    def count(self, loader: int, drawn: int) -> None:
        """Record that a pass gave a batch."""
        self._ring.set_loader_drawn(loader, drawn)
        if loader != self._newest:
            self._note_newest(loader)

    def _note_newest(self, loader: int) -> None:
        self._newest = loader
        self._ring.set_word(Word.LOADER, loader + 1)

    def count_bucket(self, this: Pass, bucket: Hashable) -> None:
        """Record of which data bucket the newest batch of a pass is; None: of none."""
        self._count_cost()
        if bucket is None or this.row < 0:
            return
        counted = this.buckets.get(bucket)
        if counted is None:
            counted = self._counted(this, bucket)
        counted[1] += 1
        if counted[0] >= 0:
            self._ring.set_bucket_drawn(counted[0], counted[1])
            self._begun = counted[0], *self._begun[1:]

    def _count_cost(self) -> None:
        """Add what the rank has worked since the batch before to that one's bucket."""
        row, began_ns, kept_ns = self._begun
        now_ns, now_kept_ns = time.monotonic_ns(), self._ring.kept_ns()
        if row >= 0:
            self._ring.add_bucket_cost(row, max(0, now_ns - began_ns - (now_kept_ns - kept_ns)))
        self._begun = -1, now_ns, now_kept_ns

    def _counted(self, this: Pass, bucket: Hashable) -> list[int]:
        """Return [row, batches so far] of a bucket that is new in a pass, or of all those that found no room."""
        known = self._buckets.setdefault(this.row, {})
        if bucket not in known and len(known) >= config.BUCKETS_PER_LOADER_MAX:
            bucket = _OTHERS
        if bucket not in known:
            known[bucket] = self._ring.add_bucket(this.row, bucket_words(bucket))
        row = known[bucket]
        if bucket not in this.buckets and row >= 0:
            self._ring.begin_bucket(row, this.number)
        return this.buckets.setdefault(bucket, [row, 0])

    def end(self, this: Pass) -> None:
        """Record that a pass ended by itself."""
        self._begun = (-1, 0, 0)  # what comes now, a validation say, is no work on its last batch
        if this.row < 0:
            return
        self.ended[this.row] = this.number
        self._ring.set_loader_last(this.row, this.drawn)
        self._ring.set_loader_counts(this.row, this.drawn, this.number)


def length_of(loader: object) -> int:
    """Return how many batches a loader says that it has, 0 where it does not say."""
    try:
        return max(0, len(loader))  # type: ignore[arg-type]  # what has no length raises
    except (TypeError, NotImplementedError, AttributeError):
        return 0


def bucket_of(batch: object) -> Hashable:
    """Return the data bucket of a batch: the shape of its first tensor (or array), None if there is none near."""
    shape: Hashable = getattr(batch, "shape", None)
    if shape is not None:
        return shape
    return _bucket_in(batch, _DEPTH_MAX)


def _bucket_in(batch: object, depth: int) -> Hashable:
    if isinstance(batch, dict):
        items: Iterable[object] = batch.values()
    elif isinstance(batch, tuple | list):
        items = batch
    else:
        return None
    left = _WIDTH_MAX
    for item in items:
        shape: Hashable = getattr(item, "shape", None)
        if shape is None and depth > 1:
            shape = _bucket_in(item, depth - 1)
        left -= 1
        if shape is not None or not left:
            return shape
    return None


def bucket_words(bucket: Hashable) -> str:
    """Return a bucket's name: 8x3x32x64 for a shape."""
    if isinstance(bucket, tuple) and all(isinstance(side, int) for side in bucket):
        return "x".join(map(str, bucket)) or "scalar"
    return short_text(str(bucket), _NAME_BYTES_MAX)
