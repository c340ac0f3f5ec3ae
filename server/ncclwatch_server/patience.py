"""How patient has this job taught us to be? Waits and pauses that ended by themselves raise the bar for the next."""

from collections.abc import Iterable

from ncclwatch.contract.model import Verdict


class Patience:
    """What one job has recovered from so far. Durations in seconds."""

    def __init__(self) -> None:
        self.longest_wait_s = 0.0  # ranks waited for one that worked
        self.longest_still_s = 0.0  # the awaited rank showed no sign of work
        self._wait_s = 0.0  # of what is under way
        self._still_s = 0.0

    def see(self, verdicts: Iterable[Verdict]) -> None:
        """Take note of waits under way."""
        for verdict in verdicts:
            self._wait_s = max(self._wait_s, verdict.onset_s)
            self._still_s = max(self._still_s, verdict.still_s)

    def rest(self) -> None:
        """Nothing is suspicious any more: what was under way has ended by itself."""
        self.longest_wait_s = max(self.longest_wait_s, self._wait_s)
        self.longest_still_s = max(self.longest_still_s, self._still_s)
        self._wait_s = self._still_s = 0.0
