"""How far a group on a GPU is, by the flight recorder's account; dumps in the layout of torch's FlightRecorder.hpp."""

import json
from pathlib import Path

import pytest

from ncclwatch.contract.model.rank import Op, WaitKind
from ncclwatch.contract.ring.layout import OPS, Flag
from ncclwatch.rank.device.progress import DeviceProgress
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile

ALL_REDUCE = OPS.index(Op.ALL_REDUCE)


class Backend:
    """A flight recorder whose account the test writes."""

    def __init__(self) -> None:
        self.completed = {"0": 0, "7": 0}
        self.enqueued = {"0": 5, "7": 9}
        self.names = {"0": "0", "7": "3"}
        self.full_dumps = 0

    def dump(self, entries: bool) -> str:
        self.full_dumps += entries
        status = {
            number: {"last_enqueued_collective": str(self.enqueued[number]), "last_completed_collective": str(done)}
            for number, done in self.completed.items()
        }
        found = [{"pg_id": int(number), "process_group": [name, "desc"]} for number, name in self.names.items()]
        return json.dumps({"pg_status": status} | ({"entries": found} if entries else {}))


@pytest.fixture
def recorder(tmp_path: Path):
    ring = RingFile(str(tmp_path / "0-1.ring"), rank=0, local_rank=0, world=(2, 2), attempt=0)
    yield Recorder(ring)
    ring.close()


def issue(recorder: Recorder, name: str, count: int, *, on_device: bool = True):
    group = recorder.groups.get(name) or recorder.add_group(name, "", [0, 1], 0)
    group.on_device = on_device
    for _ in range(count):
        recorder.issue(group, ALL_REDUCE, 4, (-1, 1, 1), 0)
    return group


def test_completion_is_what_the_backend_says_for_the_group_of_that_name(recorder: Recorder):
    first, other, backend = issue(recorder, "0", 5), issue(recorder, "3", 9), Backend()
    backend.completed = {"0": 4, "7": 6}
    DeviceProgress(recorder, backend.dump).look()
    assert (first.completed, other.completed) == (4, 6)


def test_the_entries_are_asked_for_once_and_not_at_every_pulse(recorder: Recorder):
    group, backend = issue(recorder, "0", 5), Backend()
    progress = DeviceProgress(recorder, backend.dump)
    for done in (1, 2, 3):
        backend.completed["0"] = done
        progress.look()
    assert (group.completed, backend.full_dumps) == (3, 1)


def test_no_entries_are_asked_for_while_a_cuda_graph_is_captured(recorder: Recorder):
    group, backend = issue(recorder, "0", 5), Backend()
    backend.completed["0"] = 3
    progress, seen = DeviceProgress(recorder, backend.dump), []
    for captures in (1, 0):
        recorder.captures = captures
        progress.look()
        seen.append((group.completed, backend.full_dumps))
    assert seen == [(0, 0), (3, 1)]


def test_an_account_that_steps_back_is_not_believed(recorder: Recorder):
    group, backend = issue(recorder, "0", 5), Backend()
    progress = DeviceProgress(recorder, backend.dump)
    for done, expected in ((4, 4), (2, 4), (5, 5)):
        backend.completed["0"] = done
        progress.look()
        assert group.completed == expected


def test_what_counts_is_how_many_are_outstanding_not_how_the_backend_numbers_them(recorder: Recorder):
    group, backend = issue(recorder, "0", 5), Backend()
    backend.enqueued["0"], backend.completed["0"] = 1007, 1005
    DeviceProgress(recorder, backend.dump).look()
    assert group.completed == 3


def test_what_a_graph_captured_is_not_waited_for(recorder: Recorder):
    group, backend = issue(recorder, "0", 5), Backend()
    backend.enqueued["0"] = backend.completed["0"] = 2  # three were captured: never enqueued
    DeviceProgress(recorder, backend.dump).look()
    assert group.completed == 5


