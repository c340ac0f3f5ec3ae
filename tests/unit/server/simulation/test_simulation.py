"""Simulated jobs are what they claim to be: their groups, their programs, and the bytes that their nodes send."""

import itertools
import random

import numpy as np
import pytest

from ncclwatch.contract import digests, wire
from ncclwatch.contract.groups import group_key
from ncclwatch.contract.model.rank import ProcessState
from ncclwatch.contract.model.slowness import SlowKind
from ncclwatch.contract.ring.members import unpacked
from ncclwatch_server import limits
from ncclwatch_server.metrics.summary import Groups
from ncclwatch_server.simulation.fleet import Fleet
from ncclwatch_server.simulation.hearing import Hearing, hear
from ncclwatch_server.simulation.job.faults import Fault, FaultKind, drawn
from ncclwatch_server.simulation.job.layout import AXES, Axis, Layout
from ncclwatch_server.simulation.job.program import Training, courses
from ncclwatch_server.simulation.job.step_times import Slow, Span, StepTimes
from ncclwatch_server.simulation.run import cruising, run
from ncclwatch_server.simulation.sights import written
from ncclwatch_server.state.digest_rows import GROUP_DTYPE, RANK_DTYPE

LAYOUTS = ["tp=2,pp=2,dp=4,ep=2", "tp=4,pp=3,dp=2,ep=1", "tp=1,pp=4,dp=4,ep=4", "tp=1,pp=1,dp=5", "tp=2,pp=1,dp=1"]
SMALL = Layout.parse("tp=2,pp=2,dp=4,ep=2")


@pytest.mark.parametrize("text", LAYOUTS)
def test_the_groups_of_an_axis_hold_every_rank_once(text: str):
    layout = Layout.parse(text)
    for axis in layout.axes:
        ranks = [rank for members in layout.members[axis] for rank in members]
        assert sorted(ranks) == list(range(layout.world_size))
        assert {len(members) for members in layout.members[axis]} == {layout.size(axis)}
    names = [layout.name(axis, n) for axis in layout.axes for n in range(len(layout.members[axis]))]
    assert len(names) == len(set(names))


def test_ranks_are_laid_out_as_megatron_does():
    assert SMALL.members[Axis.TENSOR][:2] == ((0, 1), (2, 3))
    assert SMALL.members[Axis.DATA][:2] == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert SMALL.members[Axis.EXPERT][:2] == ((0, 2), (1, 3))
    assert SMALL.members[Axis.EXPERT_DATA][0] == (0, 4)
    assert SMALL.members[Axis.PIPELINE][0] == (0, 8)
    assert SMALL.members[Axis.MODEL][0] == (0, 1, 8, 9)


@pytest.mark.parametrize("text", ["tp=0,dp=2", "dp=6,ep=4", "tp=2,xx=3", "tp", ""])
def test_an_impossible_layout_is_refused(text: str):
    with pytest.raises(ValueError, match=r"layout|divide"):
        Layout.parse(text)


@pytest.mark.parametrize("text", LAYOUTS)
def test_a_job_without_a_fault_comes_to_its_end_and_nothing_is_said_of_it(text: str):
    layout = Layout.parse(text)
    still = run(layout, Training(microbatches=3), (), steps=2)
    assert [still.places[r] for r in range(layout.world_size)] == [
        len(still.course(r).steps) for r in range(layout.world_size)
    ]
    assert not still.blocked
    assert hear(Fleet(still)) == ()
    assert hear(Fleet(cruising(layout, Training(), steps=3, at_step=2))) == ()


@pytest.mark.parametrize("text", LAYOUTS)
def test_to_begin_at_a_later_step_is_to_have_run_there(text: str):
    layout = Layout.parse(text)
    one = courses(layout, Training(), 3)[0]
    fault = Fault(kind=FaultKind.STUCK, rank=0, at=len(one.steps) - 1)
    whole = run(layout, Training(), (fault,), steps=3)
    later = run(layout, Training(), (fault,), steps=3, from_step=2)
    assert (whole.places, whole.blocked) == (later.places, later.blocked)


