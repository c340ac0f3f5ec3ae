"""Tells how far a group is whose collectives run on a GPU, by its backend's own account, never by asking CUDA.

A work of NCCL is not held: that would keep its tensors alive. It is not asked either: its answer is an
event query, which is forbidden while a CUDA graph is captured. NCCL's own watchdog does both safely, and
torch's flight recorder tells what it found, for each group: the last collective enqueued, started and
completed (`pg_status` in torch/csrc/distributed/c10d/FlightRecorder.hpp, with torch 2.4 or newer). A dump
without its entries costs microseconds and takes no lock of CUDA's; one with them is never taken during a capture.

What is taken from it is how many are outstanding, enqueued and not completed, and never their numbers: NCCL
counts a coalesced batch once, and does not enqueue what a CUDA graph captures. An operation whose call has not
returned, as where the queue of the device is full, has been issued, and may or may not be enqueued.

NCCL numbers sends and receives apart, and puts both numbers into the same field, so of a group with any of them only
the entries tell what is outstanding (see `entries`). They cost up to 50 ms with the GIL held, for 2,000
entries, and are asked for only while the group issues nothing.

A group with two backends ("cpu:gloo,cuda:nccl") is left out: each backend counts its own. For these, for a group with
sends and receives that goes on issuing, and until an account of a group has been seen, the ring says that nobody knows
what of it is complete.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from ncclwatch.contract.ring.layout import NO_GROUP, Flag
from ncclwatch.rank.device.messages import MessageProgress, group_names, waits_by_group
from ncclwatch.rank.operations import Group
from ncclwatch.rank.recorder import Recorder

Dump = Callable[[bool], str]  # with entries or without -> JSON


class DeviceProgress:
    """Carries the backend's account over to the recorder; called by the pulse thread only."""

    def __init__(self, recorder: Recorder, dump: Dump) -> None:
        self._recorder = recorder
        self._dump = dump
        self._names: dict[str, str] = {}  # the flight recorder's number of a group -> its name
        self._asked: set[str] = set()
        self._ahead: dict[str, int] = {}  # by that number: issued and not counted by NCCL, while no call was under way
        self._messages = MessageProgress(recorder, lambda: _read(dump(True)))

    def look(self) -> None:
        """Note what is complete. Raises whatever the flight recorder raises; the pulse goes on."""
        groups = [group for group in list(self._recorder.groups.values()) if group.on_device]
        if not groups:
            return
        # Read before the account: what is issued meanwhile is outstanding in it, and is not taken for complete.
        enqueued = {group.name: self._enqueued(group) for group in groups}
        inside = waits_by_group(self._recorder.ring)
        status = _read(self._dump(False)).get("pg_status", {})
        unknown = set(status) - set(self._names)
        # Once for each: only an entry tells a number with its name, and telling its state asks CUDA.
        if unknown and not unknown <= self._asked and not self._recorder.captures:
            self._names |= group_names(_read(self._dump(True)))
            self._asked |= unknown
        # A group that was destroyed and made again has the same name and a higher number.
        numbers = {self._names[number]: number for number in sorted(status, key=int) if number in self._names}
        apart = self._recorder.ring.p2p_groups
        for group in groups:
            if group.name in numbers and group.number not in apart:
                number = numbers[group.name]
                self._note(group, number, status[number], enqueued[group.name], len(inside.get(group.number, ())))
        self._messages.look([group for group in groups if group.number in apart], enqueued, inside)

    def give_up(self) -> None:
        """Say in the ring that nobody knows any more what is complete."""
        for group in list(self._recorder.groups.values()):
            if group.by_account:
                self._recorder.flag(group, Flag.BLIND)

    def _enqueued(self, group: Group) -> int:
        return 0 if group.number == NO_GROUP else self._recorder.ring.group_enqueued(group.number)

    def _note(self, group: Group, number: str, status: Mapping[str, Any], issued: int, inside: int) -> None:
        enqueued = int(status["last_enqueued_collective"])
        outstanding = enqueued - int(status["last_completed_collective"])
        if inside == 0 and self._enqueued(group) == issued:
            self._ahead[number] = issued - enqueued
        elif issued - enqueued != self._ahead.get(number, 0):
            outstanding += inside  # what is being issued, and NCCL has not counted yet
        if outstanding >= 0:
            self._recorder.set_completed(group.name, issued - outstanding)
        self._recorder.flag(group, Flag.BLIND, on=outstanding < 0)


def _read(text: str) -> dict[str, Any]:
    found = json.loads(text)
    return found if isinstance(found, dict) else {}
