"""Learns how long a rank's device usually needs, and says when a wait for it is unusually long.

On a GPU the host runs ahead, so in a healthy job there is always an unfinished collective, as old as a step is long.
A server that looked at every such wait would look all the time.
"""

WAIT_S_MIN = 0.5  # shorter ones are no waits
NEWEST_SHARE = 0.3  # of the newest wait in what counts as usual
UNUSUAL = 2.0  # times the usual
PATIENCE_S_MAX = 20.0


class DeviceHabit:
    """What one rank's device usually needs. Ages are in seconds."""

    def __init__(self) -> None:
        self._usual_s = 0.0
        self._before_s = 0.0

    def unusual_s(self, pending_s: float) -> float:
        """Return the age of the oldest unfinished operation if it is unusual, else 0. To be told every second."""
        if pending_s < self._before_s >= WAIT_S_MIN:  # that one has ended
            known = self._usual_s or self._before_s
            self._usual_s = known + NEWEST_SHARE * (self._before_s - known)
        self._before_s = pending_s
        return pending_s if pending_s >= min(UNUSUAL * self._usual_s, PATIENCE_S_MAX) else 0.0
