"""A drawn case is the same for everybody, and its truth fits the program."""

import json

import pytest

from . import injection
from .injection import FAULTS, FIRST_STEP
from .truth import Expect, Truth

CASES = injection.draw(seed=3, count=20 * len(FAULTS))
each_fault = pytest.mark.parametrize("kind", [fault.kind for fault in FAULTS])


def cases_of(kind: str) -> list[Truth]:
    return [case for case in CASES if case.id.endswith(f"-{kind}")]


def events(case: Truth) -> list[list[object]]:
    found: list[list[object]] = json.loads(case.arguments[0])["events"]
    return found


def test_the_same_seed_draws_the_same_cases_and_another_seed_others() -> None:
    assert injection.draw(seed=3, count=7) == CASES[:7]
    assert injection.draw(seed=4, count=7) != CASES[:7]


def test_every_kind_comes_once_before_any_comes_twice() -> None:
    first = [case.id.split("-", 2)[2] for case in CASES[: len(FAULTS)]]
    assert sorted(first) == sorted(fault.kind for fault in FAULTS)


@each_fault
def test_a_fault_strikes_a_rank_and_a_step_that_exist_after_healthy_ones(kind: str) -> None:
    for case in cases_of(kind):
        config = json.loads(case.arguments[0])
        ((_, rank, step, _),) = config["events"]
        assert 0 <= rank < case.nproc
        assert FIRST_STEP <= step <= config["epochs"] * config["steps"]


@each_fault
def test_the_lines_of_a_truth_are_in_the_program(kind: str) -> None:
    for case in cases_of(kind):
        lines = [line for rank in case.culprits for line in case.lines_of(rank)]
        assert all(line.file == injection.PROGRAM for line in lines)
        assert bool(case.culprits) == (case.expect is not Expect.HEALTHY)


def test_no_fault_is_drawn_where_it_would_be_none() -> None:
    assert all(events(case)[0][1] != 0 for case in cases_of("root"))
    for case in [*cases_of("swap"), *cases_of("shape")]:
        assert events(case)[0][2] % json.loads(case.arguments[0])["report_every"] == 0
    for case in cases_of("extra"):
        assert events(case)[0][2] % json.loads(case.arguments[0])["report_every"] != 0
