"""Holds the judge against what is so: draws programs, runs them, shows the judge moments, and says where it errs."""

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from ncclwatch.contract.model.verdict import Certainty, Severity, Verdict
from ncclwatch_server.judge import judge
from tests.spmd import faults, generator, machine, oracle, views
from tests.spmd.faults import HEALTHY, Fault, What
from tests.spmd.machine import Run
from tests.spmd.oracle import Truth
from tests.spmd.program import Program, steps_of
from tests.spmd.views import Sight

HEALTHY_SHARE = 0.25
KEY_SHARE = 0.15  # of programs with keys of the store
LOCK_SHARE = 0.15  # of those with a file lock
LATE_SHARE = 0.15  # of those that make groups on their way
WORK_SHARE = 0.3  # of those that issue some collectives asynchronously
DEVICE_SHARE = 0.2  # of those whose collectives run on devices
OWN_SHARE = 0.3  # of the faults of these: one that only they can have
SLOW_SHARE = 0.4
REPORT_S = 1.0  # between two reports; what is proven is told with the second one, see `incidents.confirmation`
SETTLED_S = 100.0  # after the last event
SETTLED_ON_DEVICE_S = 320.0  # a device that computes before it communicates looks the same as one that waits


class Broken(Enum):
    """What the judge must hold, and did not."""

    PROOF = "a: proven, and some continuation ends it"
    ALARM = "b: critical, and the job is well"
    SILENCE = "c: nothing goes on, and ranks wait that no critical verdict speaks of"
    CULPRIT = "d: a culprit that was not changed"
    VICTIM = "d: a victim that was changed"
    WHY = "e: what is said of the histories is not so"


class Trial(NamedTuple):
    """All that a judgement depends on: it can be run again, and made smaller."""

    program: Program
    fault: Fault
    seed: int  # of durations
    slow: tuple[tuple[int, int, int, float], ...] = ()  # (rank, line, turn, seconds) of work that takes long


class Counterexample(NamedTuple):
    """A judgement that does not hold."""

    broken: Broken
    trial: Trial
    sight: Sight
    verdict: Verdict | None  # None: it is one that is missing

    @property
    def kind(self) -> tuple[str, str, str]:
        """Return what counterexamples of one kind have in common."""
        cause = self.verdict.cause.value if self.verdict is not None else "-"
        return self.broken.name, cause, self.trial.fault.what.value


def draw(seed: int) -> Trial:
    """Return a trial."""
    rng = random.Random(seed)
    also = random.Random(~seed)
    keys, locks = also.random() < KEY_SHARE, also.random() < LOCK_SHARE
    late = also.random() < LATE_SHARE
    own = [what for what, can in ((What.HOLD, locks), (What.UNMADE, late), (What.REMADE, late)) if can]
    what = also.choice(own) if own and also.random() < OWN_SHARE else None
    works = also.random() < WORK_SHARE
    device = also.random() < DEVICE_SHARE
    program = generator.draw(rng, keys=keys, locks=locks, late=late, works=works, device=device)
    fault = HEALTHY if rng.random() < HEALTHY_SHARE else faults.draw(rng, program, what)
    return Trial(program, fault, seed, _slow(rng, program, fault))


def _slow(rng: random.Random, program: Program, fault: Fault) -> tuple[tuple[int, int, int, float], ...]:
    if rng.random() > SLOW_SHARE:
        return ()
    rank = rng.randrange(program.world)
    works = [step for step in faults.steps_with(program, fault)[rank] if step.seconds and not step.how]
    if not works:
        return ()
    step = rng.choice(works)
    return ((rank, step.line, step.turn, rng.choice((3.0, 12.0, 40.0, 200.0))),)


def carried_out(trial: Trial) -> Run:
    """Return what happens in a trial."""
    steps = faults.steps_with(trial.program, trial.fault)
    for rank, line, turn, seconds in trial.slow:
        steps[rank] = [
            step._replace(seconds=seconds) if (step.line, step.turn, step.how) == (line, turn, "") and step.seconds
            else step
            for step in steps[rank]
        ]  # fmt: skip
    return machine.run(trial.program, steps, random.Random(trial.seed))


def sights(trial: Trial, run: Run) -> Iterator[Sight]:
    """Yield the moments at which the judge is asked: one or two on the way, and one when nothing goes on."""
    rng = random.Random(trial.seed + 1)
    for _ in range(2 if trial.fault is HEALTHY else 1):
        yield views.draw(rng, run, rng.uniform(0.0, run.rest_s))
    if trial.fault is not HEALTHY:
        yield views.draw(rng, run, settled_s(run))


def settled_s(run: Run) -> float:
    """Return a moment at which whoever stands still has done so for long enough."""
    return run.rest_s + (SETTLED_ON_DEVICE_S if run.program.device else SETTLED_S)


