"""What else an agent reads on its node: files beside a ring, its card, and answers of programs that it asks.

The first byte of an input says which of them it is.
"""

import random
from collections.abc import Callable, Hashable

from ncclwatch.contract import foreign_json, wire
from ncclwatch.contract.model import preflight
from ncclwatch_agent.gpu import node_gpus
from ncclwatch_agent.stacks.py_spy import parse_dump
from ncclwatch_agent.witnesses import flight_recorder, nccl_ras
from tests.fuzz import mutation
from tests.fuzz.engine import Surface


def _sent(message: wire.AgentMessage) -> None:
    """Let a message travel."""
    wire.decode_from_agent(wire.encode(message))


def _facts(data: bytes) -> Hashable:
    text = data.decode("utf-8", "replace")
    found = preflight.parse(text)
    if found is not None:
        _sent(wire.Facts(index=0, alike=(wire.Alike(ranks=(0,), facts=found),)))
    wrapped = preflight.parse_parameters(text, ("ddp", "0-3"))
    _sent(wire.Parameters(index=0, key=("ddp", "0-3"), ranks=((0, wrapped),)))
    return found is None, len(wrapped)


def _stacks(data: bytes) -> Hashable:
    dump = parse_dump(0, 7, data)
    _sent(wire.Stacks(index=0, dumps=(dump,)))
    return len(dump.threads), dump.failure[:40]


def _recorder(data: bytes) -> Hashable:
    said = flight_recorder.condense(0, (data,), {"0": 3})
    _sent(wire.Testimonies(index=0, ranks=(said,)))
    return len(said.groups), said.failure[:40]


def _ras(data: bytes) -> Hashable:
    try:
        found = nccl_ras.communicators(data, (7,))
    except nccl_ras.Silent as error:
        return str(error)[:40]
    _sent(wire.Testimonies(index=0, ranks=(), communicators=found))
    return len(found)


def _gpus(data: bytes) -> Hashable:
    found = node_gpus.parse(data)
    return len(found.gpus), found.failure


def _json(data: bytes) -> Hashable:
    found = foreign_json.read(data)
    wire.encode(wire.Refused(reason=str(found)))
    return type(found).__name__


READERS: dict[bytes, Callable[[bytes], Hashable]] = {
    b"f": _facts, b"s": _stacks, b"r": _recorder, b"n": _ras, b"g": _gpus, b"c": _json,
}  # fmt: skip


def check(data: bytes) -> Hashable:
    """Read one of them, and send on what came of it."""
    kind = data[:1] if data[:1] in READERS else b"c"
    return kind, READERS[kind](data[1:])


def mutate(rng: random.Random, data: bytes) -> bytes:
    """Change the JSON that all of these are."""
    return data[:1] + mutation.of_json(rng, data[1:])


SURFACE = Surface(
    name="node_files",
    seeds=(
        b'f{"facts": {"torch": "2.13", "python": "3.11"}, "models": [{"kind": "ddp", "members": "0-3", "units": ["a"], '
        b'"order": "b", "names": "c", "count": 3, "used": 3, "site": ["/u/t.py", 3, "main"]}], "samplers": [{"kind": '
        b'"DistributedSampler", "site": ["/u/t.py", 9, "main"], "parts": 4, "part": "0", "samples": 9, "length": 3, '
        b'"order": "x"}], "parameters": {"ddp 0-3": ["w 3x4"]}}',
        b's[{"thread_name": "MainThread", "os_thread_id": 7, "frames": [{"name": "f", "filename": "t", "line": 3}]}]',
        b'r{"entries": [{"process_group": ["0", "default_pg"], "pg_id": 0, "profiling_name": "gloo:all_reduce", '
        b'"record_id": 0, "collective_seq_id": 3, "p2p_seq_id": 0, "is_p2p": false, "state": "scheduled", "retired": '
        b'false, "input_sizes": [[3, 4]], "time_discovered_started_ns": 0}]}',
        b'n{"communicators": [{"size": 2, "ranks": [{"rank": 0, "pid": 7, "collective_counts": {"AllReduce": 3}}], '
        b'"missing_ranks": [{"rank": 1, "pid": 8, "status": {"unresponsive": true, "considered_dead": false}}]}]}',
        b'g{"gpus": [{"uuid": "GPU-1", "name": "H100", "trouble": "", "slow": 4, "pci": "0000:01"}]}',
        b'c{"pid": 7, "url": "http://127.0.0.1:8470"}',
    ),
    mutate=mutate,
    check=check,
)
