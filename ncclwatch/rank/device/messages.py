"""Tells what of a group with sends and receives on a GPU is complete, by the entries of the flight recorder.

Of each peer the ring gets how many messages are through, and whether the device is in the oldest that is not.

With 2,000 entries a dump takes up to 50 ms and holds the GIL. So it is asked for only while such a group issues
nothing, which is when somebody may have to know, and never for more than a fiftieth of the time.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ncclwatch.contract import config
from ncclwatch.contract.ring import layout
from ncclwatch.contract.ring.layout import NO_GROUP, Flag, PeerFlag, PeerWord, Word
from ncclwatch.rank.device.entries import Account, End, read_account
from ncclwatch.rank.operations import COLLECTIVE, RECV, RECV_WAIT, SEND, Group
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile

PAUSE = 50  # times what a dump has taken, before the next


class Wait(NamedTuple):
    """What a thread issues or waits for."""

    kind: int
    seq: int
    peer: int

    @property
    def end(self) -> End | None:
        """Return which messages it is one of, None of a collective."""
        return None if self.kind == COLLECTIVE else (RECV if self.kind == RECV_WAIT else SEND, self.peer)


class _PeerRow(NamedTuple):
    """A row of p2p counters."""

    number: int
    peer: int
    sends: int
    recvs: int


class MessageProgress:
    """Carries over to the recorder what the entries tell of groups with sends and receives."""

    def __init__(self, recorder: Recorder, dump: Callable[[], Mapping[str, Any]]) -> None:
        self._recorder = recorder
        self._dump = dump
        self._issued: dict[int, int] = {}  # by row: operations of a group at the last look
        self._ahead: dict[str, int] = {}  # by NCCL's number: issued and not counted by it, while no call was under way
        self._names: dict[str, str] = {}  # that number -> name of the group
        self._pause_until = 0.0

    def look(self, groups: Sequence[Group], enqueued: Mapping[str, int], inside: Mapping[int, Sequence[Wait]]) -> None:
        """Note what is complete. `enqueued`: collectives by the name of their group, `inside`: as `waits_by_group`."""
        if not groups:
            return
        rows = _peer_rows(self._recorder.ring)
        issued = {group.name: _issued(enqueued[group.name], rows.get(group.number, ())) for group in groups}
        quiet = [group for group in groups if self._is_quiet(group, sum(issued[group.name].values()))]
        if not quiet or time.monotonic() < self._pause_until or self._recorder.captures:
            return
        entries = self._entries()
        for group in quiet:
            number = max((each for each, name in self._names.items() if name == group.name), key=int, default="")
            account = read_account(entries.get(number, ()), group.ranks)
            if account is not None:
                account = self._with_calls(number, account, issued[group.name], inside.get(group.number, ()))
            self._note(group, account, issued[group.name], rows.get(group.number, ()))

    def _is_quiet(self, group: Group, issued: int) -> bool:
        """Say whether a group has issued nothing since the last look; else nobody knows what of it is complete."""
        quiet = self._issued.get(group.number) == issued and group.number != NO_GROUP
        self._issued[group.number] = issued
        if not quiet:
            self._recorder.flag(group, Flag.BLIND)
        return quiet

    def _entries(self) -> dict[str, list[Mapping[str, Any]]]:
        """Return the entries by NCCL's number of their group."""
        began = time.monotonic()
        dump = self._dump()
        self._pause_until = time.monotonic() + PAUSE * (time.monotonic() - began)
        self._names |= group_names(dump)
        found: dict[str, list[Mapping[str, Any]]] = {}
        for entry in dump.get("entries", []):
            found.setdefault(str(entry["pg_id"]), []).append(entry)
        return found

    def _note(
        self, group: Group, account: Account | None, issued: Mapping[End | None, int], rows: Sequence[_PeerRow]
    ) -> None:
        ring = self._recorder.ring
        full = ring.word(Word.PEERS_USED) >= config.PEERS_MAX  # then messages with some peers are in no row
        if account is None or full or any(issued.get(end, 0) < number for end, number in account.left.items()):
            self._recorder.flag(group, Flag.BLIND)
            return
        self._recorder.set_completed(group.name, issued[None] - account.left.get(None, 0))
        for row in rows:
            sent = row.sends - account.left.get((SEND, row.peer), 0)
            received = row.recvs - account.left.get((RECV, row.peer), 0)
            flags = PeerFlag.TOLD | PeerFlag.SENDING * ((SEND, row.peer) in account.under_way)
            flags |= PeerFlag.RECEIVING * ((RECV, row.peer) in account.under_way)
            ring.set_peer(row.number, (sent,), PeerWord.SENDS_COMPLETED)
            ring.set_peer(row.number, (received,), PeerWord.RECVS_COMPLETED)
            ring.set_peer(row.number, (group.number | flags << 16,), PeerWord.GROUP_AND_FLAGS)
        self._recorder.flag(group, Flag.BLIND, on=False)

    def _with_calls(
        self, number: str, account: Account, issued: Mapping[End | None, int], waits: Sequence[Wait]
    ) -> Account | None:
        """Add what is being issued, or waited for by the host; None where nobody knows which calls lack an entry.

        An entry that is made before its call returns may pass for complete: nothing has been recorded yet that says
        when it is.
        """
        ahead = sum(issued.values()) - account.issued
        if not waits:
            self._ahead[number] = ahead
            return account
        lacking = ahead - self._ahead.get(number, 0)
        if lacking not in (0, len(waits)):
            return None
        left = dict(account.left)
        for wait in waits:
            newer = issued.get(wait.end, 0) - wait.seq
            left[wait.end] = left.get(wait.end, 0) + 1 if lacking else max(left.get(wait.end, 0), 1 + newer)
        return account._replace(left=left)


def waits_by_group(ring: RingFile) -> dict[int, list[Wait]]:
    """Return what threads issue of a group, or wait for, by the group's number in the ring."""
    found: dict[int, list[Wait]] = {}
    for row in range(ring.word(Word.THREADS_USED)):
        at = layout.THREADS_AT + row * layout.THREAD_BYTES + layout.WAIT_AT
        _, _, _, _, seq, group, kind, _, peer = layout.WAIT.unpack_from(ring.memory, at)
        if kind:
            found.setdefault(group, []).append(Wait(kind, seq, peer))
    return found


def _issued(enqueued: int, rows: Sequence[_PeerRow]) -> dict[End | None, int]:
    """Return how many operations a group has issued: messages by their end, and collectives under None."""
    found: dict[End | None, int] = {None: enqueued}
    for row in rows:
        found[SEND, row.peer] = row.sends
        found[RECV, row.peer] = row.recvs
    return found


def _peer_rows(ring: RingFile) -> dict[int, list[_PeerRow]]:
    """Return the rows of p2p counters by the group's number in the ring."""
    found: dict[int, list[_PeerRow]] = {}
    for number in range(min(ring.word(Word.PEERS_USED), config.PEERS_MAX)):
        at = layout.PEERS_AT + number * layout.PEER_BYTES
        group, _, peer, _, _ = layout.PEER_STATIC.unpack_from(ring.memory, at)
        sends, _, recvs, _ = layout.PEER_COUNTS.unpack_from(ring.memory, at + 16)
        found.setdefault(group, []).append(_PeerRow(number, peer, sends, recvs))
    return found


def group_names(dump: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of groups by the numbers that the flight recorder gives them."""
    return {str(entry["pg_id"]): str(entry["process_group"][0]) for entry in dump.get("entries", [])}
