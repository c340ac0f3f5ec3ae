"""Reads what other processes use: their CPU time and memory, from /proc."""

import os
import time
from pathlib import Path

_OF_THE_SCHEDULER = 2  # the clock of a process by its number, see clock_getcpuclockid(3): exact, where ticks are 10 ms
_PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that all threads of a process have used."""
    return time.clock_gettime(~pid << 3 | _OF_THE_SCHEDULER)


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 1e6
