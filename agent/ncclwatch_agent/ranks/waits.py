"""Says what a rank waits in, by the head of its ring. One row of a digest has room for one wait."""

import functools
from collections.abc import Sequence

from ncclwatch.contract.digests import NO_WAIT, WAIT_KINDS
from ncclwatch.contract.groups import group_key, name_key
from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.ring.layout import NO_GROUP, Flag
from ncclwatch.contract.ring.rows import GroupRow, ThreadRow, WaitRow
from ncclwatch.contract.ring.views import age_s
from ncclwatch_agent.ranks.device_waits import Message

_KIND_CODE = {kind: code for code, kind in enumerate(WAIT_KINDS)}
_P2P = (WaitKind.SEND, WaitKind.RECV)
Pending = Sequence[tuple[GroupRow, float]]  # groups with the age of their oldest unfinished operation, 0: none


def wait_age_s(threads: Sequence[ThreadRow], pending_s: float, now_ns: int) -> float:
    """Return the age of the oldest wait that only peers can end; 0: none."""
    return max((age for _, age in _peer_waits(threads, pending_s, now_ns)), default=0.0)


def awaited(
    threads: Sequence[ThreadRow], pending: Pending, now_ns: int, message: Message | None = None
) -> tuple[int, int, int]:
    """Return the group it waits in, the rank it waits for and the kind of the wait, as `digests.RANK_FIELDS` has them.

    In backward, and where a device runs what the host has issued, it is the oldest unfinished operation of the
    rank that holds it up, wherever the host stands. `message` is the oldest that the device is in.
    """
    oldest, pending_s = max(pending, key=lambda each: each[1], default=(None, 0.0))
    waits = _peer_waits(threads, pending_s, now_ns)
    wait = max(waits, key=lambda each: each[1])[0] if waits else None
    held_up = (key_of(oldest), -1, _KIND_CODE[WaitKind.COLLECTIVE]) if oldest is not None and pending_s > 0 else NO_WAIT
    if message is not None and message.age_s > pending_s:
        held_up = (key_of(message.group), message.peer, _KIND_CODE[message.kind])
    if wait is None or wait.kind is WaitKind.BACKWARD:
        return held_up
    group = next((row for row, _ in pending if row.number == wait.group), None) if wait.group != NO_GROUP else None
    on_device = wait.kind is WaitKind.COLLECTIVE or (message is not None and wait.kind in _P2P)
    if on_device and group is not None and group.flags & Flag.ASYNC:
        return held_up
    peer = wait.peer if wait.kind in _P2P else -1
    return key_of(group) if group is not None else 0, peer, _KIND_CODE[wait.kind]


def key_of(group: GroupRow) -> int:
    """Return the 64 bits that stand for a group, see `groups`."""
    return keys(group.name, group.roster.digest)[0]


@functools.lru_cache(maxsize=4096)
def keys(name: str, members_digest: int) -> tuple[int, int]:
    """Return what stands for a group, and for its name alone."""
    return group_key(name, members_digest), name_key(name)


def _peer_waits(threads: Sequence[ThreadRow], pending_s: float, now_ns: int) -> list[tuple[WaitRow, float]]:
    """Return the waits that only peers can end, with their ages.

    A thread in the autograd engine waits for peers only while an operation of its rank is unfinished.
    """
    found = []
    for row in threads:
        if row.wait is None:
            continue
        waited_s = age_s(now_ns, row.wait.since_ns)
        if row.wait.kind is WaitKind.BACKWARD:
            found.append((row.wait, min(waited_s, pending_s)))
        elif row.wait.kind.needs_peers:
            found.append((row.wait, waited_s))
    return found
