"""Jobs with tensor, pipeline, data and expert parallelism, in which one rank makes a mistake: it is named alone.

Rings hold only the newest operations there, and stages of a pipeline differ by design.
"""

import random

import pytest

from ncclwatch.contract.model.verdict import Severity
from ncclwatch_server.simulation.fleet import Fleet
from ncclwatch_server.simulation.hearing import hear
from ncclwatch_server.simulation.job.faults import Fault, FaultKind, drawn
from ncclwatch_server.simulation.job.layout import Layout
from ncclwatch_server.simulation.job.program import Training
from ncclwatch_server.simulation.run import run

LAYOUTS = ("tp=2,pp=2,dp=4,ep=2", "tp=2,pp=4,dp=2", "tp=4,pp=1,dp=4", "tp=1,pp=4,dp=4")
KINDS = (FaultKind.SKIP, FaultKind.EXTRA, FaultKind.SWAP, FaultKind.SIZE, FaultKind.NO_SEND)
STEPS = 6


def fault_in(layout: Layout, kind: FaultKind, seed: int) -> Fault | None:
    stages = run(layout, Training(), (), steps=STEPS + 1).courses
    try:
        return drawn(kind, layout, stages, STEPS, random.Random(seed))
    except ValueError:  # no send without a pipeline
        return None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
@pytest.mark.parametrize("text", LAYOUTS)
def test_the_rank_that_made_a_mistake_is_named_alone(text: str, kind: FaultKind) -> None:
    layout = Layout.parse(text)
    for seed in range(3):
        fault = fault_in(layout, kind, seed)
        if fault is None:
            continue
        said = hear(Fleet(run(layout, Training(), (fault,), steps=STEPS + 3)))
        critical = [verdict for verdict in said if verdict.severity is Severity.CRITICAL]
        assert [[each.rank for each in verdict.culprits] for verdict in critical] == [[fault.rank]]
        assert not critical[0].one_of
