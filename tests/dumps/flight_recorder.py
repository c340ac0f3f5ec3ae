"""Writes what torch's Flight Recorder would dump for each rank, as torch 2.6 (2.9) and 2.7 and later (2.10) write it.

Format: torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp. With TORCH_INCLUDE_ONLY_ACTIVE=1 an
operation is listed until its end has been seen. A GPU that is lost answers no event query any more: what NCCL's
watchdog had not seen finished before stays listed. `pg_status` is what the watchdog last saw; `pg_config` has the
groups that made a communicator. A JSON dump without entries has no key for them.
"""

import json
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.dumps.faults import Case, calls_at
from tests.dumps.machine import WATCHDOG_US, Call, Machine, steps_before
from tests.dumps.program import Group, Kind

BEGAN_NS = 1_780_000_000_000_000_000
TIMEOUT_MS = 600_000
COPIED_S = 86_400.0  # after the dump
BUFFER = 2000  # entries
TORCH = "/usr/local/lib/python3.10/dist-packages/torch/distributed/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Which of its forms a recorder writes."""

    version: str = "2.9"
    only_active: bool = True
    as_json: bool = False
    stacks: bool = False


def write(case: Case, folder: Path, form: Form) -> Path:
    """Write the dumps of all ranks and return their folder."""
    for rank in case.machine.hosts:
        at_us = case.early.get(rank, case.at_us)
        path = folder / (f"rank_{rank}.json" if form.as_json else f"nccl_trace_rank_{rank}")
        value = dump(case.machine, rank, at_us, form)
        path.write_bytes(json.dumps(value).encode() if form.as_json else pickle.dumps(value, protocol=2))
        written_ns = _ns(case.at_us) + int(COPIED_S * 1e9) + rank * 1_000_000 if case.copied else _ns(at_us)
        os.utime(path, ns=(written_ns, written_ns))
    return folder


def dump(machine: Machine, rank: int, at_us: float, form: Form) -> dict[str, Any]:
    """Return a rank's dump at a moment."""
    issued = calls_at(machine, rank, at_us)
    numbers = {group.name: n for n, group in enumerate(machine.job.groups_of(rank))}
    base = steps_before(machine.job.steps[rank]) * sum(action.is_call for action in machine.job.steps[rank])
    listed = [call for call in issued if not form.only_active or seen_done(machine, call, at_us) is None][-BUFFER:]
    used = {action.group for action in machine.job.steps[rank] if action.is_call}
    groups = [group for group in machine.job.groups_of(rank) if group.name in used]
    status = {str(numbers[group.name]): _status(machine, rank, group, at_us) for group in groups}
    config = {group.name: _config(group) for group in groups}
    entries = [_entry(machine, call, base, numbers[call.action.group], at_us, form) for call in listed]
    library = {"nccl_version": "2.21.5"} if form.version == "2.9" else {"comm_lib_version": "2.27.3"}
    value = {"version": form.version, "pg_config": config, **library, "pg_status": status, "entries": entries}
    return _as_json(value) if form.as_json else value


def seen_done(machine: Machine, call: Call, at_us: float) -> float | None:
    """Return when the end of an operation was seen, as a dump at a moment knows it; None: it was not."""
    looked_us = watchdog_looked(machine, call.rank, at_us)
    if call.done_us <= looked_us:
        return call.done_us
    return call.done_us if call.done_us <= at_us and call.rank not in machine.dead else None


def watchdog_looked(machine: Machine, rank: int, at_us: float) -> float:
    """Return when the watchdog of a rank last looked and got an answer."""
    until_us = min(at_us, machine.dead.get(rank, at_us))
    first_us = machine.looks_us[rank]
    return first_us + (until_us - first_us) // WATCHDOG_US * WATCHDOG_US


def _status(machine: Machine, rank: int, group: Group, at_us: float) -> dict[str, int]:
    """Return the counters of a group: of whatever was last issued, p2p by its own number, as torch does."""
    looked_us = watchdog_looked(machine, rank, at_us)
    mine = [call for call in calls_at(machine, rank, at_us) if call.action.group == group.name]
    done = [call for call in mine if call.done_us <= looked_us]
    first = machine.hosts[rank].before(group.name)
    return {
        "last_enqueued_collective": _number(mine[-1]) if mine else first,
        "last_started_collective": -1,
        "last_completed_collective": _number(done[-1]) if done else first,
    }


def _number(call: Call) -> int:
    return call.seq if call.action.kind is Kind.COLLECTIVE else call.p2p


def _config(group: Group) -> dict[str, str]:
    return {"name": group.name, "desc": group.desc, "ranks": str(list(group.members))}


def _entry(machine: Machine, call: Call, base: int, pg_id: int, at_us: float, form: Form) -> dict[str, Any]:
    action = call.action
    done_us = seen_done(machine, call, at_us)
    entry: dict[str, Any] = {"frames": _frames(call)} if form.stacks else {}
    entry |= {"record_id": base + call.record, "pg_id": pg_id}
    entry["process_group"] = (action.group, machine.job.groups[action.group].desc)
    if form.version != "2.9":
        entry |= {"thread_name": "python3", "thread_id": "140485111331712"}
    return entry | {
        "collective_seq_id": call.seq,
        "p2p_seq_id": call.p2p,
        "op_id": call.seq + call.p2p,
        "profiling_name": f"nccl:{action.recorded}",
        "time_created_ns": _ns(call.issued_us),
        "input_sizes": [[action.sizes[0]]],
        "input_dtypes": [action.dtype],
        "output_sizes": [[action.sizes[1]]],
        "output_dtypes": [action.dtype],
        "state": "scheduled" if done_us is None else "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None if done_us is None else _ns(done_us),
        "retired": done_us is not None and done_us <= watchdog_looked(machine, call.rank, at_us),
        "timeout_ms": TIMEOUT_MS,
        "is_p2p": action.kind is not Kind.COLLECTIVE,
    }


def _frames(call: Call) -> list[dict[str, object]]:
    action = call.action
    return [
        {"name": "wrapper", "filename": TORCH + "c10d_logger.py", "line": 83},
        {"name": action.function, "filename": "/job/pretrain.py", "line": action.line},
        {"name": "<module>", "filename": "/job/pretrain.py", "line": 900},
    ]


def _as_json(value: dict[str, Any]) -> dict[str, Any]:
    """Return a dump as the JSON writer has it: counters as text, 0 for None, no frames, no key for no entries."""
    value["pg_status"] = {
        pg_id: {name: str(count) for name, count in row.items()} for pg_id, row in value["pg_status"].items()
    }
    value["entries"] = [
        {key: 0 if each is None else each for key, each in entry.items() if key != "frames"}
        for entry in value["entries"]
    ]
    return value if value["entries"] else {key: each for key, each in value.items() if key != "entries"}


def _ns(us: float) -> int:
    return BEGAN_NS + int(us * 1000)
