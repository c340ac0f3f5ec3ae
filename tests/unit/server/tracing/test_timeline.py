"""A trace of a job: where operations begin and end, which are linked, whom it shows, and the file that is written."""

from dataclasses import replace

import numpy as np
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from ncclwatch.contract.model.rank import (
    CallSite,
    GroupView,
    Op,
    OpView,
    RankView,
    SaveView,
    ThreadView,
    WaitKind,
    WaitView,
)
from ncclwatch.contract.model.verdict import Culprit
from ncclwatch_server.incidents.book import Incident, IncidentState
from ncclwatch_server.jobs.rank_states import RankState
from ncclwatch_server.tracing.model import Slice, Timeline, Track
from ncclwatch_server.tracing.operations import Seen
from ncclwatch_server.tracing.perfetto import encode
from ncclwatch_server.tracing.timeline import RANKS_MAX, History, Known, chosen, history_of, timeline
from tests.unit.server.server_values import KEY, VERDICT, view

SITE = CallSite(file="/u/train.py", line=44, function="step")
NOW = 1000.0


def op(number: int, at_s: float, kind: Op = Op.ALL_REDUCE, *, completed: bool = True, batch: int = 0) -> OpView:
    return OpView(
        group="dp", seq=number, op=kind, dtype="float32", numel=8, site=SITE, thread=7, batch=batch,
        completed=completed, in_order=True, number=number, age_s=NOW - at_s,
    )  # fmt: skip


def rank(number: int, *ops: OpView, host: str = "h", waits: int = 0, members: int = 2) -> RankView:
    group = GroupView(
        name="dp", desc="", ranks=tuple(range(members)), enqueued=len(ops), completed=len(ops), prefix_hash=0,
        size=members,
    )  # fmt: skip
    wait = WaitView(kind=WaitKind.COLLECTIVE, age_s=1.0, group="dp", seq=waits, op=Op.ALL_REDUCE) if waits else None
    thread = ThreadView(tid=7, main=True, issued=len(ops), wait=wait)
    return replace(view(number), host=host, history=ops, groups=(group,), threads=(thread,))


def known(*views: RankView, **changes: object) -> Known:
    found = Known(
        job="llm", world_size=len(views), views=views, now_s=NOW, hosts={each.rank: each.host for each in views},
        seen={each.rank: Seen(at_s=NOW, clock=each.host) for each in views},
    )  # fmt: skip
    return replace(found, **changes)  # type: ignore[arg-type]


def track(found: Timeline, rank_number: int, name: str) -> Track:
    (mine,) = (each for each in found.ranks if each.rank == rank_number)
    return next(each for each in mine.tracks if each.name == name)


def incident(culprit: int = 1) -> Incident:
    return Incident(
        id="i", key=KEY, job="llm", world_size=2, state=IncidentState.OPEN, onset_to_open_s=3.0, opened_at=NOW - 2.0,
        verdict=replace(VERDICT, culprits=(Culprit(rank=culprit),)),
    )  # fmt: skip


def test_an_operation_lasts_until_the_last_member_has_come_and_says_who_that_was():
    early, late = rank(0, op(1, 900.0), op(2, 910.0)), rank(1, op(1, 903.0), op(2, 910.5))
    found = timeline(known(early, late))
    first, second = track(found, 0, "operations").slices
    assert (first.begin_s, first.end_s, first.name) == (900.0, pytest.approx(903.0), "all_reduce #1")
    assert ("last to come", "rank 1, 3.000000 s after") in first.facts
    assert second.end_s == pytest.approx(910.5)
    mine = track(found, 1, "operations").slices
    assert mine[0].begin_s == mine[0].end_s == pytest.approx(903.0)
    assert mine[0].flow == first.flow != second.flow


def test_what_a_rank_hangs_in_lasts_until_now():
    found = timeline(known(rank(0, op(1, 900.0), op(2, 990.0, completed=False), waits=2), rank(1, op(1, 900.5))))
    (_, hang) = track(found, 0, "operations").slices
    assert (hang.kind, hang.end_s) == ("hang", NOW)
    assert ("members known", "1 of 2") in hang.facts


def test_clocks_of_two_hosts_are_aligned_and_the_error_is_stated():
    here = rank(0, op(1, 900.0), op(2, 910.0), op(3, 920.0))
    there = rank(1, op(1, 400.1), op(2, 410.1), op(3, 420.1), host="g")
    found = timeline(known(here, there))
    clock = dict(found.clocks)["g"]
    assert clock.error_s is not None
    assert abs(clock.offset_s - 499.9) <= clock.error_s + 0.2
    assert any("the clock of g is aligned by" in note for note in found.notes)
    assert abs(track(found, 1, "operations").slices[0].begin_s - 900.0) <= clock.error_s + 0.2


