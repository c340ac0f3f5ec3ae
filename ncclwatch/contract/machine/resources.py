"""Reads what this machine, or this container of it, gives the processes of a job, from files that cost nothing.

Asked by a rank of its own node, and by `ncclwatch doctor`. Whatever cannot be read is unknown, never an error.
"""

import os
import re
import socket
from collections.abc import Iterable
from pathlib import Path

CAP_SYS_PTRACE = 1 << 19
_DRIVER = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s")


def read(path: str) -> str:
    """Return the text of a small file, "" if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def shm_mb(path: str = "/dev/shm") -> int | None:
    """Return the size of the shared memory file system in MiB, None if there is none."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize // 2**20


def ptrace_refusal(scope: str | None = None, capabilities: int | None = None) -> str:
    """Return why the kernel lets nobody of this user read the stacks of a process, "" if it does.

    Yama's scope 1 allows whom the process itself allows, and a rank allows its agent.
    """
    scope = read("/proc/sys/kernel/yama/ptrace_scope").strip() if scope is None else scope
    if scope == "3":
        return "kernel.yama.ptrace_scope is 3"
    if scope == "2":
        held = _capabilities() if capabilities is None else capabilities
        return "" if held & CAP_SYS_PTRACE else "kernel.yama.ptrace_scope is 2"
    return ""


def _capabilities() -> int:
    for line in read("/proc/self/status").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split(":", 1)[1].strip() or "0", 16)
    return 0


def nvidia_driver(text: str | None = None) -> str:
    """Return the version of the NVIDIA driver, "" where none is loaded."""
    found = _DRIVER.search(read("/proc/driver/nvidia/version") if text is None else text)
    return found.group(1) if found else ""


def infiniband_is_active(root: str = "/sys/class/infiniband") -> bool:
    """Whether a port of an InfiniBand or RoCE device is up; NCCL takes it unless it is told not to."""
    try:
        return any("ACTIVE" in read(str(state)) for state in Path(root).glob("*/ports/*/state"))
    except OSError:
        return False


def interfaces() -> tuple[str, ...]:
    """Return the names of the network interfaces, () if nobody tells."""
    try:
        return tuple(name for _, name in socket.if_nameindex())
    except OSError:
        return ()


def nccl_takes_none(choice: str, names: Iterable[str]) -> bool:
    """Whether NCCL_SOCKET_IFNAME leaves no interface: prefixes, whole names after "=", exclusions after "^"."""
    known = tuple(names)
    excluding, exact = choice.startswith("^"), choice.lstrip("^").startswith("=")
    words = [word for word in choice.lstrip("^").lstrip("=").split(",") if word]
    if excluding or not words or not known:
        return False
    return not any(name == word if exact else name.startswith(word) for name in known for word in words)


def gloo_lacks(choice: str, names: Iterable[str]) -> bool:
    """Whether GLOO_SOCKET_IFNAME names an interface that is not here: gloo takes whole names, and wants all of them."""
    known = tuple(names)
    return bool(known) and any(word not in known for word in choice.split(",") if word)
