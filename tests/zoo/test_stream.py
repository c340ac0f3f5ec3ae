"""The stream backend behaves as NCCL does, both recorders see what runs on it, and the verdicts on it are right."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ncclwatch.contract.ring.layout import PeerFlag, waited_span
from tests.integration.launch import PROGRAMS, run_ranks
from tests.integration.recorders import recorded_by

from . import stream
from .runner import run
from .truth import Backend, Truth, load_all

PROGRAM = os.path.relpath(stream.RUN, PROGRAMS)
# One of each kind: the line of the hang left behind, in the same function or far away; a
# rank that never came, stopped or stuck; and healthy ones. `python -m tests.zoo.runner --backend stream` runs all.
# z25 (two groups in the other order) is not among them: on a busy machine all four ranks are named for it, not two.
TRUTHS = load_all(("z00", "z01", "z01b", "z05", "z09", "z16", "f01", "f06", "c01", "c02"))
LIMIT_S = 60 + max(truth.timeout_s for truth in TRUTHS)
BUILD_S = 900


@pytest.fixture(scope="module", params=["python", "hot", "native"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    program = str(stream.RUN.with_name("semantics.py"))
    environment = {**stream.environment(), **recorded_by(request.param)}
    finished = run_ranks(PROGRAM, 2, tmp_path_factory.mktemp("rings"), program, **environment)
    assert [rank.code for rank in finished] == [0, 0], finished[0].err + finished[1].err
    found = [json.loads(rank.out.splitlines()[-1]) for rank in finished]
    assert {rank["recorder"] for rank in found} == {"NativeRecorder" if request.param == "native" else "Recorder"}
    return found


def _waited(row: list[int]) -> tuple[list[int], list[int]]:
    """Return the sends and the recvs of a row of p2p counters that count as waited for."""
    if not row:
        return [], []
    _, _, sends, _, recvs, _, _, *words = row
    (first, last), (first_recv, last_recv) = map(waited_span, words, (sends, recvs))
    return list(range(first, last + 1)), list(range(first_recv, last_recv + 1))


@pytest.mark.integration
@pytest.mark.timeout(BUILD_S)
class TestSemantics:
    def test_a_call_returns_when_it_is_enqueued_and_reading_waits(self, ranks: list[dict[str, Any]]) -> None:
        early = ranks[0]["one_call"]
        assert early["issued_s"] < 0.5 < early["read_s"]
        assert [rank["one_call"]["value"] for rank in ranks] == [3.0, 3.0]

    def test_wait_orders_the_streams_of_two_groups_and_nothing_else_does(self, ranks: list[dict[str, Any]]) -> None:
        assert ranks[0]["beside_s"] < 0.8 < ranks[0]["behind_s"]

    def test_it_is_recorded_as_unfinished_until_the_stream_has_run_it(self, ranks: list[dict[str, Any]]) -> None:
        early = ranks[0]["one_call"]
        assert (early["during"], early["after"], early["asynchronous"]) == ([1, 0], [1, 1], True)
        assert all(enqueued == completed for enqueued, completed in (rank["after"] for rank in ranks))

    def test_it_is_recorded_what_comes_before_all_that_follows(self, ranks: list[dict[str, Any]]) -> None:
        assert [rank["in_order"] for rank in ranks] == [[True, False, False]] * 2

    def test_objects_and_batches_of_p2p_work_on_it(self, ranks: list[dict[str, Any]]) -> None:
        gathered = [{"rank": 0}, {"rank": 1}]
        assert [rank["objects"] for rank in ranks] == [[gathered, [1.0, 1.0]], [gathered, [0.0, 0.0]]]

    def test_it_is_recorded_which_messages_are_through_and_which_the_device_is_in(
        self, ranks: list[dict[str, Any]]
    ) -> None:
        """Peer, then sends, sends through, recvs, recvs through, flags."""
        told, receiving = PeerFlag.TOLD, PeerFlag.TOLD | PeerFlag.RECEIVING
        first, second = ({at: row[1:7] for at, row in rank["messages"].items()} for rank in ranks)
        assert first["batched"] == [1, 1, 1, 1, 1, told]
        assert (first["alone"], second["alone"]) == ([1, 2, 2, 1, 1, told], [0, 1, 1, 2, 2, told])
        assert (first["beside"], second["beside"]) == ([1, 3, 3, 1, 1, told], [0, 1, 1, 3, 3, told])
        assert (first["waits"], first["after"]) == ([1, 3, 3, 2, 1, receiving], [1, 3, 3, 2, 2, told])

    def test_it_is_recorded_which_messages_have_been_waited_for(self, ranks: list[dict[str, Any]]) -> None:
        """Sends and recvs. Where it was issued before a collective, and waited for after that, it does not count."""
        first, second = ({at: _waited(row) for at, row in rank["messages"].items()} for rank in ranks)
        assert first["batched"] == second["batched"] == ([1], [1])
        if ranks[0]["recorder"] != "NativeRecorder":  # Python may give a work that nobody holds another address
            return
        assert (first["alone"], second["alone"]) == (([1, 2], [1]), ([1], [1, 2]))
        assert (first["beside"], second["beside"]) == (([], [1]), ([1], []))
        assert first["waits"] == first["after"] == ([], [1, 2])

    def test_a_forked_child_waits_for_no_stream(self, ranks: list[dict[str, Any]]) -> None:
        assert [rank["forked"] for rank in ranks] == [7, 7]


@pytest.mark.zoo
@pytest.mark.timeout(LIMIT_S + BUILD_S)
@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth.program.stem)
def test_the_verdict_is_right_where_hosts_run_ahead(truth: Truth, tmp_path: Path) -> None:
    assert run(truth, tmp_path / "job", Backend.STREAM).faults == ()
