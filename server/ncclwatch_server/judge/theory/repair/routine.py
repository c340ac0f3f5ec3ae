"""Compares what a rank did with its own past: the second of two references for what it should have done.

The context of a call are the two calls before it. Where a context came often enough, and was always followed by other
calls, a call breaks the routine. Where the two are unknown together, the one before alone counts. A call that the rank
has made at most once before breaks nothing: the first pass through a loop, and each new phase of a program, look like
that. Nor does one that is repeated: it is a new routine.
"""

from collections import Counter
from collections.abc import Collection, Sequence

CONTEXT = 2  # calls
OFTEN_MIN = 2  # times that a context, and the call that does not fit, must have come before


class Routine:
    """What a rank did up to some place of its tape: which call followed which, and how often."""

    def __init__(self, past: Sequence[int]) -> None:
        self.visits: Counter[int] = Counter()  # how often a call came that was not among the last ones
        self.after: dict[tuple[int, ...], dict[int, int]] = {}
        self._newest: dict[int, int] = {}
        self._known = 0  # calls
        self.learn(past, len(past))

    def learn(self, calls: Sequence[int], to: int) -> None:
        """Add the calls of a tape up to an index, after those that are known already."""
        after, newest = self.after, self._newest
        for at in range(self._known, to):
            call = calls[at]
            self.visits[call] += at - newest.get(call, -CONTEXT - 1) > CONTEXT
            newest[call] = at
            for length in range(1, min(CONTEXT, at) + 1):
                context = tuple(calls[at - length : at])
                followed = after.get(context)
                if followed is None:
                    followed = after[context] = {}
                followed[call] = followed.get(call, 0) + 1
        self._known = max(self._known, to)

    @property
    def made(self) -> Collection[int]:
        """Return the calls that were made."""
        return self._newest.keys()

    def usual(self, before: Sequence[int]) -> dict[int, int]:
        """Return what followed the last calls of `before`, and how often; {}: nobody knows."""
        for length in range(CONTEXT, 0, -1):
            if len(before) >= length:
                found = self.after.get(tuple(before[-length:]))
                if found:
                    return found
        return {}

    def breaks(self, calls: Sequence[int], since: int, to: int | None = None) -> list[int]:
        """Return the indices in calls[since:to] at which the routine is broken."""
        found: list[int] = []
        seen: set[tuple[int, ...]] = set()
        for at in range(max(since, 1), len(calls) if to is None else min(to, len(calls))):
            before = calls[max(at - CONTEXT, 0) : at]
            way = (*before, calls[at])
            known = way not in seen and self.visits[calls[at]] >= OFTEN_MIN and self.held(before) >= OFTEN_MIN
            if known and calls[at] not in self.usual(before):
                found.append(at)
            seen.add(way)
        return found

    def held(self, before: Sequence[int]) -> int:
        """Return how often the last calls of `before` were made in the past, but for those inside of a run of one call.

        How long a run is may change; what comes before and after it tells more.
        """
        usual = self.usual(before)
        run = before[-1] if len(before) == CONTEXT and before[-1] == before[-2] else -1
        return sum(count for call, count in usual.items() if call != run)

    def is_new(self, calls: Sequence[int], since: int, to: int) -> bool:
        """Say whether calls[since:to] hold anything that is new to this rank, and may all the same be right."""
        for at in range(max(since, CONTEXT), min(to, len(calls))):
            if calls[at] not in self.after.get(tuple(calls[at - CONTEXT : at]), ()):
                return True
        return since < CONTEXT
