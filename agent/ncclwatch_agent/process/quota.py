"""Measures for how long a CPU quota, or the host of a virtual machine, kept a process from running."""

import functools
import os
from typing import ClassVar

from ncclwatch_agent.process.procfs import ProcFile, read_text

LOOK_S = 0.9  # shortest time between two looks at what many ranks share
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct")


def quota_files(cgroup: str) -> tuple[str, ...]:
    """Return where the CPU statistics of a control group may lie, by what /proc/<pid>/cgroup says.

    Version 2 has one hierarchy, "0::/path"; version 1 one for each controller, "3:cpu,cpuacct:/path".
    """
    found = []
    for line in cgroup.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            found.append(f"{_ROOTS[0]}{path.rstrip('/')}/cpu.stat")
        elif "cpu" in controllers.split(","):
            found += [f"{root}{path.rstrip('/')}/cpu.stat" for root in _ROOTS[1:]]
    return tuple(found)


def parse_throttled_ms(data: bytes) -> int | None:
    """Return how long a control group was throttled in all, None if it is not told."""
    fields = data.split()
    told = dict(zip(fields[::2], fields[1::2], strict=False))
    for name, per_ms in ((b"throttled_usec", 1_000), (b"throttled_time", 1_000_000)):  # version 2, version 1
        if told.get(name, b"").isdigit():
            return int(told[name]) // per_ms
    return None


class CpuQuota:
    """The control group of one process, as far as a CPU quota slows it down."""

    def __init__(self, pid: int) -> None:
        paths = quota_files(read_text(f"/proc/{pid}/cgroup"))
        self._of = next((found for path in paths if (found := _Throttled.of(path)) is not None), None)

    @property
    def throttled_ms(self) -> int:
        """For how long it was throttled in all, as of the last look."""
        return self._of.ms if self._of is not None else 0

    def look(self, now_ns: int) -> None:
        """Read the total anew, if the last look of any process of the group is old."""
        if self._of is not None:
            self._of.look(now_ns)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._of is not None:
            self._of.release()
            self._of = None


class _Throttled:
    """The total of one control group, which is read once for all ranks in it."""

    _open: ClassVar[dict[str, "_Throttled"]] = {}

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = ProcFile(path)
        self._looked_ns = 0
        self._users = 0
        self.ms = 0

    @classmethod
    def of(cls, path: str) -> "_Throttled | None":
        """Return that of a group, None if its file tells nothing of it. Whoever is done with it says so."""
        found = cls._open.get(path) or cls(path)
        if found._users == 0 and parse_throttled_ms(found._file.read()) is None:
            found._file.close()
            return None
        found._users += 1
        cls._open[path] = found
        return found

    def look(self, now_ns: int) -> None:
        """Read the total anew, if the last look is old."""
        if now_ns - self._looked_ns < LOOK_S * 1e9:
            return
        self._looked_ns = now_ns
        found = parse_throttled_ms(self._file.read())
        self.ms = self.ms if found is None else found

    def release(self) -> None:
        """Give the descriptor back, if nobody else reads it."""
        self._users -= 1
        if self._users == 0:
            del self._open[self._path]
            self._file.close()


def parse_stolen_ticks(data: bytes) -> int:
    """Return the steal time of all cores by the first line of /proc/stat, 0 if it is not told."""
    fields = data.partition(b"\n")[0].split()
    return int(fields[8]) if len(fields) > 8 and fields[0] == b"cpu" and fields[8].isdigit() else 0


class StolenTime:
    """Time in which a core of this machine could not run because its host ran somebody else, per core."""

    def __init__(self, file: ProcFile, cores: int) -> None:
        self._file = file
        self._cores = max(1, cores)
        self._looked_ns = 0
        self._ms = 0

    @classmethod
    @functools.cache
    def of_this_machine(cls) -> "StolenTime":
        """Return the one that all ranks of this node share."""
        return cls(ProcFile("/proc/stat"), os.cpu_count() or 1)

    def ms(self, now_ns: int) -> int:
        """Return the total, read anew if the last look is old."""
        if now_ns - self._looked_ns >= LOOK_S * 1e9:
            self._looked_ns = now_ns
            self._ms = int(parse_stolen_ticks(self._file.read()) * _TICK_MS / self._cores)
        return self._ms