def test_sends_and_what_may_leave_early_bind_no_clocks_and_are_not_linked():
    here = rank(0, op(1, 900.0, Op.SEND), op(1, 901.0, Op.BROADCAST), op(2, 902.0, Op.ALL_TO_ALL))
    there = rank(1, op(1, 400.0, Op.RECV), op(1, 401.0, Op.BROADCAST), op(2, 402.0, Op.ALL_TO_ALL), host="g")
    found = timeline(known(here, there))
    assert dict(found.clocks)["g"].error_s is None
    assert track(found, 0, "operations").slices[0].flow == 0


def test_batches_phases_and_saves_are_rows_of_their_own():
    save = SaveView(call="torch.save", path="/ckpt/1", tid=7, began_s=5.0, ended_s=2.0)
    mine = rank(0, op(1, 900.0, batch=4), op(2, 901.0, batch=4), op(3, 905.0, batch=5))
    found = timeline(known(replace(mine, saves=(save,)), rank(1)))
    drawn = [(each.name, each.begin_s, each.end_s) for each in track(found, 0, "batches").slices]
    assert drawn == [("batch 4", 900.0, 905.0), ("batch 5", 905.0, NOW)]
    (saved,) = track(found, 0, "phases and saves").slices
    assert (saved.begin_s, saved.end_s, saved.name) == (NOW - 5.0, NOW - 2.0, "torch.save")


def test_states_are_runs_and_who_was_not_seen_is_left_out():
    absent, moving, frozen = RankState.ABSENT, RankState.MOVING, RankState.FROZEN
    columns = [
        (990.0 + number, bytes([state, moving])) for number, state in enumerate((absent, moving, moving, frozen))
    ]
    found = timeline(known(rank(0), rank(1), history=history_of(columns)))
    mine = [(each.name, each.begin_s, each.end_s) for each in track(found, 0, "state").slices]
    assert mine == [("communicates", 991.0, 993.0), ("stopped", 993.0, 994.0)]


def test_of_many_ranks_those_that_matter_are_shown():
    states = np.full((5, 1000), RankState.MOVING, np.uint8)
    states[3:, 700] = RankState.FROZEN
    states[3:, 800:810] = RankState.WAITING
    hosts = {number: f"h{number // 100}" for number in range(1000)}
    many = Known(
        job="j", world_size=1000, views=(), seen={}, now_s=NOW, hosts=hosts, incidents=(incident(999),),
        history=History(at_s=tuple(range(5)), states=states),
    )  # fmt: skip
    shown = chosen(many, [999], most=40)
    assert len(shown) == 40
    assert {999, 700, *range(800, 810), *range(0, 1000, 100)} <= set(shown)
    assert any("744 of 1000 ranks are left out" in note for note in timeline(many).notes)


def test_the_file_is_read_back_as_it_was_meant():
    early, late = rank(0, op(1, 900.0), op(2, 910.0)), rank(1, op(1, 903.0), op(2, 910.5))
    columns = [(990.0 + number, bytes([RankState.MOVING, RankState.WAITING])) for number in range(3)]
    found = timeline(known(early, late, incidents=(incident(),), history=history_of(columns)))
    trace = Trace()
    trace.ParseFromString(encode(found))
    names, tracks, depth, last, flows = {}, {}, {}, {}, {}
    for packet in trace.packet:
        names.update((entry.iid, entry.name) for entry in packet.interned_data.event_names)
        if packet.HasField("track_descriptor"):
            described = packet.track_descriptor
            assert not described.HasField("parent_uuid") or described.parent_uuid in tracks
            assert described.uuid not in tracks
            tracks[described.uuid] = described.name
        if packet.HasField("track_event"):
            event = packet.track_event
            assert event.track_uuid in tracks
            assert packet.timestamp >= last.get(event.track_uuid, 0)  # in order: so slices do not overlap
            last[event.track_uuid] = packet.timestamp
            depth.setdefault(event.track_uuid, 0)
            depth[event.track_uuid] += {TrackEvent.TYPE_SLICE_BEGIN: 1, TrackEvent.TYPE_SLICE_END: -1}.get(
                event.type, 0
            )
            assert depth[event.track_uuid] in (0, 1)
            for flow in event.flow_ids:
                flows.setdefault(flow, []).append(names[event.name_iid])
    assert set(depth.values()) == {0}
    assert "rank 1 on h: culprit" in tracks.values()
    assert "host h" in tracks.values()
    assert sorted(flows.values()) == [["all_reduce #1"] * 2, ["all_reduce #2"] * 2]
    assert VERDICT.summary in names.values()


def test_hostile_names_are_spelt_out_in_the_file():
    evil = Slice(begin_s=1.0, end_s=2.0, name="a\u202eb\x1b[31m", kind="incident", facts=(("why", "\x00"),))
    data = encode(Timeline(job="j\u202e", ranks=(), incidents=(evil,), clocks=(), notes=()))
    assert "\u202e".encode() not in data
    assert b"\x1b[31m" not in data


def test_a_ring_that_says_an_absurd_number_of_ranks_costs_no_memory():
    found = timeline(known(rank(0, op(1, 1.0)), world_size=2**31))
    assert len(found.ranks) == RANKS_MAX
    assert found.notes[0].startswith(f"{2**31 - RANKS_MAX} of {2**31} ranks are left out: 256-")