def judged(trial: Trial) -> list[Counterexample]:
    """Return what the judge gets wrong in a trial."""
    run = carried_out(trial)
    found: list[Counterexample] = []
    for sight in sights(trial, run):
        found += examined(trial, run, sight)
    return found


def examined(trial: Trial, run: Run, sight: Sight) -> Iterator[Counterexample]:
    """Yield what the judge gets wrong at one moment."""
    verdicts = judge(views.snapshot(run, sight))
    truth = oracle.at(run, sight)
    for verdict in verdicts:
        for broken in _wrong_with(verdict, trial, run, truth):
            if broken is Broken.PROOF and not _is_proven_again(trial, run, sight):
                continue
            yield Counterexample(broken, trial, sight, verdict)
    seen = not sight.silent and not sight.unasked
    if seen and sight.at_s > run.rest_s and truth.stuck - _spoken_of(verdicts):
        yield Counterexample(Broken.SILENCE, trial, sight, next(iter(verdicts), None))


def _is_proven_again(trial: Trial, run: Run, sight: Sight) -> bool:
    """Say whether the next report is judged wrongly as well: a wait may have been about to end at the first one."""
    later = sight._replace(at_s=sight.at_s + REPORT_S)
    truth = oracle.at(run, later)
    verdicts = judge(views.snapshot(run, later))
    return any(Broken.PROOF in _wrong_with(verdict, trial, run, truth) for verdict in verdicts)


def _spoken_of(verdicts: Sequence[Verdict]) -> frozenset[int]:
    critical = [verdict for verdict in verdicts if verdict.severity is Severity.CRITICAL]
    culprits = (culprit.rank for verdict in critical for culprit in verdict.culprits)
    return frozenset((*culprits, *(rank for verdict in critical for rank in verdict.victims)))


def _wrong_with(verdict: Verdict, trial: Trial, run: Run, truth: Truth) -> Iterator[Broken]:
    if verdict.severity is not Severity.CRITICAL:
        return
    if trial.fault is HEALTHY:
        yield Broken.ALARM
    if verdict.certainty is Certainty.PROVEN and not verdict.predicted and truth.freed.intersection(verdict.victims):
        yield Broken.PROOF
    changed = set(trial.fault.ranks)
    culprits = {culprit.rank for culprit in verdict.culprits}
    if trial.fault is not HEALTHY and not verdict.one_of and not culprits <= changed:
        yield Broken.CULPRIT
    if any(rank in verdict.victims and _has_deviated(trial, run, rank, truth.at_s) for rank in changed):
        yield Broken.VICTIM
    if not _is_so(verdict, run, truth):
        yield Broken.WHY


def _has_deviated(trial: Trial, run: Run, rank: int, at_s: float) -> bool:
    """Say whether a changed rank has come to where it was changed: it may wait for another one before that."""
    usual, steps = steps_of(trial.program, rank), run.steps[rank]
    pairs = enumerate(zip(usual, steps, strict=False))
    first = next((n for n, (one, other) in pairs if one[:6] != other[:6] or one.how != other.how), len(steps))
    return bisect_right(run.began_s[rank], at_s) > first


def _is_so(verdict: Verdict, run: Run, truth: Truth) -> bool:
    """Say whether what a verdict says of calls and waits is what happened."""
    found = verdict.first_divergence
    if found is not None:
        culprits = {culprit.rank for culprit in verdict.culprits}
        if found.culprit_site and not _made(run, truth, culprits, found.culprit_op, found.culprit_site.line):
            return False
        if found.victim_site and not _made(
            run, truth, set(range(run.program.world)), found.victim_op, found.victim_site.line
        ):
            return False
    return all(
        (each.group, each.seq) in truth.waits.get(rank, ())
        for each in verdict.waiters
        if each.group and "all_" in each.doing
        for rank in each.ranks
    )


def _made(run: Run, truth: Truth, ranks: set[int], op: str, line: int) -> bool:
    """Say whether one of these ranks has made a call at a line."""
    return any(
        (call.step.op.value, call.step.line) == (op, line) or not op
        for rank in ranks
        for call in run.calls[rank]
        if call.issued_s <= truth.at_s
    )


def is_known(found: Counterexample) -> bool:
    """Say whether a counterexample is of a kind in which the judge is known to be wrong. All others fail the tests."""
    if found.broken is Broken.SILENCE and found.sight.history:
        return True  # a root has gone on, and its ring has forgotten the operation that others still wait in
    if found.broken is Broken.SILENCE and found.verdict is not None and found.verdict.severity is Severity.CRITICAL:
        return True  # the hang is told; what else stands still beside it, or because of it, is not all listed
    if found.broken is not Broken.VICTIM or found.verdict is None:
        return False
    # Another changed rank waits for the one that is named, or may be wrong itself.
    return any(culprit.rank in found.trial.fault.ranks for culprit in found.verdict.culprits)
