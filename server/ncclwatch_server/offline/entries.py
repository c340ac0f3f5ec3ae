"""Reads one entry of a Flight Recorder dump, field by field, over all versions of the recorder.

Everything in an entry may be missing or of another type: the file may come from anybody.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from ncclwatch.contract.model.rank import CallSite
from ncclwatch.contract.stacks.ownership import is_users_by_path
from ncclwatch_server.judge.theory.histories.signatures import Signature, signature_of, split_name
from ncclwatch_server.offline.recording import Issued

Entry = Mapping[str, object]
FRAMES_MAX = 256
TEXT_CHARS_MAX = 300
COALESCED = "coalesced"  # the name of the entry that ends a coalescing block and alone knows its state

_is_users = functools.lru_cache(maxsize=65536)(is_users_by_path)


@dataclass(frozen=True, slots=True)
class Names:
    """Signatures and call sites that are equal are one object: thousands of ranks share them."""

    signatures: dict[Signature, Signature] = field(default_factory=dict)
    sites: dict[CallSite, CallSite] = field(default_factory=dict)


def number(value: object) -> int:
    """Return a whole number; 0 for what is none. JSON dumps hold some numbers as text."""
    if isinstance(value, int):
        return value if abs(value) < 1 << 62 else 0
    if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) < 20:
        return int(value)
    return 0


def collective_seq(entry: Entry) -> int:
    """Return the running number of a collective in its group."""
    found = entry.get("collective_seq_id")
    return number(found if found is not None else entry.get("seq_id"))


def p2p_seq(entry: Entry) -> int:
    """Return the running number of a send, a receive or a batch of them."""
    return number(entry.get("p2p_seq_id"))


def name_of(entry: Entry) -> tuple[str, str, str]:
    """Return (backend, name, ends of a p2p operation)."""
    return split_name(str(entry["profiling_name"]))


def is_started(entry: Entry) -> bool:
    """Say whether it is known to have begun on the device."""
    return entry.get("state") == "started" or number(entry.get("time_discovered_started_ns")) > 0


def is_done(entry: Entry) -> bool:
    """Say whether an entry is through, by itself. gloo never changes the state, it retires."""
    if entry.get("state") == "completed":
        return True
    return entry.get("retired") is True and str(entry.get("profiling_name")).startswith("gloo:")


def newest_stamp(entry: Entry) -> int:
    """Return the newest of an entry's stamps, in ns."""
    stamps = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
    return max(number(entry.get(name)) for name in stamps)


def site_of(entry: Entry) -> CallSite | None:
    """Return the innermost line of the user's own code; JSON dumps have no frames."""
    frames = entry.get("frames")
    if not isinstance(frames, list):
        return None
    for frame in frames[:FRAMES_MAX]:
        filename = frame.get("filename") if isinstance(frame, dict) else None
        if isinstance(filename, str) and len(filename) < 4096 and _is_users(filename):
            name = str(frame.get("name", ""))[:TEXT_CHARS_MAX]
            return CallSite(file=filename, line=number(frame.get("line")), function=name)
    return None


def issued(entry: Entry, seq: int, done: bool, names: Names) -> Issued:
    """Return what is kept of an entry."""
    found = signature_of(name_of(entry)[1], entry)
    site = site_of(entry)
    return Issued(
        seq=seq,
        signature=names.signatures.setdefault(found, found),
        site=None if site is None else names.sites.setdefault(site, site),
        created_ns=number(entry.get("time_created_ns")),
        started=is_started(entry),
        done=done,
        record=number(entry.get("record_id")),
    )
