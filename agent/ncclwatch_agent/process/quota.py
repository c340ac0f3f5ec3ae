"""Measures for how long a CPU quota, or the host of a virtual machine, kept a process from running."""

import functools
import os

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
        self.throttled_ms = 0
        self._file: ProcFile | None = None
        self._looked_ns = 0
        for path in quota_files(read_text(f"/proc/{pid}/cgroup")):
            file = ProcFile(path)
            if parse_throttled_ms(file.read()) is not None:
                self._file = file
                break
            file.close()

    def look(self, now_ns: int) -> None:
        """Read the total anew, if the last look is old."""
        if self._file is None or now_ns - self._looked_ns < LOOK_S * 1e9:
            return
        self._looked_ns = now_ns
        found = parse_throttled_ms(self._file.read())
        self.throttled_ms = self.throttled_ms if found is None else found

    def close(self) -> None:
        """Give the descriptor back."""
        if self._file is not None:
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
