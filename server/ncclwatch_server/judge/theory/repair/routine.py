"""Compares what a rank did with its own past: the second of two references for what it should have done.

The context of a call are the two calls before it. Where a context came often enough, and was always followed by other
calls, a call breaks the routine. Where the two are unknown together, the one before alone counts. A call that the rank
has made at most once before breaks nothing: the first pass through a loop, and each new phase of a program, look like
that. Nor does one that is repeated: it is a new routine. Other arguments at a line that always had the same ones break
the routine, whatever came before.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence

CONTEXT = 2  # calls
BEATS_MIN = 5  # times that a call must have come after as many others as before
SAME_MIN = 3  # times that a line must have had the same arguments
OFTEN_MIN = 2  # times that a context, and the call that does not fit, must have come before


class Routine:
    """What a rank did up to some place of its tape: which call followed which, and how often."""

    def __init__(self, past: Sequence[int], line_of: Callable[[int], int] | None = None) -> None:
        """Learn some calls. `line_of` returns the number of the line of a call, -1 where it is not known."""
        self._line_of = line_of
        self._always: dict[int, tuple[int, int]] = {}  # by line: its only call so far (-1: several), how often
        self.visits: Counter[int] = Counter()  # how often a call came that was not among the last ones
        self.after: dict[tuple[int, ...], dict[int, int]] = {}
        self._newest: dict[int, int] = {}
        self._gaps: dict[
            int, tuple[int, int]
        ] = {}  # between two of a call: how many calls, how often; (-1, ...): varies
        self._past: Sequence[int] = ()
        self._known = 0  # calls
        self.learn(past, len(past))

    def learn(self, calls: Sequence[int], to: int) -> None:
        """Add the calls of a tape up to an index, after those that are known already."""
        after, newest = self.after, self._newest
        self._past = calls
        for at in range(self._known, to):
            call = calls[at]
            self.visits[call] += at - newest.get(call, -2) > 1
            if call in newest:
                gap, times = self._gaps.get(call, (at - newest[call], 0))
                self._gaps[call] = (gap if gap == at - newest[call] else -1, times + 1)
            newest[call] = at
            self._note_line(call)
            for length in range(1, min(CONTEXT, at) + 1):
                context = tuple(calls[at - length : at])
                followed = after.get(context)
                if followed is None:
                    followed = after[context] = {}
                followed[call] = followed.get(call, 0) + 1
        self._known = max(self._known, to)

    def _note_line(self, call: int) -> None:
        line = self._line_of(call) if self._line_of is not None else -1
        if line >= 0:
            always, times = self._always.get(line, (call, 0))
            self._always[line] = (always if always == call else -1, times + 1)

    def _has_other_arguments(self, call: int) -> bool:
        line = self._line_of(call) if self._line_of is not None else -1
        always, times = self._always.get(line, (-1, 0))
        return times >= SAME_MIN and always not in (-1, call)

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

    def always(self, before: Sequence[int]) -> int:
        """Return the only call that followed the last calls of `before`, if it did so often enough; -1: none."""
        usual = self.usual(before)
        if len(usual) != 1:
            return -1
        ((call, times),) = usual.items()
        return call if times >= SAME_MIN else -1

    def breaks(self, calls: Sequence[int], since: int, to: int | None = None) -> list[int]:
        """Return the indices in calls[since:to] at which the routine is broken."""
        found: list[int] = []
        seen: set[tuple[int, ...]] = set()
        for at in range(max(since, 1), len(calls) if to is None else min(to, len(calls))):
            before = calls[max(at - CONTEXT, 0) : at]
            way = (*before, calls[at])
            known = way not in seen and self.visits[calls[at]] >= OFTEN_MIN and self.held(before) >= OFTEN_MIN
            if (known and calls[at] not in self.usual(before)) or self._has_other_arguments(calls[at]):
                found.append(at)
            seen.add(way)
        return found

    def off_beat(self, calls: Sequence[int], since: int, to: int) -> int:
        """Return how many calls come earlier or later in calls[since:to] than always before, or should have come.

        So a loop is told that was left early or went on for too long: only what comes after or around loops counts.
        What has not come is not missed where something new has come since: that loop may be over.
        """
        beats = {
            call: gap
            for call, (gap, times) in self._gaps.items()
            if times >= BEATS_MIN and self._spans_a_loop(call, gap)
        }  # fmt: skip
        if not beats:
            return 0
        last = dict(self._newest)
        found, new = 0, -1  # index of the newest call that was never made before
        end = min(to, len(calls))
        for at in range(since, end):
            call = calls[at]
            if call in beats and last[call] > new and at - last[call] != beats[call]:
                found += 1
            if call not in last:
                new = at
            last[call] = at
        return found + sum(new < last[call] < end - gap for call, gap in beats.items())

    def _spans_a_loop(self, call: int, gap: int) -> bool:
        newest = self._newest[call]
        between = self._past[newest - gap + 1 : newest]
        return gap > 1 and len(set(between)) < len(between)

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
