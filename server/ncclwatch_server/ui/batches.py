"""Tables how many batches each rank has drawn, of which bucket. Ranks with equal counts are one row."""

from collections.abc import Iterable
from dataclasses import dataclass

from ncclwatch.contract.wire import Loop

LOOPS_MAX = 8
ROWS_MAX = 16  # of one loop
BUCKETS_MAX = 12  # columns


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """Ranks that have drawn the same."""

    ranks: tuple[int, ...]
    drawn: int
    length: int  # that the loader says it has; 0: it does not say
    ended: bool
    buckets: tuple[int, ...]  # of each bucket of the loop, in its order


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTable:
    """One pass of one loop over data."""

    loader: str  # "file:line"
    number: int  # of the pass
    ranks: int
    even: bool
    buckets: tuple[str, ...]
    more_buckets: int
    rows: tuple[BatchRow, ...]  # the fewest batches first
    more_rows: int


def loop_tables(loops: Iterable[Loop]) -> tuple[LoopTable, ...]:
    """Return the newest passes, those of most ranks first."""
    together: dict[tuple[str, int], list[Loop]] = {}
    for loop in loops:
        together.setdefault((loop.loader, loop.number), []).append(loop)
    ordered = sorted(together.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(_table(loader, number, members) for (loader, number), members in ordered[:LOOPS_MAX])


def _table(loader: str, number: int, loops: list[Loop]) -> LoopTable:
    totals: dict[str, int] = {}
    for loop in loops:
        for bucket, count in loop.buckets:
            totals[bucket] = totals.get(bucket, 0) + count
    buckets = tuple(sorted(totals, key=lambda bucket: (-totals[bucket], bucket)))
    shown = buckets[:BUCKETS_MAX]
    alike: dict[tuple[int, int, bool, tuple[int, ...]], list[int]] = {}
    for loop in loops:
        counts = dict(loop.buckets)
        key = (loop.drawn, loop.length, loop.ended, tuple(counts.get(bucket, 0) for bucket in shown))
        alike.setdefault(key, []).append(loop.rank)
    rows = [
        BatchRow(ranks=tuple(sorted(ranks)), drawn=drawn, length=length, ended=ended, buckets=counts)
        for (drawn, length, ended, counts), ranks in sorted(alike.items())
    ]
    return LoopTable(
        loader=loader,
        number=number,
        ranks=len(loops),
        even=any(loop.even for loop in loops),
        buckets=shown,
        more_buckets=len(buckets) - len(shown),
        rows=tuple(rows[:ROWS_MAX]),
        more_rows=max(0, len(rows) - ROWS_MAX),
    )
