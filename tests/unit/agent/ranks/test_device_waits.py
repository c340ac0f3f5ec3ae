"""When an unfinished operation of a device is old enough for a server to look at the job."""

import pytest

from ncclwatch_agent.ranks.device_waits import DeviceHabit


def told(*ages_s: float) -> list[float]:
    habit = DeviceHabit()
    return [habit.unusual_s(age_s) for age_s in ages_s]


def test_the_first_wait_is_unusual_whatever_its_age():
    assert told(0.0, 1.0, 2.0) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(("age_s", "unusual"), [(7.9, False), (8.0, True)])
def test_a_job_whose_steps_take_four_seconds_is_looked_at_after_eight(age_s: float, unusual: bool):
    steps = [1.0, 2.0, 3.0, 4.0] * 5
    assert bool(told(*steps, 0.1, age_s)[-1]) is unusual


def test_one_long_wait_does_not_make_a_job_wait_long():
    steps = [1.0, 60.0, *[0.9, 0.1] * 20]
    assert told(*steps, 2.0)[-1] == 2.0


@pytest.mark.parametrize(("age_s", "unusual"), [(19.9, False), (20.0, True)])
def test_patience_has_a_bound(age_s: float, unusual: bool):
    assert bool(told(*[300.0, 1.0] * 9, age_s)[-1]) is unusual