def test_the_account_of_a_group_with_p2p_tells_nothing(recorder: Recorder):
    group, backend = issue(recorder, "0", 5), Backend()
    progress = DeviceProgress(recorder, backend.dump)
    backend.completed["0"] = 3
    progress.look()
    recorder.issue(group, OPS.index(Op.SEND), 4, (1, 1, 0), 0)
    backend.completed["0"] = 5
    progress.look()
    assert (group.completed, group.flags & Flag.BLIND) == (3, Flag.BLIND)


def test_an_account_that_cannot_be_tells_nothing(recorder: Recorder):
    group, backend = issue(recorder, "0", 5), Backend()
    backend.enqueued["0"], backend.completed["0"] = 1, 4
    DeviceProgress(recorder, backend.dump).look()
    assert (group.completed, group.flags & Flag.BLIND) == (0, Flag.BLIND)


def test_what_is_issued_while_the_account_is_taken_is_not_complete(recorder: Recorder):
    group, backend = issue(recorder, "0", 5), Backend()

    def dump(entries: bool) -> str:
        backend.enqueued["0"], backend.completed["0"] = 5, 5
        account = backend.dump(entries)
        issue(recorder, "0", 1)
        return account

    DeviceProgress(recorder, dump).look()
    assert (group.enqueued, group.completed) == (7, 5)  # the names were asked for as well


def test_what_is_inside_its_call_is_not_taken_for_enqueued(recorder: Recorder):
    """Where the device's queue is full, the host stays in the call of an operation that NCCL has not counted yet."""
    group, backend = issue(recorder, "0", 5), Backend()
    backend.completed["0"] = 2
    progress = DeviceProgress(recorder, backend.dump)
    progress.look()
    recorder.enter(WaitKind.COLLECTIVE, 0, recorder.issue(group, ALL_REDUCE, 4, (-1, 1, 1), 0))
    progress.look()
    assert (group.enqueued, group.completed) == (6, 2)
    backend.enqueued["0"] = 6  # now it is: the same thread waits for it
    backend.completed["0"] = 5
    progress.look()
    assert group.completed == 5


def test_before_a_first_quiet_moment_what_is_inside_its_call_counts_as_outstanding(recorder: Recorder):
    group, backend = issue(recorder, "0", 5), Backend()
    backend.enqueued["0"], backend.completed["0"] = 4, 4
    recorder.enter(WaitKind.COLLECTIVE, 0, recorder.newest())
    DeviceProgress(recorder, backend.dump).look()
    assert group.completed == 4


def test_before_a_first_quiet_moment_what_nccl_has_counted_is_not_counted_again(recorder: Recorder):
    """A job whose host stands in a barrier from its second operation on, between two looks of the pulse."""
    group, backend = issue(recorder, "0", 5), Backend()
    backend.completed["0"] = 4
    recorder.enter(WaitKind.COLLECTIVE, 0, recorder.newest())
    DeviceProgress(recorder, backend.dump).look()
    assert group.completed == 4


def test_a_group_made_again_under_its_name_goes_by_its_newest_account(recorder: Recorder):
    group, backend = issue(recorder, "0", 5), Backend()
    backend.names = {"0": "0", "7": "0"}
    backend.completed = {"0": 5, "7": 6}
    DeviceProgress(recorder, backend.dump).look()
    assert group.completed == 2


def test_nobody_knows_what_is_complete_before_the_first_account_and_after_the_last(recorder: Recorder):
    group, backend = issue(recorder, "0", 5), Backend()
    group.by_account = True
    recorder.flag(group, Flag.ASYNC | Flag.BLIND)
    progress, seen = DeviceProgress(recorder, backend.dump), []
    for step in (lambda: None, progress.look, progress.give_up):
        step()
        seen.append(group.flags)
    assert seen == [Flag.ASYNC | Flag.BLIND, Flag.ASYNC, Flag.ASYNC | Flag.BLIND]


def test_a_job_without_a_gpu_never_asks(recorder: Recorder):
    issue(recorder, "0", 5, on_device=False)

    def dump(entries: bool) -> str:
        raise AssertionError("asked")

    DeviceProgress(recorder, dump).look()
