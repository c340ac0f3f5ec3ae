"""How NCCL's RAS is asked and understood, against a small server that speaks as the NCCL User Guide says."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable

import pytest

from ncclwatch.contract.model.testimony import CommRank, Communicator
from ncclwatch_agent.witnesses import nccl_ras
from ncclwatch_agent.witnesses.nccl_ras import Silent, ask, communicators

COUNTS = {"Broadcast": 1, "Reduce": 0, "AllGather": 2, "ReduceScatter": 0, "AllReduce": 50}
# The sample of the User Guide with other counts and one more rank.
STATUS = {
    "nccl_version": "2.29.1", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
    "timestamp": "2025-12-19 13:06:53", "communicators_count": 1,
    "communicators": [{
        "hash": "0xae94423cfbb2ef4a", "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
        "size": 2, "ranks_count": 1, "missing_ranks_count": 1,
        "ranks": [{
            "rank": 0, "host": "172.16.64.245", "pid": 1524344, "cuda_dev": 0, "nvml_dev": 0,
            "status": {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False,
                       "abort_flag": False},
            "collective_counts": COUNTS,
        }],
        "missing_ranks": [{
            "rank": 1, "host": "172.16.64.245", "pid": 1524345, "cuda_dev": 1, "nvml_dev": 1,
            "status": {"unresponsive": True, "considered_dead": False},
        }],
    }],
    "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
}  # fmt: skip
KEPT = Communicator(
    size=2, ranks=(CommRank(rank=0, pid=1524344, launched=53), CommRank(rank=1, pid=1524345, launched=0, missing=True))
)
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def ras(status: bytes, knows_json: bool = True, heard: list[str] | None = None) -> Serve:
    """Return a server that answers line by line as RAS does, and hangs up after its status."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := (await reader.readline()).decode().strip():
            if heard is not None:
                heard.append(line)
            verb = line.upper()
            if verb.startswith("CLIENT PROTOCOL "):
                writer.write(b"SERVER PROTOCOL 2\n")
            elif verb.startswith("TIMEOUT ") or (verb == "SET FORMAT JSON" and knows_json):
                writer.write(b"OK\n")
            elif verb == "STATUS":
                writer.write(status)
                break
            else:
                writer.write(f"ERROR: Unknown command {line}\n".encode())
        writer.close()

    return serve


def asked(serve: Serve, deadline_s: float = 20.0) -> bytes:
    """Ask a server that serves so, once."""

    async def run() -> bytes:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await ask(f"127.0.0.1:{port}", deadline_s)

    return asyncio.run(run())


def test_the_status_is_asked_for_in_the_documented_words() -> None:
    heard: list[str] = []
    data = json.dumps(STATUS, indent=2).encode()
    assert asked(ras(data, heard=heard)) == data
    assert heard == ["CLIENT PROTOCOL 2", "TIMEOUT 1", "SET FORMAT json", "STATUS"]


def test_launches_of_all_kinds_are_added_up_and_missing_ranks_are_kept() -> None:
    assert communicators(json.dumps(STATUS, indent=2).encode(), [1524344]) == (KEPT,)


def test_a_communicator_without_a_process_of_ours_is_none_of_our_business() -> None:
    assert communicators(json.dumps(STATUS).encode(), [7]) == ()
    assert communicators(json.dumps(STATUS).encode(), [1524345]) == (KEPT,)


def test_the_comma_that_nccl_2_28_9_leaves_out_is_put_in() -> None:
    broken = json.dumps(STATUS, indent=2).replace('"nvml_dev": 1,', '"nvml_dev": 1')
    with pytest.raises(json.JSONDecodeError):
        json.loads(broken)
    assert communicators(broken.encode(), [1524344]) == (KEPT,)


@pytest.mark.parametrize("data", [b"", b"Job summary\n===========\n", b'{"communicators": 3}', b"[" * 5000])
def test_what_is_no_status_is_a_sentence(data: bytes) -> None:
    with pytest.raises(Silent, match="no status"):
        communicators(data, [1])


def test_an_older_nccl_without_json_says_nothing() -> None:
    with pytest.raises(Silent, match=r"2\.28\.7"):
        asked(ras(b"", knows_json=False))


def test_a_stranger_at_the_port_is_left_alone() -> None:
    async def smtp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"502 unknown\n")
        writer.close()

    with pytest.raises(Silent, match="no NCCL RAS"):
        asked(smtp)


def test_one_that_never_answers_is_given_up() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    with pytest.raises(Silent, match=r"within 0\.2 s"):
        asked(mute, deadline_s=0.2)


def test_an_answer_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_ras, "BYTES_MAX", 100)
    with pytest.raises(Silent, match="more than 100"):
        asked(ras(b"x" * 101))


@pytest.mark.parametrize("address", ["28028", "http://a/b", "host:port", ":1"])
def test_only_a_host_and_a_port_are_dialled(address: str) -> None:
    with pytest.raises(Silent, match="no HOST:PORT"):
        asyncio.run(ask(address))


def test_nobody_listening_is_no_trouble(unused_tcp_address: str) -> None:
    with pytest.raises(Silent, match="nothing of NCCL RAS"):
        asyncio.run(ask(unused_tcp_address))


@pytest.fixture
def unused_tcp_address() -> str:
    """Return an address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
