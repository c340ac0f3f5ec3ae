"""How far a group on a GPU is, by the flight recorder's account; dumps in the layout of torch's FlightRecorder.hpp."""

import json
from pathlib import Path

import pytest

from ncclwatch.contract.model import Op
from ncclwatch.contract.ring import OPS
from ncclwatch.rank.device_progress import DeviceProgress
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ringfile import RingFile

ALL_REDUCE = OPS.index(Op.ALL_REDUCE)


class Backend:
    """A flight recorder whose account the test writes."""

    def __init__(self) -> None:
        self.completed = {"0": 0, "7": 0}
        self.names = {"0": "0", "7": "3"}
        self.full_dumps = 0

    def dump(self, entries: bool) -> str:
        self.full_dumps += entries
        status = {number: {"last_completed_collective": str(done)} for number, done in self.completed.items()}
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


def test_a_number_beyond_what_was_issued_or_a_step_back_is_not_believed(recorder: Recorder):
    group, backend = issue(recorder, "0", 5), Backend()
    progress = DeviceProgress(recorder, backend.dump)
    for done, expected in ((4, 4), (9, 4), (2, 4), (5, 5)):
        backend.completed["0"] = done
        progress.look()
        assert group.completed == expected


def test_a_job_without_a_gpu_never_asks(recorder: Recorder):
    issue(recorder, "0", 5, on_device=False)

    def dump(entries: bool) -> str:
        raise AssertionError("asked")

    DeviceProgress(recorder, dump).look()
