"""Reads from the entries of torch's flight recorder what of a group is not complete, collectives and messages.

The layout is that of torch/csrc/distributed/c10d/FlightRecorder.hpp, tried with torch 2.11 and NCCL 2.28:

- `op_id` counts all operations of a group, those inside a batch one by one.
- What is issued as a batch (`batch_isend_irecv`, a coalescing manager) has an entry for each operation, which nobody
  ever marks as complete, and after them one named "nccl:coalesced", which is marked. All of them bear the same two
  sequence numbers, and nothing else of the group does.
- A message is named with the ranks in the group of both its ends: "nccl:send 0->1", "nccl:recv 1<-0".

A batch runs in the stream of its group, as collectives do, and all of it at once. A message that is issued alone has
a communicator of its two ranks with a stream of its own; where the group was connected eagerly, it may have to wait
for another pair of ranks all the same.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ncclwatch.rank.operations import RECV, SEND

_MESSAGE = re.compile(r"[^:]*:(send|recv) \d+(?:->|<-)(\d+)")
_BATCH = ":coalesced"

End = tuple[int, int]  # SEND or RECV, and the global rank of the other side


class Account(NamedTuple):
    """What of a group is not complete."""

    issued: int  # operations so far, as NCCL counts them
    left: Mapping[End | None, int]  # messages by their end, and collectives under None
    under_way: frozenset[End]  # nothing comes before the oldest of these in its stream


def read_account(entries: Sequence[Mapping[str, Any]], ranks: Sequence[int]) -> Account | None:
    """Return what the entries of one group tell, oldest first; None if they do not tell enough.

    `ranks` are the group's global ranks in their order.
    """
    batches = {_numbers(entry): entry for entry in entries if _name(entry).endswith(_BATCH)}
    alone = [entry for entry in entries if not _name(entry).endswith(_BATCH)]
    if not entries or "op_id" not in entries[-1] or _lacks_operations(batches, alone):
        return None
    left, under_way = dict[End | None, int](), set[End]()
    first: dict[int, tuple[int, int]] = {}  # of each stream: the numbers of what it is at
    for entry in alone:
        batch = batches.get(_numbers(entry))
        if _is_complete(batch or entry):
            continue
        if entry is entries[0] and entry.get("record_id", 0) > 0:
            return None  # older ones have been overwritten, and may not be complete either
        found = _MESSAGE.match(_name(entry))
        peer = int(found[2]) if found is not None else -1
        at_it = first.setdefault(-1 if batch is not None else peer, _numbers(entry)) == _numbers(entry)
        if peer >= len(ranks):
            return None
        end = None if found is None else (SEND if found[1] == "send" else RECV, ranks[peer])
        left[end] = left.get(end, 0) + 1
        if end is not None and at_it and left[end] == 1:
            under_way.add(end)
    return Account(max(entry["op_id"] for entry in entries), left, frozenset(under_way))


def _lacks_operations(batches: Mapping[tuple[int, int], Mapping[str, Any]], alone: Sequence[Mapping[str, Any]]) -> bool:
    """Say whether nobody tells what is in a batch that is not complete."""
    told = {_numbers(entry) for entry in alone}
    return any(numbers not in told for numbers, batch in batches.items() if not _is_complete(batch))


def _numbers(entry: Mapping[str, Any]) -> tuple[int, int]:
    return entry.get("collective_seq_id", 0), entry.get("p2p_seq_id", 0)


def _name(entry: Mapping[str, Any]) -> str:
    return str(entry.get("profiling_name", ""))


def _is_complete(entry: Mapping[str, Any]) -> bool:
    return entry.get("state") == "completed"
