"""Judges a simulated job, second by second, faster than the seconds pass."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from ncclwatch.contract.model.verdict import Severity, Verdict
from ncclwatch_server.incidents.confirmation import Confirmation
from ncclwatch_server.judge import judge
from ncclwatch_server.simulation.hearing import Hearing
from ncclwatch_server.simulation.job.timeline import Timeline
from ncclwatch_server.stragglers.words import Whereabouts, verdict_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Offline:
    """What was said, and how fast."""

    verdict: Verdict | None  # the first critical one that stood, or the first that calls ranks slow
    after_s: float  # of the job's time, since the onset; negative: before anything was wrong
    simulated_s: float
    took_s: float


def heard_offline(timeline: Timeline, lasts_s: float, told: Callable[[float], None] = lambda now: None) -> Offline:
    """Let a job go on for so long, with a digest of every node and a tick each second, until a verdict stands."""
    began, confirmation = time.monotonic(), Confirmation()
    hearing = Hearing(fleet=timeline.at(0.0)[0])
    for second in range(math.ceil(lasts_s)):
        now = float(second)
        told(now)
        hearing.fleet, since_s = timeline.at(now)
        hearing.report(since_s, now)
        verdicts: tuple[Verdict, ...] = ()
        if hearing.tick(now):
            verdicts = tuple(hearing.job.counted(each) for each in judge(hearing.snapshot(since_s, now)))
        standing = confirmation.confirm(verdicts, now, final=False)
        said = [verdict for verdict in standing if verdict.severity is Severity.CRITICAL] or _slow(hearing, now)
        if said:
            onset_s = timeline.slow.since_s if timeline.slow is not None else timeline.onset_s
            return Offline(verdict=said[0], after_s=now - onset_s, simulated_s=now, took_s=time.monotonic() - began)
    return Offline(verdict=None, after_s=0.0, simulated_s=lasts_s, took_s=time.monotonic() - began)


def _slow(hearing: Hearing, now: float) -> list[Verdict]:
    """Return what is said of slow ranks, as `slowdowns` has it said."""
    job = hearing.job
    if not job.stragglers.add_rows(*job.state.living(), now):
        return []
    where = Whereabouts(
        host_of=lambda rank: f"node{rank // hearing.fleet.still.layout.node:05d}", site_of=lambda _: None
    )
    return [verdict_of(found, job.world_size, where, now) for found in job.stragglers.findings if found.ranks]
