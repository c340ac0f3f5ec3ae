"""NCCL as ncclwatch assumes it to be: each assumption is written down where it is used, and tried here on a GPU.

One GPU is enough for most: a group of one rank runs the same code of torch's up to the kernel.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ncclwatch.native import build
from tests.integration.launch import PROGRAMS, Finished, run_ranks

pytestmark = pytest.mark.timeout(600)
PROGRAM = os.path.relpath(Path(__file__).with_name("program.py"), PROGRAMS)
DUPLICATE = ("duplicate gpu", "multiple ranks are using the same gpu")  # before and since NCCL 2.30

# The ops that NCCL's flight recorder names otherwise than users do. A barrier is an all_reduce of one element.
THEIR_NAMES = {
    "nccl:_all_gather_base": "all_gather",
    "nccl:_reduce_scatter_base": "reduce_scatter",
    "nccl:all_reduce_barrier": "barrier",
}


@pytest.fixture(params=["python", "native"])
def recorder(request: pytest.FixtureRequest) -> str:
    """Both recorders, since each has its own way of seeing to works."""
    if request.param == "native":
        try:
            build.build()
        except build.NativeError as error:
            pytest.skip(f"the native recorder cannot be built here: {error}")
    return str(request.param)


def ranks_of(check: str, recorder: str, directory: Path, count: int = 1) -> list[Finished]:
    native = "1" if recorder == "native" else "0"
    return run_ranks(PROGRAM, count, directory, check, NCCLWATCH_NATIVE=native, TORCH_FR_BUFFER_SIZE="2000")


def found_by(check: str, recorder: str, directory: Path, count: int = 1) -> list[dict[str, Any]]:
    ranks = ranks_of(check, recorder, directory, count)
    assert [rank.code for rank in ranks] == [0] * count, ranks[0].err
    return [json.loads(rank.out.splitlines()[-1]) for rank in ranks]


def test_a_call_returns_when_it_is_enqueued_and_the_account_says_when_it_is_complete(recorder: str, tmp_path: Path):
    (found,) = found_by("completion", recorder, tmp_path)
    assert found["first"] == [1, 1]
    assert found["call_s"] < 0.5  # attach() adds no synchronisation
    assert found["during"] == [2, 1]
    assert found["after"] == [2, 2]
    assert (found["asynchronous"], found["blind"]) == (True, False)


def test_the_pulse_sees_the_call_in_which_a_host_waits_for_its_device(recorder: str, tmp_path: Path):
    (found,) = found_by("standing", recorder, tmp_path)
    assert found["call"] in ("item", "")  # "": Python 3.10 keeps no positions


def test_no_tensor_lives_longer_for_being_watched(recorder: str, tmp_path: Path):
    (found,) = found_by("memory", recorder, tmp_path)
    assert found["at_once"] == found["before"]
    assert found["held"] == 0


def test_a_cuda_graph_can_be_captured_while_the_pulse_runs(recorder: str, tmp_path: Path):
    (found,) = found_by("capture", recorder, tmp_path)
    assert found["value"] == 3.0
    enqueued, completed = found["after"]
    assert enqueued == completed  # a captured collective is never enqueued, and nobody waits for it


def test_the_recorded_operations_are_those_of_nccls_own_flight_recorder(recorder: str, tmp_path: Path):
    (found,) = found_by("recorded", recorder, tmp_path)
    theirs = [THEIR_NAMES.get(name, name.removeprefix("nccl:")) for name in found["theirs"]]
    assert found["ours"] == theirs
    assert found["after"][0] == found["after"][1]


def test_two_ranks_on_one_gpu_get_nccls_own_error_and_no_hang(recorder: str, tmp_path: Path):
    texts = [rank["error"].lower() for rank in found_by("duplicate", recorder, tmp_path, count=2)]
    assert any(words in text for text in texts for words in DUPLICATE), texts


@pytest.mark.gpus(2)
def test_a_rank_that_waits_has_gone_past_its_collective(recorder: str, tmp_path: Path):
    waits, late = found_by("absent", recorder, tmp_path, count=2)
    assert waits["call_s"] < 0.5
    assert waits["during"] == [2, 1]
    assert waits["value"] == late["value"]
    assert waits["after"] == [2, 2]


def test_a_device_is_known_by_the_uuid_that_nvml_has_for_it_and_cuda_is_not_begun_for_that(
    recorder: str, tmp_path: Path
):
    (found,) = found_by("devices", recorder, tmp_path)
    assert found["began"] is False  # attach() begins no CUDA
    assert (found["before"]["chosen"], found["before"]["used"]) == (0, False)
    assert (found["after"]["index"], found["after"]["used"]) == (0, True)
    assert found["failure"] == ""
    assert found["after"]["uuid"] in found["node"]


def test_two_ranks_on_one_gpu_are_known_to_be_before_nccl_refuses(recorder: str, tmp_path: Path):
    one, other = found_by("duplicate", recorder, tmp_path, count=2)
    assert one["before"]["uuid"] == other["before"]["uuid"] != ""
    assert one["after"]["used"] and other["after"]["used"]


def test_the_state_of_a_device_too_many_is_told_and_the_remedy_restores_the_others(recorder: str, tmp_path: Path):
    (found,) = found_by("random_states", recorder, tmp_path)
    assert found["error"] == "IndexError"
    assert found["told"] == [found["count"] + 1, found["count"]]
    assert found["again"] == found["drawn"]
    assert (found["left_over"], found["seeded"]) == (1, 0)
