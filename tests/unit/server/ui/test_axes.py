"""The orders in which ranks can be looked at: by the incident, by host, by each parallel dimension."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.verdict import Culprit
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.evidence.rank_labels import GroupName
from ncclwatch_server.incidents.book import JobKey
from ncclwatch_server.jobs.job import Job, Served
from ncclwatch_server.jobs.read_model import JobSight, sight_of
from ncclwatch_server.simulation.fleet import Fleet
from ncclwatch_server.simulation.hearing import Hearing
from ncclwatch_server.simulation.job.layout import Layout
from ncclwatch_server.simulation.job.program import Training
from ncclwatch_server.simulation.run import run
from ncclwatch_server.state.job_state import JobState
from ncclwatch_server.ui.axes import Axis, _groups, axes_of
from tests.unit.server.server_values import VERDICT
from tests.unit.server.ui.test_incident_page import view

LAYOUT = Layout.parse("tp=2,pp=2,dp=4")


@pytest.fixture(scope="module")
def sight() -> JobSight:
    found = Hearing(fleet=Fleet(run(LAYOUT, Training(), (), steps=2, from_step=1)))
    found.report(0.0)
    found.tick(0.0)
    return sight_of(found.job, (), 0.0)


def by_name(sight: JobSight) -> dict[str, Axis]:
    return {axis.name: axis for axis in axes_of(sight)}


def test_each_axis_holds_every_rank_once(sight: JobSight):
    for axis in axes_of(sight):
        assert sorted(axis.order) == list(range(16)), axis.name
        assert sum(part.count for part in axis.parts) == 16, axis.name


def test_ranks_lie_by_host_and_those_without_one_come_last():
    key = JobKey(name="job", instance="i", attempt=0)
    job = Job(id="job", key=key, state=JobState(6), known_since=0.0)
    for number, ranks in ((1, (1, 3)), (2, (0, 2))):
        job.served[number] = Served(
            link=Link(number=number, agent="a", host=f"gpu-{number}", version="1"), index=0, terminal=False
        )
        job.state.announce(number, ranks, 0.0)
    host = by_name(sight_of(job, (), 1.0))["host"]
    assert host.order == (0, 2, 1, 3, 4, 5)
    assert [(part.label, part.count) for part in host.parts] == [("gpu-2", 2), ("gpu-1", 2), ("no host yet", 2)]


def test_tensor_parallel_groups_are_a_dimension_by_what_they_look_like(sight: JobSight):
    axis = by_name(replace(sight, names={}))["groups of 2, next to each other"]
    assert axis.order == tuple(range(16))
    assert [part.label for part in axis.parts] == [f"group {number}" for number in range(8)]


def test_a_dimension_is_called_as_its_groups_are_where_one_of_them_is_known(sight: JobSight):
    key = next(key for key, ranks in _groups(sight.picture) if ranks.tolist() == [4, 5])
    names = {key: GroupName(name="7", desc="mesh_tp")}
    assert by_name(replace(sight, names=names))["tp"].parts[2].label == "tp 2"


def test_ranks_far_apart_lie_together_by_their_dimension(sight: JobSight):
    sizes = [axis for axis in axes_of(replace(sight, names={})) if axis.name.startswith("groups of 4")]
    assert sizes
    for axis in sizes:
        first = axis.order[: axis.parts[0].count]
        assert first[0] == 0
        assert len(set(first)) == 4


def test_the_incidents_ranks_come_first(sight: JobSight):
    incident = view((), ()).incident
    verdict = replace(VERDICT, culprits=(Culprit(rank=5), Culprit(rank=99)), victims=(7, 6, 5))
    axis = axes_of(replace(sight, incidents=(replace(incident, verdict=verdict),)))[0]
    assert axis.name == "incident first"
    assert axis.order[:4] == (5, 6, 7, 0)
    assert [(part.label, part.count) for part in axis.parts] == [("culprit", 1), ("waits for it", 2), ("others", 13)]
