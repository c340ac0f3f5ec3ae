"""What is kept of a dump of torch's Flight Recorder, and what is asked of a worker server that misbehaves."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ncclwatch.contract.model.testimony import WITNESSED_OPS_MAX, Testimony
from ncclwatch_agent.witnesses import worker_server
from ncclwatch_agent.witnesses.flight_recorder import condense
from ncclwatch_agent.witnesses.worker_server import Unheard, ask

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def entry(seq: int, record: int = -1, **more: object) -> dict[str, object]:
    """Return an entry as torch 2.13 writes it for gloo; unfinished unless told otherwise."""
    return {
        "record_id": seq - 1 if record < 0 else record, "pg_id": 0, "process_group": ["0", "default_pg"],
        "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq, "is_p2p": False, "profiling_name": "gloo:all_reduce",
        "state": "scheduled", "retired": False, "input_sizes": [[2, 3], []], "input_dtypes": ["Float"],
        "time_created_ns": 1, "time_discovered_started_ns": 0, "timeout_ms": 1000,
    } | more  # fmt: skip


def heard(entries: list[dict[str, object]], seen: dict[str, int]) -> Testimony:
    """Return what is kept of one dump."""
    return condense(3, [json.dumps({"version": "2.10", "entries": entries, "pg_status": {}}).encode()], seen)


def test_the_oldest_unfinished_collective_is_pending_and_the_newest_are_kept() -> None:
    said = heard([entry(seq, retired=seq <= 10) for seq in range(1, 13)], {"0": 12})
    (group,) = said.groups
    assert (said.rank, said.failure, group.name, group.enqueued, group.completed) == (3, "", "0", 12, 10)
    assert group.pending is not None
    assert (group.pending.seq, group.pending.name, group.pending.numel, group.pending.done) == (
        11,
        "all_reduce",
        7,
        False,
    )
    assert [op.seq for op in group.newest] == list(range(13 - WITNESSED_OPS_MAX, 13))


def test_with_nccl_the_state_says_what_is_through_and_retired_says_nothing() -> None:
    nccl = {"profiling_name": "nccl:all_reduce", "process_group": ["1", "dp"]}
    states = [("completed", False), ("started", True), ("scheduled", False)]
    said = heard([entry(n, state=s, retired=r, **nccl) for n, (s, r) in enumerate(states, 1)], {"1": 3})
    (group,) = said.groups
    assert (group.enqueued, group.started, group.completed) == (3, 2, 1)


def test_a_group_without_entries_has_issued_nothing_unless_they_may_be_overwritten() -> None:
    both = {"0": 1, "1": 0}
    assert [(g.name, g.enqueued) for g in heard([entry(1)], both).groups] == [("0", 1), ("1", 0)]
    assert [(g.name, g.enqueued) for g in heard([entry(5, record=4)], both).groups] == [("0", 5)]


@pytest.mark.parametrize(
    "second",
    [
        {"profiling_name": "nccl:send 0->1", "is_p2p": True, "p2p_seq_id": 1},
        {"profiling_name": "nccl:coalesced"},
        {"profiling_name": "nccl:all_reduce", "p2p_seq_id": 4},  # sends that are overwritten have used up numbers
        {"profiling_name": "gloo:all_reduce"},  # two backends in one group
        {"profiling_name": "nccl:all_reduce", "pg_id": 5},  # destroyed and made again
    ],
)
def test_numbers_that_other_members_count_differently_are_left_alone(second: dict[str, object]) -> None:
    said = heard([entry(1, profiling_name="nccl:all_reduce"), entry(2, **second)], {"0": 2})
    assert (said.groups, said.failure) == ((), "")


def test_sends_over_gloo_use_up_no_number() -> None:
    said = heard([entry(1), entry(0, record=1, profiling_name="gloo:send", is_p2p=True), entry(2)], {"0": 2})
    assert [group.enqueued for group in said.groups] == [2]


@pytest.mark.parametrize("data", [b"", b"pong", b'{"entries": 3}', b'{"entries": [{"pg_id": 1}]}', b"[" * 5000])
def test_what_is_no_dump_is_told_as_a_failure(data: bytes) -> None:
    said = condense(0, [data], {"0": 1})
    assert said.groups == ()
    assert "no dump of the recorder" in said.failure


def test_a_recorder_that_is_off_is_no_witness_that_nothing_was_issued() -> None:
    assert "TORCH_FR_BUFFER_SIZE" in heard([], {"0": 4}).failure
    assert heard([], {"0": 0}).failure == ""


def served(tmp_path: Path, answer: Answer, deadline_s: float = 20.0) -> bytes | None:
    """Ask a server that answers so, once."""
    path = str(tmp_path / "w.sock")

    async def run() -> bytes | None:
        async with await asyncio.start_unix_server(answer, path):
            return await ask(path, "fr_trace_json", deadline_s)

    return asyncio.run(run())


def says(data: bytes) -> Answer:
    """Return a server that hears the request and says this."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"POST /handler/fr_trace_json HTTP/1.1\r\n")
        writer.write(data)
        writer.close()

    return answer


def test_an_answer_is_as_long_as_it_says(tmp_path: Path) -> None:
    assert served(tmp_path, says(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{} \nmore")) == b"{} \n"
    assert served(tmp_path, says(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")) is None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n", "HTTP 500"),
        (b"220 smtp ready\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", "how long"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "longer than"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "hung up"),
        (b"x" * (worker_server.HEAD_BYTES_MAX + 10), "no HTTP"),
        (b"", "hung up"),
    ],
)
def test_an_answer_that_is_none_is_a_sentence(tmp_path: Path, data: bytes, why: str) -> None:
    with pytest.raises(Unheard, match=why):
        served(tmp_path, says(data))


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the other side gives up
        writer.close()

    with pytest.raises(Unheard, match=r"within 0\.2 s"):
        served(tmp_path, answer, deadline_s=0.2)


def test_where_nobody_listens_there_is_no_worker_server(tmp_path: Path) -> None:
    with pytest.raises(Unheard, match="no worker server"):
        asyncio.run(ask(str(tmp_path / "none.sock"), "ping", 5.0))
