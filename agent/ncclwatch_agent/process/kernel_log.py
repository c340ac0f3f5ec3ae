"""Hears what the kernel of this node complains of: GPU errors, processes killed for want of memory, failing links.

/dev/kmsg gives one record for each read, and only to those who may see the kernel's log. Who may not sees nothing,
which is no sign of health.
"""

import contextlib
import os
import re
from collections import deque
from dataclasses import dataclass
from enum import Enum

RECORD_BYTES_MAX = 8192
RECORDS_MAX = 200  # at one look: a kernel that talks without end is read later
NOTES_MAX = 64


class Trouble(str, Enum):
    """What a line of the kernel log is about."""

    XID = "xid"  # an error of an NVIDIA GPU
    OUT_OF_MEMORY = "out_of_memory"
    LINK = "link"  # of a network card


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelNote:
    """One line of the kernel log that matters to a job."""

    trouble: Trouble
    subject: str  # PCI address, pid, or interface
    text: str
    number: int = 0  # of an Xid


# The driver writes "NVRM: Xid (PCI:0000:3b:00): 79, pid=..., GPU has fallen off the bus."
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
_KILLED = re.compile(r"(?:Out of memory|Memory cgroup out of memory): Killed process (\d+)")
# "mlx5_core 0000:5e:00.0 ens1f0: Link down", "NETDEV WATCHDOG: eth0 (igb): transmit queue 3 timed out"
_LINK = re.compile(
    r"^(?:NETDEV WATCHDOG:|\S+) (\S+).*\b(?:link (?:is )?down|transmit queue \d+ timed out)\b", re.IGNORECASE
)
# Of the user's own program, not of the GPU: an illegal access and the like.
XIDS_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 69, 109})


def parse(record: str) -> KernelNote | None:
    """Return what a record of /dev/kmsg says ("priority,number,time,flags;text"), None if it is nothing of ours."""
    head, _, text = record.partition(";")
    if not text or not head[:1].isdigit():
        return None
    text = text.split("\n", 1)[0]
    found = _XID.search(text)
    if found:
        return KernelNote(trouble=Trouble.XID, subject=found[1].lower(), text=text, number=int(found[2]))
    found = _KILLED.search(text)
    if found:
        return KernelNote(trouble=Trouble.OUT_OF_MEMORY, subject=found[1], text=text)
    found = _LINK.search(text)
    return KernelNote(trouble=Trouble.LINK, subject=found[1], text=text) if found else None


def same_pci(one: str, other: str) -> bool:
    """Whether two spellings mean one device: NVML's "00000000:3B:00.0" and the kernel's "0000:3b:00"."""
    return bool(one and other) and _pci(one) == _pci(other)


def _pci(text: str) -> tuple[str, ...]:
    domain, _, rest = text.lower().split(".", 1)[0].partition(":")
    return (domain.lstrip("0"), *rest.split(":"))


class KernelLog:
    """The kernel log from now on. Use as a context manager, or close it. Never raises and never waits."""

    def __init__(self, fd: int = -1) -> None:
        self.notes: deque[KernelNote] = deque(maxlen=NOTES_MAX)
        self._fd = fd  # open without waiting; -1: nobody lets us read it
        with contextlib.suppress(OSError):
            os.lseek(self._fd, 0, os.SEEK_END)  # what was before this job is not its own

    def __enter__(self) -> "KernelLog":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def look(self) -> tuple[KernelNote, ...]:
        """Return what is new and matters."""
        found = []
        for _ in range(RECORDS_MAX):
            record = self._read()
            if not record:
                break
            note = parse(record)
            if note is not None:
                found.append(note)
        self.notes.extend(found)
        return tuple(found)

    def _read(self) -> str:
        if self._fd < 0:
            return ""
        try:
            return os.read(self._fd, RECORD_BYTES_MAX).decode(errors="replace")
        except BrokenPipeError:  # records were overwritten before we came: the next one can be read
            return "overwritten"
        except OSError:
            return ""

    def gpu_errors(self, pci: str) -> tuple[int, ...]:
        """Return the numbers of the Xids of a GPU that are not a program's own fault."""
        mine = (note for note in self.notes if note.trouble is Trouble.XID and same_pci(note.subject, pci))
        return tuple(note.number for note in mine if note.number not in XIDS_OF_PROGRAMS)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
