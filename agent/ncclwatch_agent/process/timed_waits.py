"""Reads when the wait that a thread is in ends by itself: the deadline or the time that it gave to the kernel.

/proc/<pid>/task/<tid>/syscall holds the arguments of the call. Where one of them is an address, sixteen bytes are read
there, which whoever may read the arguments may read as well.
"""

import os
import struct
import time
from dataclasses import dataclass

from ncclwatch.contract.model.rank import TimedWait
from ncclwatch_agent.process.procfs import call_name, read_text

_MILLISECONDS = {"poll": 2, "epoll_wait": 3, "epoll_pwait": 3}  # which argument it is
_TIMES = {"select": 4, "pselect6": 4, "ppoll": 2, "nanosleep": 0, "clock_nanosleep": 2, "futex": 3}  # an address
_MICROSECONDS = frozenset({"select"})  # of two numbers, the second counts these, and not nanoseconds
_SELECTS = frozenset({"select", "pselect6"})
_SLEEPS = frozenset({"nanosleep", "clock_nanosleep"})
_ABSOLUTE = 1  # flag of clock_nanosleep
_CLOCK_REALTIME, _CLOCK_MONOTONIC = 0, 1
_FUTEX_WAIT, _FUTEX_WAIT_BITSET, _FUTEX_COMMAND, _FUTEX_REALTIME = 0, 9, 0x7F, 0x100


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """What a call says of its own end. One of both is known."""

    call: str
    asleep: bool  # it waits for nothing but this moment
    left_s: float | None = None  # from now on
    whole_s: float | None = None  # from when it began


def timed_wait(pid: int, lasted_s: float) -> TimedWait | None:
    """Return the wait of a process's main thread, None if it never ends by itself or nobody may look.

    `lasted_s` is for how long the thread has not run: the wait began no later.
    """
    found = deadline(pid, pid)
    if found is None:
        return None
    left_s = found.left_s if found.left_s is not None else max(0.0, (found.whole_s or 0.0) - lasted_s)
    whole_s = found.whole_s if found.whole_s is not None else lasted_s + left_s
    return TimedWait(call=found.call, asleep=found.asleep, left_s=left_s, whole_s=whole_s)


def deadline(pid: int, tid: int) -> Deadline | None:
    """Return when the wait of a thread ends by itself, None if it never does or nobody may look."""
    number, *words = read_text(f"/proc/{pid}/task/{tid}/syscall").split()[:7] or [""]
    try:
        arguments = [int(word, 16) for word in words]
    except ValueError:
        return None
    return parse(pid, call_name(number), arguments) if len(arguments) == 6 else None


def parse(pid: int, call: str, arguments: list[int]) -> Deadline | None:
    """Return when a call with these arguments ends by itself, None if it never does."""
    asleep = call in _SLEEPS or (call in _SELECTS and arguments[0] == 0)
    if call in _MILLISECONDS:
        milliseconds = arguments[_MILLISECONDS[call]] & 0xFFFFFFFF
        endless = milliseconds >= 1 << 31
        return None if endless else Deadline(call=call, asleep=asleep, whole_s=milliseconds / 1e3)
    address = arguments[_TIMES[call]] if call in _TIMES else 0
    seconds = _time_at(pid, address, 1e6 if call in _MICROSECONDS else 1e9) if address else None
    if seconds is None:
        return None
    clock = _clock(call, arguments)
    if clock is None:
        return Deadline(call=call, asleep=asleep, whole_s=seconds)
    return Deadline(call=call, asleep=asleep, left_s=max(0.0, seconds - clock)) if clock > 0 else None


def _clock(call: str, arguments: list[int]) -> float | None:
    """Return what the clock shows by which a moment is told, None where a time is told, 0 of an unknown clock."""
    if call == "clock_nanosleep" and arguments[1] & _ABSOLUTE:
        return {_CLOCK_REALTIME: time.time(), _CLOCK_MONOTONIC: time.monotonic()}.get(arguments[0], 0.0)
    if call == "futex":
        command = arguments[1] & _FUTEX_COMMAND
        if command == _FUTEX_WAIT_BITSET:
            return time.time() if arguments[1] & _FUTEX_REALTIME else time.monotonic()
        return None if command == _FUTEX_WAIT else 0.0
    return None


def _time_at(pid: int, address: int, parts: float) -> float | None:
    """Return the seconds that a process has at an address, as two numbers of 64 bits."""
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        seconds, rest = struct.unpack("=qq", os.pread(memory, 16, address))
    except (OSError, OverflowError, struct.error):
        return None
    finally:
        os.close(memory)
    return float(seconds + rest / parts)
