"""Makes the Flight Recorder dumps of a job, in the form that torch writes them.

Ranks issue operations one after the other; each keeps its own running numbers, as torch does, and its own
pg_id of each group.
"""

import json
import os
import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BEGAN_NS = 1_780_000_000_000_000_000
STEP_NS = 1_000_000
TIMEOUT_MS = 600_000
DONE = "completed"
OPEN = "scheduled"
TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/"
Entry = dict[str, Any]


def frames(site: str) -> list[dict[str, object]]:
    """Return the frames of a call at "train.py:44" or "train.py:44:step"."""
    file, line, *function = site.split(":")
    return [
        {"filename": TORCH + "distributed_c10d.py", "line": 3245, "name": "all_reduce"},
        {"filename": TORCH + "c10d_logger.py", "line": 83, "name": "wrapper"},
        {"filename": f"/home/user/{file}", "line": int(line), "name": function[0] if function else "step"},
        {"filename": "/home/user/main.py", "line": 9, "name": "<module>"},
    ]


@dataclass
class Rank:
    """What one rank has recorded so far."""

    entries: list[Entry] = field(default_factory=list)
    collective: dict[str, int] = field(default_factory=dict)
    p2p: dict[str, int] = field(default_factory=dict)
    pg_ids: dict[str, int] = field(default_factory=dict)


