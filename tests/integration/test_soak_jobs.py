"""Small jobs come and go on one server and one agent: each is told as what it is, and what they hold goes with them."""

from pathlib import Path

import pytest

from tests.integration.real_jobs import until
from tests.soak.jobs import plans
from tests.soak.world import World


@pytest.mark.long
@pytest.mark.timeout(600)
def test_jobs_come_and_go_and_leave_nothing_in_the_agent(tmp_path: Path) -> None:
    with World(tmp_path).started() as world:
        ended = list(world.run(plans(100, seed=3), at_once=3, every=100))
        assert [each for each in ended if each.fault] == []
        assert sum(bool(each.plan.wrong) for each in ended) == 4
        (full,) = world.samples
        until(lambda: not list(world.runtime.rglob("team-*")), lambda: list(world.runtime.rglob("*")))
        until(lambda: world.gauges()["agent descriptors"] < full["agent descriptors"], world.gauges)
