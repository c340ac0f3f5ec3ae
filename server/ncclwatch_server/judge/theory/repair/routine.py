"""Compares what a rank did with its own past: the second of two references for what it should have done.

The context of a call are the two calls before it. Where a context is known, and was always followed by other calls, a
call breaks the routine. Where the two are unknown together, the one before alone counts. A call that the rank has never
made before breaks nothing: each new phase of a program begins with one.
"""

from collections.abc import Sequence

CONTEXT = 2  # calls


class Routine:
    """What a rank did up to some place of its tape: which call followed which, and how often."""

    def __init__(self, past: Sequence[int]) -> None:
        self.made = set(past)
        self.after: dict[tuple[int, ...], dict[int, int]] = {}
        for at in range(1, len(past)):
            for length in range(1, CONTEXT + 1):
                if at >= length:
                    followed = self.after.setdefault(tuple(past[at - length : at]), {})
                    followed[past[at]] = followed.get(past[at], 0) + 1

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
        found = []
        for at in range(max(since, 1), len(calls) if to is None else min(to, len(calls))):
            usual = self.usual(calls[max(at - CONTEXT, 0) : at])
            if usual and calls[at] not in usual and calls[at] in self.made:
                found.append(at)
        return found

    def held(self, before: Sequence[int]) -> int:
        """Return how often the last calls of `before` were made in the past."""
        return sum(self.usual(before).values())

    def is_new(self, calls: Sequence[int], since: int, to: int) -> bool:
        """Say whether calls[since:to] hold anything that is new to this rank, and may all the same be right."""
        for at in range(max(since, CONTEXT), min(to, len(calls))):
            if calls[at] not in self.after.get(tuple(calls[at - CONTEXT : at]), ()):
                return True
        return since < CONTEXT