def test_two_groups_that_share_one_rank_only_may_be_used_in_any_order():
    """The others of each group reach the other one on their own: no deadlock, and nobody is blamed."""
    layout = Layout.parse("tp=2,pp=1,dp=4,ep=2")
    steps = courses(layout, Training(), 3)[0].steps
    at = next(n for n, s in enumerate(steps[:-1]) if (s.axis, steps[n + 1].axis) == (Axis.TENSOR, Axis.EXPERT))
    still = run(layout, Training(), (Fault(kind=FaultKind.SWAP, rank=3, at=at),), steps=3)
    assert not still.blocked
    assert hear(Fleet(still)) == ()


def stuck() -> Fleet:
    """Return a job in which rank 3 stands still and rank 12 was stopped."""
    faults = (Fault(kind=FaultKind.STUCK, rank=3, at=95), Fault(kind=FaultKind.STOPPED, rank=12, at=95))
    return Fleet(run(SMALL, Training(), faults, steps=2, from_step=1))


def test_digests_are_what_the_wire_has_and_say_what_the_views_say():
    fleet = stuck()
    ranks, groups = [], []
    for node in range(fleet.nodes):
        index, rank_bytes, group_bytes = digests.split_digest(fleet.digest(node, 7.0))
        assert index == 0
        ranks += np.frombuffer(rank_bytes, RANK_DTYPE).tolist()
        groups += np.frombuffer(group_bytes, GROUP_DTYPE).tolist()
    rows = {row[0]: dict(zip(RANK_DTYPE.names or (), row, strict=True)) for row in ranks}
    by_rank = {
        rank: [dict(zip(GROUP_DTYPE.names or (), row, strict=True)) for row in each]
        for rank, each in itertools.groupby(groups, key=lambda row: row[0])
    }
    for view in fleet.views(range(SMALL.world_size), 7.0):
        row, (thread,) = rows[view.rank], view.threads
        keys = {group.name: group_key(group.name, group.members_digest) for group in view.groups}
        wait_s = thread.wait.age_s if thread.wait else 0.0
        assert row["wait_age_s"] == pytest.approx(wait_s)
        assert digests.PROCESS_STATES[row["state"]] is view.process.state
        assert row["issued"] == thread.issued
        assert row["completed"] == sum(group.completed for group in view.groups)
        if thread.wait is not None:
            assert digests.WAIT_KINDS[row["wait_kind"]] is thread.wait.kind
            assert row["waits_for"] == thread.wait.peer
            assert row["waits_in"] == keys[thread.wait.group]
        told = [(keys[g.name], g.enqueued, g.enqueued - g.completed, g.prefix_hash) for g in view.groups]
        assert told == [(g["group"], g["enqueued"], g["unfinished"], g["prefix_hash"]) for g in by_rank[view.rank]]
    assert rows[12]["state"] == digests.PROCESS_STATES.index(ProcessState.STOPPED)


SIZES = "tp=2,pp=2,dp=4,ep=2"
BIG = "tp=2,pp=2,dp=68"  # more ranks than are all looked at


def own_and_other_names_say_the_same(text: str, kind: FaultKind) -> bool:
    said = []
    for layout in (Layout.parse(text), Layout.parse(f"{text},names=own")):
        fault = drawn(kind, layout, courses(layout, Training(), 8), 6, random.Random(1))
        verdicts = hear(Fleet(run(layout, Training(), (fault,), steps=8, from_step=6)))
        said.append([(v.cause, v.certainty, v.one_of, [c.rank for c in v.culprits], v.explained) for v in verdicts])
    return said[0] == said[1] != []


@pytest.mark.parametrize("kind", FaultKind)
def test_where_ranks_make_only_their_own_groups_and_these_share_names_the_same_is_said(kind: FaultKind):
    assert own_and_other_names_say_the_same(SIZES, kind)


def test_the_same_is_said_of_shared_names_where_not_all_ranks_are_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "INSPECT_ALL_MAX", 64)
    monkeypatch.setattr(limits, "INSPECT_MAX", 64)
    assert own_and_other_names_say_the_same("tp=2,pp=2,dp=20", FaultKind.SKIP)


@pytest.mark.parametrize("text", [f"{SIZES},names=own", f"{BIG},names=own"])
def test_a_healthy_job_whose_groups_share_names_is_not_suspicious(text: str):
    fleet = Fleet(cruising(Layout.parse(text), Training(), steps=3, at_step=2))
    hearing = Hearing(fleet=fleet)
    for number in range(12):
        hearing.report(float(number))
        assert not hearing.tick(float(number)), hearing.job.suspicion
    figures = Groups(hearing.job.state.picture(11.0))
    assert figures.count == sum(map(len, fleet.still.layout.members.values()))
    assert figures.lag.tolist() == [0] * figures.count


