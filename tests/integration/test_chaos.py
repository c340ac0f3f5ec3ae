"""Faults put into a rank, the agent, the server, the store and the line while a job hangs: one incident, the right one.

A few cells of the table of `python -m tests.chaos`; `make chaos` runs all.
"""

from pathlib import Path

import pytest

from tests.chaos.life import STEPS, Cell
from tests.chaos.table import FAULTS
from tests.integration.real_jobs import mine

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

LONG = pytest.mark.long
SHARE = [
    pytest.param("begins", "kill.agent"),
    pytest.param("notified", "stop.server"),
    pytest.param("healthy", "frames.cut"),
    pytest.param("opened", "kill.server", marks=LONG),
    pytest.param("steady", "store.full", marks=LONG),
    pytest.param("healthy", "ring.garbage", marks=LONG),
]
BY_NAME = {fault.name: fault for fault in FAULTS}


@pytest.mark.parametrize(("step", "fault"), SHARE)
def test_a_fault_leaves_one_incident_and_the_ranks_alone(step: str, fault: str, tmp_path: Path) -> None:
    cell = Cell(step, BY_NAME[fault], seed=1)
    cell.run(tmp_path)
    assert cell.failures == []
    assert mine(tmp_path) == []


def test_the_table_names_each_fault_once_and_has_all_steps() -> None:
    assert len(BY_NAME) == len(FAULTS)
    assert all(fault.never <= set(STEPS) for fault in FAULTS)
    documented = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    assert [name for name in BY_NAME if f"`{name.removeprefix('gloo:')}`" not in documented] == []
