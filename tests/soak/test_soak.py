"""A slope is told with its error, and what is counted up is told for each job."""

import random

import pytest

from tests.soak.jobs import WRONG, plans
from tests.soak.slopes import slope, slopes

JOBS = [float(10 * n) for n in range(1, 201)]


def noise(size: float) -> list[float]:
    rng = random.Random(5)
    return [rng.gauss(100.0, size) for _ in JOBS]


def test_what_stays_the_same_but_for_noise_does_not_grow() -> None:
    found = slope(JOBS, noise(3.0))
    assert not found.grows
    assert found.mean == pytest.approx(100.0, abs=1.0)
    assert abs(found.per_thousand) < found.error


def test_what_grows_is_told_with_its_slope() -> None:
    found = slope(JOBS, [value + 0.01 * jobs for jobs, value in zip(JOBS, noise(3.0), strict=True)])
    assert found.grows
    assert found.per_thousand == pytest.approx(10.0, abs=found.error)


def test_growth_at_the_start_is_warm_up() -> None:
    assert not slope(JOBS, [min(jobs, 500.0) + value for jobs, value in zip(JOBS, noise(1.0), strict=True)]).grows


def test_a_sawtooth_is_no_growth() -> None:
    assert not slope(JOBS, [jobs % 170 for jobs in JOBS]).grows


def test_too_few_samples_tell_nothing() -> None:
    with pytest.raises(ValueError, match="too few"):
        slope(JOBS[:15], JOBS[:15])


def test_what_is_counted_up_is_told_for_each_job() -> None:
    samples = [{"jobs": jobs, "server CPU s": 0.5 * jobs, "server threads": 3.0} for jobs in JOBS]
    found = slopes(samples)
    assert found["server CPU s for each job"].mean == pytest.approx(0.5)
    assert not found["server CPU s for each job"].grows
    assert found["server threads"].mean == 3.0


def test_one_job_in_twenty_five_goes_wrong_in_each_way() -> None:
    drawn = plans(500, seed=1)
    assert sum(bool(plan.wrong) for plan in drawn) == 20
    assert {plan.wrong for plan in drawn} == {"", *WRONG}
    assert len({plan.name for plan in drawn}) == 500
