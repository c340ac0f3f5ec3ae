"""Says whether what the main thread may wait for, a thread or a process, waits for an answer from elsewhere itself.

A pool of threads asks a service, and the main thread sits in a futex until all of them are back; or a child process
does, and the main thread reads from a pipe, or waits for that process. What a thread asks is
seen by its system call: it receives from a socket, or polls one socket with a timeout, as Python does for a socket that
has one. A server's own idle threads accept, select or wait for many descriptors at once.

A thread that sleeps between two tries to reach a service asks nobody just now, and goes on by itself as well. One that
sleeps for a moment at a time looks whether there is work.
"""

import contextlib
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from ncclwatch.contract.model.rank import FOR_CHILDREN
from ncclwatch_agent.process.procfs import call_name, read_text
from ncclwatch_agent.process.timed_waits import deadline

THREADS_MAX = 256  # that are looked at
_RECEIVES = frozenset({"recvfrom", "recvmsg"})
_SOCKET_WAITS = ("wait_woken", "sk_wait", "tcp_")  # where a read() from a socket sits
_WAITS, _POLLS = frozenset({"wait4", "waitid"}), frozenset({"poll", "ppoll"})
_PAUSE_S = 2.0  # of a sleep between two tries, at least
_SAME_S = 0.2  # by which one end of a sleep may look like two
_ASKS_MS, _ENDLESS_MS = 2000, 1 << 31  # of a timeout of poll; a server's own loop polls for less than that at a time


def awaits_answer(pid: int, children: Iterable[int] = ()) -> bool:
    """Say whether a process's other threads, or its children where it waits for such, receive from a socket now.

    Never raises.
    """
    if call_name(read_text(f"/proc/{pid}/syscall").partition(" ")[0]) in FOR_CHILDREN:
        return any(_receives(child, child) for child in children)
    if any(_receives(pid, tid) for tid in _other_threads(pid)):
        return True
    asking = any(_receives(child, child) for child in children)
    return asking and awaits_children(pid)  # a pool of processes: a thread of this one takes what they return


def awaits_children(pid: int) -> bool:
    """Say whether another thread than the main one waits for processes, or for what they write. Never raises."""
    return any(_waits_for_children(pid, tid) for tid in _other_threads(pid))


def _waits_for_children(pid: int, tid: int) -> bool:
    number, *words = read_text(f"/proc/{pid}/task/{tid}/syscall").split()[:2] or [""]
    call = call_name(number)
    if call == "read":
        return "pipe" in read_text(f"/proc/{pid}/task/{tid}/wchan")
    return call in _WAITS or (call in _POLLS and bool(words) and _polled(pid, int(words[0], 16)).startswith("pipe:"))


class Pauses:
    """The sleeps of the other threads of a process, each as long as it was when it was first seen."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._sleeps: dict[int, tuple[float, float]] = {}  # by thread: when it ends, and how long it is

    def look(self, now_s: float) -> bool:
        """Say whether any of them is in a pause of its own. Never raises."""
        found = {}
        for tid in _other_threads(self._pid):
            wait = deadline(self._pid, tid)
            if wait is None or not wait.asleep:
                continue
            left_s = wait.left_s if wait.left_s is not None else wait.whole_s or 0.0
            ends_s, whole_s = self._sleeps.get(tid, (0.0, 0.0))
            same = abs(ends_s - now_s - left_s) < _SAME_S
            found[tid] = (now_s + left_s, max(whole_s, left_s) if same else left_s)
        self._sleeps = found
        return any(whole_s >= _PAUSE_S for _, whole_s in found.values())


def _other_threads(pid: int) -> list[int]:
    try:
        return [int(each.name) for each in Path(f"/proc/{pid}/task").iterdir() if each.name != str(pid)][:THREADS_MAX]
    except OSError:
        return []


def _receives(pid: int, tid: int) -> bool:
    number, *words = read_text(f"/proc/{pid}/task/{tid}/syscall").split()[:4] or [""]
    call = call_name(number)
    if call in _RECEIVES:
        return True
    if call == "read":
        return any(word in read_text(f"/proc/{pid}/task/{tid}/wchan") for word in _SOCKET_WAITS)
    if call != "poll" or len(words) != 3:
        return False
    address, descriptors, timeout = (int(word, 16) for word in words)
    asks = descriptors == 1 and _ASKS_MS <= timeout & 0xFFFFFFFF < _ENDLESS_MS
    return asks and _polled(pid, address).startswith("socket:")


def _polled(pid: int, address: int) -> str:
    """Return what a process polls first, such as "socket:[4711]"; `address` is where its descriptors are listed."""
    with contextlib.suppress(OSError, OverflowError, struct.error):
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            (descriptor,) = struct.unpack("=i", os.pread(memory, 4, address))
        finally:
            os.close(memory)
        return str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
    return ""
