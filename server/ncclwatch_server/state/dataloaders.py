"""Finds ranks that have unequal numbers of batches in a loop that they are in together.

What is known of a rank's number: what its loader says before the first batch, or what it has drawn when it is out of
data. This decides nothing: it says whose full views the judge should see.
"""

from collections.abc import Iterable

from ncclwatch.contract.wire import Loop

RANKS_MAX = 4  # looked at of those with the fewest batches, and as many of those with the most


class Loops:
    """The newest loop of each rank of one job."""

    def __init__(self) -> None:
        self._loops: dict[int, Loop] = {}
        self._changed = False
        self._uneven: tuple[int, ...] = ()

    def receive_loops(self, news: Iterable[Loop]) -> bool:
        """Keep what an agent said. Returns whether a loop has begun or ended."""
        changed = False
        for loop in news:
            known = self._loops.get(loop.rank)
            changed = changed or known is None or _state(known) != _state(loop)
            self._loops[loop.rank] = loop
        self._changed = self._changed or changed or bool(self._uneven)
        return changed

    def all(self) -> tuple[Loop, ...]:
        """Return the newest loop of each rank that told of one."""
        return tuple(self._loops.values())

    def of(self, rank: int) -> Loop | None:
        """Return the newest loop of a rank."""
        return self._loops.get(rank)

    def uneven(self) -> tuple[int, ...]:
        """Return some ranks with the fewest and with the most batches of one loop, () if all have equally many."""
        if self._changed:
            self._changed = False
            self._uneven = self._look()
        return self._uneven

    def _look(self) -> tuple[int, ...]:
        together: dict[tuple[str, int], list[Loop]] = {}
        for loop in self._loops.values():
            if not loop.even:
                together.setdefault((loop.loader, loop.number), []).append(loop)
        for loops in together.values():
            if all(loop.ended for loop in loops):
                continue
            # A loader that had another number of batches than it said: lengths say nothing here.
            lengths_hold = all(loop.drawn == loop.length for loop in loops if loop.ended)
            totals = {loop.rank: loop.drawn if loop.ended else loop.length * lengths_hold for loop in loops}
            least = min((total for total in totals.values() if total), default=0)
            few = [rank for rank, total in totals.items() if total == least > 0]
            more = [each.rank for each in loops if not each.ended and max(each.drawn, totals[each.rank]) > least > 0]
            if few and more:
                return tuple(sorted({*sorted(few)[:RANKS_MAX], *sorted(more)[:RANKS_MAX]}))
        return ()


def _state(loop: Loop) -> tuple[str, int, int, bool]:
    return loop.loader, loop.number, loop.length, loop.ended
