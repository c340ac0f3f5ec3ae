"""Makes figures of what was played: rates with their bounds, and times from the onset to the verdict."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.years.day import Played
from tests.years.faults import Outcome

CONFIDENCE = 0.95


def upper_bound(events: int, exposure: float) -> float:
    """Return the exact 95 % upper bound of a Poisson rate: with it, so few events would be seen in 5 % of all cases."""
    low, high = 0.0, 10.0 + 3.0 * events
    for _ in range(200):
        middle = (low + high) / 2
        few = sum(math.exp(-middle + count * math.log(middle) - math.lgamma(count + 1)) for count in range(events + 1))
        low, high = (middle, high) if few > 1.0 - CONFIDENCE else (low, middle)
    return high / exposure if exposure else math.inf


def quantile(found: Sequence[float], share: float) -> float:
    """Return the value that this share of all does not exceed."""
    return sorted(found)[min(len(found) - 1, math.ceil(share * len(found)) - 1)] if found else math.nan


@dataclass
class Healthy:
    """What was said of healthy jobs."""

    days: float = 0.0
    jobs: int = 0
    judgements: int = 0
    failures: int = 0
    critical: list[tuple[int, str, str, str]] = field(default_factory=list)  # seed, what happened, cause, sentence
    warnings: Counter[str] = field(default_factory=Counter)  # incidents by what they say
    happened: Counter[str] = field(default_factory=Counter)

    def add(self, seed: int, played: Played, days: float) -> None:
        """Count one job."""
        self.jobs, self.days = self.jobs + 1, self.days + days
        self.judgements, self.failures = self.judgements + played.judgements, self.failures + played.failures
        self.happened.update(name for _, names in played.stretches for name in names.split("+"))
        woken: set[str] = set()
        warned: dict[str, str] = {}
        for said in played.said:
            verdict = said.verdict
            if said.critical and said.incident not in woken:
                woken.add(said.incident)
                self.critical.append((seed, played.happening(said.at_s), verdict.cause.value, verdict.summary))
            warned[said.incident] = f"{verdict.cause.value} {verdict.lateness.value}".strip()
        self.warnings.update(words for incident, words in warned.items() if incident not in woken)

    def lines(self) -> list[str]:
        """Return it in words."""
        rate = len(self.critical) / self.days if self.days else 0.0
        outages = [each for each in self.critical if "node_pauses" in each[1]]
        rest = len(self.critical) - len(outages)
        found = [
            f"healthy: {self.days:,.0f} job-days of {self.jobs:,} jobs, {sum(self.happened.values()):,} stretches, "
            f"{self.judgements:,} judgements, {self.failures} failed",
            f"critical alarms: {len(self.critical)}, {rate:.2g} a job-day, 95 % upper bound "
            f"{upper_bound(len(self.critical), self.days):.2g}",
            f"  of them while a whole node stood still: {len(outages)} in {self.happened['node_pauses']} pauses; all "
            f"others: {rest}, 95 % upper bound {upper_bound(rest, self.days):.2g} a job-day",
        ]
        found += [f"  CRITICAL seed {seed}: {cause} in {names}: {words}" for seed, names, cause, words in self.critical]
        found += [f"warnings: {number:6} {number / self.days:8.3f} a job-day  {words}"
                  for words, number in self.warnings.most_common()]  # fmt: skip
        return found


@dataclass
class Faulty:
    """What was said of faulty jobs."""

    outcomes: list[Outcome] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return it in words."""
        found = [f"faulty: {len(self.outcomes):,} jobs", f"{'fault':22}{'jobs':>6}{'critical':>9}{'warned':>8}"
                 f"{'median s':>10}{'p99 s':>8}{'wrong':>7}"]  # fmt: skip
        by_fault: dict[str, list[Outcome]] = defaultdict(list)
        for outcome in self.outcomes:
            by_fault[outcome.fault].append(outcome)
        for fault, outcomes in [*sorted(by_fault.items()), ("all", self.outcomes)]:
            times = _times(outcomes)
            found.append(
                f"{fault:22}{len(outcomes):6}{len(times):9}{sum(o.warned is not None for o in outcomes):8}"
                f"{median(times) if times else math.nan:10.1f}{quantile(times, 0.99):8.1f}"
                f"{sum(bool(o.wrong) for o in outcomes):7}"
            )
        for outcome in self.outcomes:
            for said in outcome.wrong:
                found.append(f"  WRONG seed {outcome.seed}: {outcome.fault} of {outcome.ranks}: {said.verdict.summary}")
            for said in outcome.early:
                found.append(f"  BEFORE THE FAULT seed {outcome.seed}: {said.verdict.summary}")
        return found

    @property
    def wrong(self) -> int:
        """How many verdicts name ranks that the fault did not touch."""
        return sum(bool(outcome.wrong) for outcome in self.outcomes)


def _times(outcomes: Iterable[Outcome]) -> list[float]:
    return [o.verdict.at_s - o.onset_s for o in outcomes if o.verdict is not None]


def keep(path: Path, healthy: Healthy, faulty: Faulty) -> None:
    """Write what was counted, for other programs."""
    figures = {
        "job_days": healthy.days, "judgements": healthy.judgements, "failures": healthy.failures,
        "critical": healthy.critical, "warnings": dict(healthy.warnings), "happened": dict(healthy.happened),
        "faulty": len(faulty.outcomes), "wrong": faulty.wrong, "text": [*healthy.lines(), *faulty.lines()],
    }  # fmt: skip
    path.write_text(json.dumps(figures, indent=1) + "\n")
