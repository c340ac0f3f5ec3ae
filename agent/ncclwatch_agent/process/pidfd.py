"""Tells whether a process has ended, and with which status, through a pidfd, which no reused pid can fool.

A pidfd becomes readable when the process ends. From Linux 6.15 on it also tells the status
after the parent has reaped the process; before that, only the zombie does.
"""

import contextlib
import fcntl
import os
import struct

_PIDFD_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, 64 bytes)
_WITH_EXIT = 1 << 3
_INFO = struct.Struct("<QQ11Ii")  # mask, cgroup, eleven ids, exit status
_GETFD = 438  # the same number on every architecture


class PidFd:
    """A process held by descriptor; `fd` is -1 where the kernel or a sandbox has no pidfds, or it is gone."""

    __slots__ = ("fd",)

    def __init__(self, pid: int) -> None:
        self.fd = -1
        with contextlib.suppress(OSError, AttributeError):
            self.fd = os.pidfd_open(pid)

    def exit_status(self) -> int | None:
        """Return how the process ended, as waitpid() gives it; None if it runs or the kernel does not tell."""
        if self.fd < 0:
            return None
        info = bytearray(_INFO.pack(_WITH_EXIT, *[0] * 13))
        try:
            fcntl.ioctl(self.fd, _PIDFD_GET_INFO, info)
        except OSError:
            return None
        fields = _INFO.unpack(info)
        return int(fields[-1]) if fields[0] & _WITH_EXIT else None

    def close(self) -> None:
        """Give the descriptor back."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def take_fd(pid: int, number: int) -> int:
    """Return a duplicate of another process's descriptor, sharing its file offset; -1 where that is refused."""
    import ctypes  # only here: it costs 10 ms that most agents never need

    with contextlib.suppress(OSError, AttributeError):
        pidfd = os.pidfd_open(pid)
        try:
            taken = int(ctypes.CDLL(None, use_errno=True).syscall(_GETFD, pidfd, number, 0))
        finally:
            os.close(pidfd)
        if taken >= 0:
            os.set_inheritable(taken, False)
        return taken
    return -1