# What the kernel says of the process that runs this test is no part of a simulated job.
AGES = ("pulse_age_s", "wait_age_s")
OF_THE_PROCESS = {"state", "ended", "stolen_ms", "queued_ms", "ran_ms", "throttled_ms", "stopped_ms", "disk_ms"}


@pytest.mark.parametrize("kind", FaultKind)
@pytest.mark.parametrize("rank", range(SMALL.world_size))
def test_what_an_agent_reads_from_the_ring_of_a_rank_is_what_its_node_reports_in_bulk(kind: FaultKind, rank: int):
    fault = drawn(kind, SMALL, courses(SMALL, Training(), 8), 6, random.Random(1))
    still = run(SMALL, Training(), (fault,), steps=8, from_step=6)
    with written(still, rank, 7.0) as ring:
        row, groups = ring.rows()
    bulk_row, bulk_groups = Fleet(still).rows(7.0, range(rank, rank + 1))
    told, bulk = dict(zip(RANK_DTYPE.names or (), row, strict=True)), bulk_row[0]
    assert [told[name] for name in AGES] == pytest.approx([bulk[name] for name in AGES], abs=0.01)
    exact = told.keys() - OF_THE_PROCESS - set(AGES)
    assert {name: told[name] for name in exact} == {name: bulk[name] for name in exact}
    assert [each[2:] for each in groups] == [each[2:] for each in bulk_groups.tolist()]
    assert [each[1] for each in groups] == pytest.approx(bulk_groups["pending_age_s"].tolist(), abs=0.01)


def test_views_travel_over_the_wire_and_are_the_same_when_they_arrive():
    views = stuck().views((3, 4, 12), 7.0)
    message = wire.decode_from_agent(wire.encode(wire.Views(index=0, ranks=views)))
    assert isinstance(message, wire.Views)
    assert message.ranks == unpacked(views)
    announced = wire.decode_from_agent(wire.encode(stuck().announce(1, "job")))
    assert isinstance(announced, wire.Announce)
    assert announced.ranks == tuple(range(8, 16))


def test_the_same_arguments_give_the_same_bytes():
    assert [stuck().digest(node, 3.0) for node in range(2)] == [stuck().digest(node, 3.0) for node in range(2)]


def test_every_axis_has_a_group_in_a_layout_that_is_parallel_in_all_ways():
    assert set(SMALL.axes) == set(AXES)


def test_a_slow_rank_is_asked_for_by_its_kind_and_by_how_much_longer_it_works():
    assert Slow.parse("slow") == Slow(kind=SlowKind.COMPUTE, share=0.2)
    assert Slow.parse("slow:data_loading:0.05") == Slow(kind=SlowKind.DATA_LOADING, share=0.05)
    for text in ("slow:network", "slow:compute:0", "slow:compute:x", "slow:compute:0.1:2"):
        with pytest.raises(ValueError, match=r"slow"):
            Slow.parse(text)


def test_ranks_are_blocked_for_what_they_do_not_work_and_only_the_slow_one_is_not():
    spans = tuple(Span(began=2.0 * n, until=2.0 * n + 2.0, step=n, pause=n == 4) for n in range(9))
    slow = Slow(kind=SlowKind.DATA_LOADING, share=0.15, rank=2, since_s=10.0)
    step_times = StepTimes(4, spans, slow, seed=3, halts=lambda _: 1)
    told = [step_times.after(step) for step in range(10)]
    blocked = np.diff([each.waited_ns / 1e9 for each in told], axis=0)  # (steps, ranks)
    assert [each.boundary for each in told] == list(range(10))
    assert np.diff([each.time_ms[0] for each in told]).tolist() == [2000] * 9
    assert blocked[4] == pytest.approx([2.0, 0.0, 2.0, 2.0])  # all wait for the one that pauses
    assert blocked[:4].mean(axis=0) == pytest.approx([0.3] * 4, abs=0.1)
    assert (blocked[5:, [0, 1, 3]] - blocked[5:, [2]]).min() > 0.1
    loading = np.diff([each.spent_ms["data_ms"] for each in told], axis=0)
    assert loading[:5].max() == loading[:, [0, 1, 3]].max() == 0
    assert loading[5:, 2] == pytest.approx([0.85 * 300 / 1.15] * 4, rel=0.1)
