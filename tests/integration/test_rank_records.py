"""A real job's operations are in the ring, each once, with the sequence numbers of torch's own recorder."""

import json
from pathlib import Path

import pytest

from tests.integration.launch import run_ranks

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory):
    ranks = run_ranks("everything.py", 2, tmp_path_factory.mktemp("ring"), "before")
    assert [rank.code for rank in ranks] == [0, 0], ranks[0].err + ranks[1].err
    return json.loads(ranks[0].out.splitlines()[-1])


def _ops(recorded, name: str) -> list[str]:
    return [event[2] for event in recorded["found"][name]]


@pytest.mark.parametrize(
    ("way", "operations"),
    [
        ("all_reduce", [["0", 1, "all_reduce", 4, "float32", "max", -1]]),
        ("barrier", [["0", 2, "barrier", 0, "", "", -1]]),
        ("broadcast", [["0", 3, "broadcast", 4, "float32", "", 1]]),
        ("p2p", [["0", 1, "send", 4, "float32", "", 1]]),
    ],
)
def test_an_operation_is_recorded_once_with_its_signature(recorded, way: str, operations: list[object]):
    assert recorded["found"][way] == operations


@pytest.mark.parametrize(
    ("way", "operations"),
    [
        ("all_gather_object", ["all_gather", "all_gather"]),
        ("broadcast_object_list", ["broadcast", "broadcast"]),
        ("ddp init", ["all_gather", "broadcast", "broadcast"]),
        ("ddp backward", ["all_reduce"]),
        ("functional", ["all_reduce"]),
        ("dtensor", ["scatter", "all_gather"]),
        ("fsdp2", ["all_gather", "reduce_scatter"]),
        ("async", ["all_reduce"]),
    ],
)
def test_what_python_and_c_plus_plus_issue_is_seen_and_counted_once(recorded, way: str, operations: list[str]):
    assert _ops(recorded, way) == operations


def test_a_checkpoint_save_is_seen_as_the_collectives_it_is_made_of(recorded):
    assert {"gather", "scatter", "broadcast"} <= set(_ops(recorded, "dcp"))
    assert len(_ops(recorded, "dcp")) >= 6


def test_fsdp1_is_seen_in_forward_and_backward(recorded):
    assert {"all_gather", "reduce_scatter"} <= set(_ops(recorded, "fsdp1"))


def test_sequence_numbers_agree_with_torchs_flight_recorder(recorded):
    if not recorded["witness"]:
        pytest.skip("the flight recorder of this torch knows nothing of gloo")
    assert {name: enqueued for name, (enqueued, _) in recorded["frontier"].items()} == recorded["witness"]


def test_everything_is_complete_and_nobody_waits_at_the_end(recorded):
    assert all(enqueued == completed for enqueued, completed in recorded["frontier"].values())
    assert recorded["waits"] == "[None]"


def test_call_sites_are_the_users_own_lines(recorded):
    assert recorded["sites"] == ["everything.py"]


def test_attach_after_init_continues_torchs_own_count(tmp_path: Path):
    ranks = run_ranks("everything.py", 2, tmp_path, "after")
    assert [rank.code for rank in ranks] == [0, 0], ranks[0].err
    recorded = json.loads(ranks[0].out.splitlines()[-1])
    assert recorded["found"]["all_reduce"][0][:3] == ["0", 2, "all_reduce"]
    if recorded["witness"]:  # torch 2.8 or newer
        assert recorded["frontier"]["0"][0] == recorded["witness"]["0"]


def test_each_groups_own_timeout_is_in_the_ring_also_when_it_changes(tmp_path: Path):
    ranks = run_ranks("limits.py", 1, tmp_path)
    assert ranks[0].code == 0, ranks[0].err
    assert json.loads(ranks[0].out.splitlines()[-1]) == [[20_000, 7_000], [20_000, 90_000]]


def test_a_monitored_barrier_that_was_given_up_is_over_and_was_made(tmp_path: Path):
    ranks = run_ranks("given_up.py", 2, tmp_path)
    assert ranks[0].code == 0, ranks[0].err
    error, progress = json.loads(ranks[0].out.splitlines()[-1])
    assert "failed to pass monitoredBarrier" in error
    assert progress == [2, 2]
