"""Says which of many jobs are to be looked at now: those that are under suspicion or had news, and the others in turn.

A look at a small job takes 150 microseconds, most of it the overhead of looking at eight rows: 5,000 jobs would take a
core. So the rows of all calm jobs are read in one pass, and a job of which any row shows a long wait, an end, a save
or something noted is looked at at once. The others are looked at in turn, each second where there are few hundreds.
"""

from collections.abc import Sequence

import numpy as np

from ncclwatch_server import limits
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.state.columns import turned
from ncclwatch_server.state.digest_rows import RANK_DTYPE, SCREENED


class Screening:
    """Chooses among the jobs of one server, again and again. Time is passed in."""

    def __init__(self) -> None:
        self._chosen_at = self._screened_at = float("-inf")

    def awake(self, jobs: Sequence[Job], now: float) -> list[Job]:
        """Return the jobs to look at now."""
        passed_s, self._chosen_at = now - self._chosen_at, now
        living = [job for job in jobs if not job.ended]
        if len(living) <= limits.FEW_JOBS:
            return living
        found, calm, due = [], [], []
        turn_s = max(limits.TICK_S, len(living) / limits.CALM_LOOKS_PER_S)
        for job in living:
            if job.stirred or job.state.stale:
                found.append(job)
            elif now - job.looked_at >= (turn_s if job.quiet else limits.TICK_S):
                due.append(job)
            else:
                calm.append(job)
        due.sort(key=lambda job: job.looked_at)
        at_once = limits.FEW_JOBS + int(limits.CALM_LOOKS_PER_S * min(passed_s, limits.TICK_S))
        found += due[:at_once]
        if now - self._screened_at >= limits.SCREEN_S:
            self._screened_at = now
            found += _shown(calm + due[at_once:], now)
        return found


def _shown(jobs: list[Job], now: float) -> list[Job]:
    """Return those of some jobs of which a row shows something, or a connection has fallen silent."""
    parts = [job.state.rank_bytes for job in jobs]
    sizes = np.array([len(part) for part in parts], np.int64) // RANK_DTYPE.itemsize
    quiet = (job.seen > 0 and now - job.state.heard_at > limits.SILENT_S / 2 for job in jobs)
    found = np.fromiter(quiet, np.bool_, len(jobs))
    if sizes.any():
        rows = turned(np.frombuffer(b"".join(parts), RANK_DTYPE), SCREENED)
        odd = (rows["wait_age_s"] > limits.WAIT_S) | (rows["ended"] != 0) | (rows["detached"] != 0)
        odd |= (rows["saves_to"] != 0) | (rows["noted"] != 0)
        places = np.repeat(np.arange(len(jobs)), sizes)
        found[places[odd]] = True
    return [jobs[place] for place in np.flatnonzero(found).tolist()]
