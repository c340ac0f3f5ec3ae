"""Counts how many sends and receives a rank issued to each peer, and finds which of them it is still in.

Numbers of the recorder count over all peers of a group and cannot be compared between two ranks; so they
are counted here, pair by pair. The operations of a batch are through when the batch is.
"""

from collections.abc import Sequence

from ncclwatch_server.offline.entries import (
    COALESCED,
    Entry,
    Names,
    is_done,
    issued,
    name_of,
    p2p_seq,
)
from ncclwatch_server.offline.recording import GroupKey, PairRecord


def is_p2p(entry: Entry) -> bool:
    """Say whether an entry is a send, a receive, or the end of a batch of them."""
    known = entry.get("is_p2p")
    return known if isinstance(known, bool) else " " in str(entry["profiling_name"])


def split(entries: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Return (collectives, sends and receives with the ends of their batches)."""
    collectives: list[Entry] = []
    p2p: list[Entry] = []
    for entry in entries:
        # Old recorders do not say what a batch was of: it ends right after its last operation.
        ends_batch = "is_p2p" not in entry and is_batch_end(entry) and p2p and entry_follows(p2p[-1], entry)
        (p2p if ends_batch or is_p2p(entry) else collectives).append(entry)
    return collectives, p2p


def is_batch_end(entry: Entry) -> bool:
    """Say whether an entry ends a coalescing block."""
    return name_of(entry)[1] == COALESCED


def entry_follows(one: Entry, other: Entry) -> bool:
    """Say whether two entries belong to the same batch."""
    return p2p_seq(one) == p2p_seq(other) and one.get("pg_id") == other.get("pg_id")


def pair_records(rank: int, key: GroupKey, p2p: Sequence[Entry], whole: bool, names: Names) -> tuple[PairRecord, ...]:
    """Return a rank's counts for each peer and direction. Peers are known only where the members are."""
    batches = {p2p_seq(entry): is_done(entry) for entry in p2p if is_batch_end(entry)}
    found: dict[tuple[int, bool], list[tuple[Entry, bool]]] = {}
    for entry in p2p:
        ends = _ends(entry, key.members)
        if ends is not None and rank in ends:
            source, target = ends
            done = batches.get(p2p_seq(entry), False) or is_done(entry)
            found.setdefault((target if source == rank else source, source == rank), []).append((entry, done))
    records = []
    for (peer, sends), operations in found.items():
        # Operations of one pair are in order: what comes before one that is through is through.
        completed = max((n for n, (_, done) in enumerate(operations, 1) if done), default=0)
        pending = operations[completed][0] if completed < len(operations) else None
        records.append(
            PairRecord(
                key=key, peer=peer, sends=sends, issued=len(operations), completed=completed,
                pending=issued(pending, completed + 1, False, names) if pending is not None else None, whole=whole,
            )
        )  # fmt: skip
    return tuple(records)


def _ends(entry: Entry, members: tuple[int, ...]) -> tuple[int, int] | None:
    """Return (sender, receiver) as global ranks: "send 0->1", and "recv 1<-0", name members of the group."""
    _, name, ends = name_of(entry)
    left, arrow, right = ends.partition("->" if name == "send" else "<-")
    if not arrow or not left.isdecimal() or not right.isdecimal() or max(len(left), len(right)) > 9:
        return None
    one, other = int(left), int(right)
    if max(one, other) >= len(members):
        return None
    source, target = (one, other) if name == "send" else (other, one)
    return members[source], members[target]
