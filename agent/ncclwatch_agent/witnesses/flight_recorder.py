"""Asks a rank's worker server what torch's Flight Recorder holds of it, and makes that short.

The recorder numbers the collectives of each group for itself, in C++ and below ncclwatch's patches; so it also
sees what was called past them. A batch of sends and receives, and a coalescing block, use up a number on the ranks
that take part: where NCCL's recorder holds one, its numbers are left alone. The recorder for gloo knows neither.
"""

import math
from collections.abc import Iterable, Mapping

import msgspec

from ncclwatch.contract.model.testimony import (
    WITNESSED_GROUPS_MAX,
    WITNESSED_OPS_MAX,
    Testimony,
    WitnessedGroup,
    WitnessedOp,
)
from ncclwatch.contract.ring.rows import GroupRow, named_apart
from ncclwatch.contract.ring.shortening import short_name
from ncclwatch.contract.undecodable import UNDECODABLE

ANY_BACKEND = "fr_trace_json"  # all but NCCL
NCCL = "dump_nccl_trace_json"
NAME_CHARS_MAX = 80
_GLOO = "gloo"
_BLOCK = "coalesced"  # the name of what ends a coalescing block


class _Entry(msgspec.Struct, frozen=True):
    process_group: tuple[str, str]
    pg_id: int
    profiling_name: str
    record_id: int = 0
    collective_seq_id: int = 0
    p2p_seq_id: int = 0
    is_p2p: bool = False
    state: str | None = ""
    retired: bool = False
    input_sizes: tuple[tuple[int, ...], ...] = ()
    time_discovered_started_ns: int | None = 0

    @property
    def backend(self) -> str:
        """What executes it."""
        return self.profiling_name.partition(":")[0]

    @property
    def name(self) -> str:
        """What it is called."""
        return self.profiling_name.rpartition(":")[2][:NAME_CHARS_MAX]

    @property
    def done(self) -> bool:
        """Whether it is through. With gloo the state never changes, it retires."""
        return self.state == "completed" or (self.retired and self.backend == _GLOO)

    @property
    def started(self) -> bool:
        """Whether it has begun on its device."""
        return self.state == "started" or bool(self.time_discovered_started_ns)


class _Dump(msgspec.Struct, frozen=True):
    entries: tuple[_Entry, ...] = ()


_decoder = msgspec.json.Decoder(_Dump, strict=False)
Frontier = Mapping[str, int]  # operations that ncclwatch has seen issued, by the name of a group


def frontier(rows: Iterable[GroupRow]) -> dict[str, int]:
    """Return what is issued in each group; groups whose name comes twice in a process are left out."""
    named = named_apart(rows)
    again = {row.name.rpartition("~")[0] for row in named}
    return {row.name: row.enqueued for row in named if row.name not in again and "~" not in row.name}


def condense(rank: int, dumps: Iterable[bytes], seen: Frontier) -> Testimony:
    """Return the frontier of each group that ncclwatch has `seen`, as the recorders have it."""
    by_group: dict[str, list[_Entry]] = {}
    whole = True
    try:
        for data in dumps:
            entries = _decoder.decode(data).entries
            whole = whole and (not entries or entries[0].record_id == 0)
            for entry in entries:
                by_group.setdefault(short_name(entry.process_group[0]), []).append(entry)
    except UNDECODABLE as error:
        failure = f"its worker server gave no dump of the recorder: {error}"
        return Testimony(rank=rank, seen=seen, failure=failure)
    if not by_group and any(seen.values()):
        failure = "its recorder holds nothing; TORCH_FR_BUFFER_SIZE=0 turns it off"
        return Testimony(rank=rank, seen=seen, failure=failure)
    groups = [_frontier_of(name, by_group.get(name, []), whole) for name in list(seen)[:WITNESSED_GROUPS_MAX]]
    return Testimony(rank=rank, seen=seen, groups=tuple(group for group in groups if group is not None))


def _frontier_of(name: str, entries: list[_Entry], whole: bool) -> WitnessedGroup | None:
    """Return a group's frontier, None where its numbers cannot be relied upon."""
    if not entries:  # nothing was issued, unless it has been overwritten
        return WitnessedGroup(name=name, enqueued=0, started=0, completed=0) if whole else None
    counted = all(_counts_collectives(entry) for entry in entries)
    alone = len({(entry.backend, entry.pg_id) for entry in entries}) == 1
    collectives = [entry for entry in entries if not entry.is_p2p and entry.collective_seq_id > 0]
    if not counted or not alone or not collectives:
        return None
    pending = next((entry for entry in collectives if not entry.done), None)
    newest = collectives[-1].collective_seq_id
    return WitnessedGroup(
        name=name,
        enqueued=newest,
        started=max((entry.collective_seq_id for entry in collectives if entry.started or entry.done), default=0),
        completed=newest if pending is None else pending.collective_seq_id - 1,
        pending=None if pending is None else _op(pending),
        newest=tuple(_op(entry) for entry in collectives[-WITNESSED_OPS_MAX:]),
    )


def _counts_collectives(entry: _Entry) -> bool:
    """Whether only collectives have used up numbers so far; NCCL's recorder also says what it has overwritten."""
    return entry.backend == _GLOO or not (entry.is_p2p or entry.p2p_seq_id or entry.name == _BLOCK)


def _op(entry: _Entry) -> WitnessedOp:
    numel = sum(math.prod(size) for size in entry.input_sizes)
    return WitnessedOp(
        seq=entry.collective_seq_id, name=entry.name, numel=min(numel, 2**62), started=entry.started, done=entry.done
    )
