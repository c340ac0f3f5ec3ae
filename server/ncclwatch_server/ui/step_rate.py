"""Measures how many training steps a job makes in a second."""

from collections import deque

WINDOW_S = 60.0
MOMENTS_MAX = 120


class StepRate:
    """The steps of a job's furthest rank at the moments of the last minute."""

    def __init__(self) -> None:
        self._moments: deque[tuple[float, int]] = deque(maxlen=MOMENTS_MAX)

    def note(self, steps: int, now: float) -> None:
        """Note how far it is. A job that begins again begins at zero."""
        if self._moments and steps < self._moments[-1][1]:
            self._moments.clear()
        self._moments.append((now, steps))
        while now - self._moments[0][0] > WINDOW_S:
            self._moments.popleft()

    @property
    def per_s(self) -> float:
        """Return the steps a second over the last minute, 0 as long as there is only one moment."""
        if len(self._moments) < 2:
            return 0.0
        (began, first), (ended, last) = self._moments[0], self._moments[-1]
        return (last - first) / (ended - began) if ended > began else 0.0
