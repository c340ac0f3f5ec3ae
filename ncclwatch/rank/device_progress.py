"""How far is a group whose collectives run on a GPU? By its backend's own account, never by asking CUDA.

A work of NCCL is not held: that would keep its tensors alive. It is not asked either: its answer is an
event query, which is forbidden while a CUDA graph is captured. NCCL's own watchdog does both safely, and
torch's flight recorder tells what it found, for each group: the last collective enqueued, started and
completed (`pg_status` in torch/csrc/distributed/c10d/FlightRecorder.hpp, with torch 2.4 or newer). A dump
without its entries costs microseconds and takes no lock of CUDA's.

A group with two backends ("cpu:gloo,cuda:nccl") is left out: each backend counts its own. Until an account of
a group has been seen, the ring says that nobody knows what of it is complete.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from ncclwatch.contract.ring import Flag
from ncclwatch.rank.recorder import Recorder

Dump = Callable[[bool], str]  # with entries or without -> JSON


class DeviceProgress:
    """Carries the backend's account over to the recorder; called by the pulse thread only."""

    def __init__(self, recorder: Recorder, dump: Dump) -> None:
        self._recorder = recorder
        self._dump = dump
        self._names: dict[str, str] = {}  # the flight recorder's number of a group -> its name
        self._asked: set[str] = set()

    def look(self) -> None:
        """Note what is complete. Raises whatever the flight recorder raises; the pulse goes on."""
        if not any(group.on_device for group in list(self._recorder.groups.values())):
            return
        status = _read(self._dump(False)).get("pg_status", {})
        unknown = set(status) - set(self._names)
        if unknown and not unknown <= self._asked:  # once for each: only an entry tells a number with its name
            self._names |= group_names(_read(self._dump(True)))
            self._asked |= unknown
        for number, group in status.items():
            name = self._names.get(number)
            known = self._recorder.groups.get(name or "")
            if known is not None and known.on_device:
                self._recorder.set_completed(known.name, int(group["last_completed_collective"]))
                self._recorder.flag(known, Flag.BLIND, on=False)


def group_names(dump: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of groups by the numbers that the flight recorder gives them."""
    return {str(entry["pg_id"]): str(entry["process_group"][0]) for entry in dump.get("entries", [])}


def _read(text: str) -> dict[str, Any]:
    found = json.loads(text)
    return found if isinstance(found, dict) else {}
