"""Whatever goes wrong with one rank of a job in a parallel layout, that rank is named, and no other."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclwatch.contract.model.verdict import Verdict
from ncclwatch_server.simulation.fleet import Fleet
from ncclwatch_server.simulation.hearing import hear
from ncclwatch_server.simulation.job.faults import RIGHT_CAUSES, Fault, FaultKind, drawn
from ncclwatch_server.simulation.job.layout import Layout
from ncclwatch_server.simulation.job.program import Training, courses
from ncclwatch_server.simulation.run import Standstill, run

STEPS, STEPS_BEFORE = 6, 3
TRAINING = Training()
LAYOUTS = ["tp=2,pp=2,dp=4,ep=2", "tp=1,pp=4,dp=4", "tp=4,pp=1,dp=4,ep=4", "tp=2,pp=3,dp=2,ep=2", "tp=1,pp=1,dp=2"]
SMALL = ["tp=2,pp=2,dp=2,ep=2", "tp=1,pp=3,dp=2", "tp=1,pp=1,dp=6"]


def with_faults(layout: Layout, kinds: list[FaultKind], seed: int) -> Standstill | None:
    """Return a job with faults of these kinds, where a seed puts them; None if a layout has no place."""
    rng, stages = random.Random(seed), courses(layout, TRAINING, STEPS)
    try:
        faults = [drawn(kind, layout, stages, STEPS_BEFORE, rng) for kind in kinds]
    except ValueError:
        return None  # no sends without a pipeline
    if len({fault.rank for fault in faults}) < len(faults):
        return None
    return run(layout, TRAINING, faults, steps=STEPS, from_step=STEPS_BEFORE)


def named(verdicts: tuple[Verdict, ...]) -> set[int]:
    return {culprit.rank for verdict in verdicts for culprit in verdict.culprits}


def check(still: Standstill, fault: Fault) -> Verdict:
    """Return what is said, or fail unless exactly the faulty rank is named, for a right cause.

    Of two ranks one may have made a new call too many, or come to a larger size alone, or the other has left that out:
    then it is one of both.
    """
    (said,) = verdicts = hear(Fleet(still))
    assert fault.rank in named(verdicts), (fault, said.summary)
    assert said.cause in RIGHT_CAUSES[fault.kind], (fault, said.summary)
    undecided = said.one_of and fault.kind in (FaultKind.EXTRA, FaultKind.SIZE)
    assert len(said.culprits) == (2 if undecided else 1), (fault, said.summary)
    assert said.one_of == undecided
    assert fault.rank not in said.victims
    return said


@pytest.mark.parametrize("kind", FaultKind)
@pytest.mark.parametrize("text", LAYOUTS)
def test_the_faulty_rank_is_named_and_no_other(text: str, kind: FaultKind):
    still = with_faults(Layout.parse(text), [kind], seed=1)
    if still is not None:
        assert still.blocked
        check(still, still.faults[0])


@settings(max_examples=15, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    text=st.sampled_from(SMALL), kinds=st.lists(st.sampled_from(FaultKind), min_size=2, max_size=2, unique=True),
    seed=st.integers(0, 10**6),
)  # fmt: skip
def test_of_two_faults_only_such_as_have_happened_are_named(text: str, kinds: list[FaultKind], seed: int):
    """Of different kinds: two ranks that make one mistake at one place may be the majority, and then are believed."""
    still = with_faults(Layout.parse(text), kinds, seed)
    if still is not None and still.blocked:
        said = hear(Fleet(still))
        active = {fault.rank for fault in still.active}
        assert said
        assert named(tuple(each for each in said if not each.one_of)) <= active
        assert all(named((each,)) & active for each in said)


@pytest.mark.parametrize("kind", [FaultKind.SKIP, FaultKind.STUCK])
def test_among_a_thousand_ranks_too(kind: FaultKind):
    """More ranks than are asked for their views: those that show the fault have to be among them."""
    still = with_faults(Layout.parse("tp=8,pp=4,dp=32,ep=8"), [kind], seed=5)
    assert still is not None
    assert len(still.blocked) > 1000
    said = check(still, still.faults[0])
    assert said.explained == (len(still.blocked), len(still.blocked))