class Job:
    """A job that is built up call by call."""

    def __init__(self, world: int, *, backend: str = "nccl", version: str = "2.10", timing: bool = False) -> None:
        self.world = world
        self.backend = backend
        self.version = version
        self.timing = timing
        self.groups: dict[str, tuple[str, list[int]]] = {}
        self.ranks = [Rank() for _ in range(world)]
        self.now_ns = BEGAN_NS
        self.group("0", range(world), "default_pg")

    def group(self, name: str, members: Iterable[int], desc: str = "undefined", of: str = "") -> str:
        """Make a group. Two groups may have one name if their members differ: give the second one a handle `of`."""
        self.groups[of or name] = (desc, list(members))
        for rank in self.groups[of or name][1]:
            # A rank numbers the groups it is in; other ranks number others.
            self.ranks[rank].pg_ids[of or name] = len(self.ranks[rank].pg_ids) + (7 if rank % 2 else 0)
        return of or name

    def op(
        self, ranks: Iterable[int], group: str = "0", name: str = "all_reduce", *, site: str = "train.py:44",
        size: int = 100, dtype: str = "Float", state: str = DONE, out: int | None = None, burn: bool = False,
    ) -> None:  # fmt: skip
        """Let ranks issue a collective."""
        self.now_ns += STEP_NS
        for rank in ranks:
            mine = self.ranks[rank]
            mine.collective[group] = mine.collective.get(group, 0) + 1
            self._record(rank, group, f"{self.backend}:{name}", site=site, state=state, dtype=dtype,
                         sizes=([size], [size if out is None else out]))  # fmt: skip

    def steps(self, count: int, group: str = "0", **changes: Any) -> None:
        """Let all members of a group complete this many collectives."""
        for _ in range(count):
            self.op(self.groups[group][1], group, **changes)

    def p2p(
        self, rank: int, what: str, peer: int, group: str = "0", *, site: str = "pipe.py:8", state: str = DONE
    ) -> None:
        """Let a rank send to, or receive from, a peer (both global)."""
        self.now_ns += STEP_NS
        mine = self.ranks[rank]
        mine.p2p[group] = mine.p2p.get(group, 0) + 1
        self._p2p_entry(rank, what, peer, group, site, state)

    def batch(
        self, rank: int, operations: Iterable[tuple[str, int]], group: str = "0", *, state: str = DONE,
        site: str = "pipe.py:20",
    ) -> None:  # fmt: skip
        """Let a rank issue a batch_isend_irecv: its entries stay scheduled, the block's has the state."""
        self.now_ns += STEP_NS
        mine = self.ranks[rank]
        mine.p2p[group] = mine.p2p.get(group, 0) + 1
        mine.collective[group] = mine.collective.get(group, 0) + 1  # torch burns one
        for what, peer in operations:
            self._p2p_entry(rank, what, peer, group, site, OPEN)
        self._record(rank, group, f"{self.backend}:coalesced", site=site, state=state, p2p=True, sizes=None)

    def _p2p_entry(self, rank: int, what: str, peer: int, group: str, site: str, state: str) -> None:
        members = self.groups[group][1]
        me, other = members.index(rank), members.index(peer)
        ends = f"send {me}->{other}" if what == "send" else f"recv {me}<-{other}"
        self._record(rank, group, f"{self.backend}:{ends}", site=site, state=state, p2p=True, sizes=([64], [64]))

    def _record(
        self, rank: int, group: str, name: str, *, site: str, state: str, sizes: tuple[list[int], list[int]] | None,
        dtype: str = "Float", p2p: bool = False,
    ) -> None:  # fmt: skip
        mine = self.ranks[rank]
        gloo = self.backend == "gloo"
        begun = state != OPEN and self.timing
        mine.entries.append({
            "frames": frames(site),
            "record_id": len(mine.entries),
            "pg_id": mine.pg_ids[group],
            "process_group": (group.split("/")[0], self.groups[group][0]),
            "thread_name": "python3",
            "thread_id": "140485111331712",
            "collective_seq_id": mine.collective.get(group, 0),
            "p2p_seq_id": mine.p2p.get(group, 0),
            "op_id": len(mine.entries) + 1,
            "profiling_name": name,
            "time_created_ns": self.now_ns,
            "input_sizes": [sizes[0]] if sizes else [],
            "input_dtypes": [dtype] if sizes else [],
            "output_sizes": [sizes[1]] if sizes else [],
            "output_dtypes": [dtype] if sizes else [],
            "state": OPEN if gloo else state,
            "time_discovered_started_ns": self.now_ns + 1 if begun and not gloo else None,
            "time_discovered_completed_ns": self.now_ns + 2 if state == DONE and not gloo else None,
            "retired": state == DONE,
            "timeout_ms": TIMEOUT_MS,
            "is_p2p": p2p,
        })  # fmt: skip

    def dump(self, rank: int, *, last: int | None = None) -> dict[str, Any]:
        """Return a rank's dump, with its last entries only if the buffer was too small."""
        mine = self.ranks[rank]
        status: dict[str, dict[str, int]] = {}
        for entry in mine.entries:
            row = status.setdefault(
                str(entry["pg_id"]),
                {"last_enqueued_collective": -1, "last_started_collective": -1, "last_completed_collective": -1},
            )
            if " " not in entry["profiling_name"]:
                seq = entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]
                row["last_enqueued_collective"] = seq
                if entry["retired"]:
                    row["last_completed_collective"] = seq
        config = {
            name.split("/")[0]: {"name": name.split("/")[0], "desc": desc, "ranks": str(members)}
            for name, (desc, members) in self.groups.items()
            if rank in members
        }
        if self.backend == "gloo":
            config = {"": {"name": "", "desc": "", "ranks": "[]"}}
        return {
            "version": self.version,
            "pg_config": config,
            "comm_lib_version": "2.27.3",
            "pg_status": status,
            "entries": mine.entries[-last:] if last else mine.entries,
        }

    def write(
        self, folder: Path, *, age_s: float | None = 620.0, missing: Iterable[int] = (),
        last: dict[int, int] | None = None, prefix: str = "nccl_trace_rank_",
    ) -> Path:  # fmt: skip
        """Write the dumps of all ranks as torch does. `age_s`: from the newest operation to the dump; None: now."""
        for rank in sorted(set(range(self.world)) - set(missing)):
            self.write_one(folder, rank, self.dump(rank, last=(last or {}).get(rank)), age_s=age_s, prefix=prefix)
        return folder

    def write_one(
        self, folder: Path, rank: int, value: object, *, age_s: float | None = 620.0, prefix: str = "nccl_trace_rank_"
    ) -> None:
        """Write one dump."""
        path = folder / f"{prefix}{rank}"
        path.write_bytes(pickle.dumps(value, protocol=2))
        self._date(path, age_s)

    def write_json(self, folder: Path, ranks: Iterable[int], *, age_s: float = 620.0) -> Path:
        """Write the dumps of some ranks as the JSON writer does: no frames, numbers for None, tuples as lists."""
        for rank in ranks:
            value = self.dump(rank)
            value["pg_status"] = {
                pg: {name: str(count) for name, count in row.items()} for pg, row in value["pg_status"].items()
            }
            value["entries"] = [
                {key: 0 if each is None else each for key, each in entry.items() if key != "frames"}
                for entry in value["entries"]
            ]
            path = folder / f"rank_{rank}.json"
            path.write_text(json.dumps(value))
            self._date(path, age_s)
        return folder

    def _date(self, path: Path, age_s: float | None) -> None:
        if age_s is not None:
            at_ns = self.now_ns + int(age_s * 1e9)
            os.utime(path, ns=(at_ns, at_ns))
