"""The smallest repair of jobs on devices: never certain of an innocent rank, mostly right where a call was wrong."""

import pytest

from ncclwatch_server.judge.theory.repair.findings import Finding, find
from ncclwatch_server.judge.theory.repair.tapes import read
from ncclwatch_server.judge.theory.waits.rank_standing import standings
from tests.dumps.faults import Case, draw_case
from tests.dumps.live import snapshot
from tests.dumps.score import KINDS

SEEDS = range(12)


def found(kind: str, seed: int) -> tuple[Case, Finding]:
    case = draw_case(kind, seed)
    return case, find(read(standings(snapshot(case))))


@pytest.mark.parametrize("kind", KINDS)
def test_no_innocent_is_told_for_certain(kind: str) -> None:
    cases = [found(kind, seed) for seed in SEEDS]
    told = [(case.roots, {each.rank for each in finding.suspects}) for case, finding in cases if finding.certain]
    assert all(ranks <= roots for roots, ranks in told)


@pytest.mark.parametrize("kind", ["call_skipped", "order_crossed"])
def test_ranks_that_made_a_wrong_call_are_told_in_most_cases(kind: str) -> None:
    cases = [found(kind, seed) for seed in SEEDS]
    assert sum(case.roots <= {each.rank for each in finding.suspects} for case, finding in cases) >= 8
