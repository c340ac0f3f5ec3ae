"""How much processes move through the TCP connections that they opened: a download is work, and no counter shows it.

/proc/PID/io counts read() and write(), and not recv() and send(). What the kernel has counted for each connection is in
its tcp_info, which netlink tells (sock_diag(7), struct inet_diag_msg and struct tcp_info of Linux 4.1 and newer).
"""

import functools
import os
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ncclwatch_agent.process.connections.addresses import sockets_of

BYTES_PER_S_MIN = 65_536.0  # less may be what keeps a connection alive, or a question asked again and again
STALE_S = 3.0  # after so long nobody knows when it was moved
_ANSWER_BYTES_MAX = 16 << 20  # of all connections of a node: some ten thousand

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _DONE, _ERROR = 4, 20, 3, 2
_REQUEST_OF_ALL = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_HEAD = struct.Struct("=IHHII")  # struct nlmsghdr
_REQUEST = struct.Struct("=BBBxI48x")  # struct inet_diag_req_v2
_STATES = 1 << 1 | 1 << 10  # established, listening
_INFO = 2  # INET_DIAG_INFO
_LISTENS = 10
_MESSAGE_BYTES = 72
_PORT = struct.Struct("!H")
_INODE = struct.Struct("=I")
_INODE_AT = 68
_ATTRIBUTE = struct.Struct("=HH")
_MOVED = struct.Struct("=QQ")  # tcpi_bytes_acked, tcpi_bytes_received
_MOVED_AT = 120


class NodeTraffic:
    """What was moved so far through each connection of this node that a process here has opened, by inode."""

    def __init__(self) -> None:
        self._at_ns = -1
        self._octets = 0
        self._moved: dict[str, int] | None = None

    @classmethod
    @functools.cache
    def of_this_node(cls) -> "NodeTraffic":
        """Return the one that all who look share."""
        return cls()

    def moved(self, now_ns: int) -> dict[str, int] | None:
        """Return bytes by inode as of now, None if next to nothing was moved here, or nobody can tell. Never raises.

        The kernel is asked once for all who look at one moment. It takes tens of milliseconds, as it goes through a
        table of all connections that there could be.
        """
        if now_ns != self._at_ns:
            since_s, self._at_ns, self._moved = (now_ns - self._at_ns) / 1e9, now_ns, None
            before, self._octets = self._octets, _octets()
            if 0 <= self._octets - before < BYTES_PER_S_MIN * since_s:
                return None
            with suppress(OSError, struct.error):
                listening: set[int] = set()
                found = [each for family in (socket.AF_INET, socket.AF_INET6) for each in _ask(family, listening)]
                self._moved = {inode: moved for port, inode, moved in found if port not in listening}
        return self._moved


class Traffic:
    """What one process and its children move, while somebody looks."""

    def __init__(self, node: NodeTraffic | None = None) -> None:
        self._node = node or NodeTraffic.of_this_node()
        self._seen: dict[str, int] = {}
        self._seen_ns = 0

    def look(self, pids: Iterable[int], now_ns: int) -> int:
        """Return how many bytes were moved since the last look, 0 if that is long ago, or next to nothing was."""
        moved = self._node.moved(now_ns)
        if moved is None:  # what was seen before stays the beginning, until it is stale
            return 0
        since_s, before = (now_ns - self._seen_ns) / 1e9, self._seen
        self._seen = {inode: moved[inode] for pid in pids for inode in sockets_of(pid) if inode in moved}
        fresh, self._seen_ns = self._seen_ns > 0 and since_s <= STALE_S, now_ns
        grown = sum(count - before.get(inode, 0) for inode, count in self._seen.items())
        return grown if fresh and grown >= BYTES_PER_S_MIN * since_s else 0


def _octets() -> int:
    """Return the bytes that went in and out here so far, by IPv4 and IPv6."""
    found = 0
    lines = _lines("netstat")
    for names, values in zip(lines[::2], lines[1::2], strict=False):
        if names.startswith("IpExt:"):
            counts = dict(zip(names.split()[1:], values.split()[1:], strict=False))
            found += int(counts.get("InOctets", 0)) + int(counts.get("OutOctets", 0))
    for line in _lines("snmp6"):
        name, _, count = line.partition(" ")
        found += int(count) if name in ("Ip6InOctets", "Ip6OutOctets") else 0
    return found


def _lines(name: str) -> list[str]:
    try:
        return Path("/proc/self/net", name).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def _ask(family: int, listening: set[int]) -> list[tuple[int, str, int]]:
    """Return (own port, inode, bytes) of each connection; ports on which somebody listens are added to `listening`."""
    found: list[tuple[int, str, int]] = []
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _STATES)
    head = _HEAD.pack(_HEAD.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_OF_ALL, 1, os.getpid())
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as asking:
        asking.settimeout(0.5)
        asking.sendto(head + body, (0, 0))
        taken = 0
        while taken < _ANSWER_BYTES_MAX:
            answer, (sender, _) = asking.recvfrom(1 << 18)
            taken += len(answer)
            if sender == 0 and not _take(answer, found, listening):  # any process may send to it; 0 is the kernel
                break
    return found


def _take(answer: bytes, found: list[tuple[int, str, int]], listening: set[int]) -> bool:
    """Take what one answer says. Returns whether more comes."""
    at = 0
    while at + _HEAD.size <= len(answer):
        size, kind, *_ = _HEAD.unpack_from(answer, at)
        if kind in (_DONE, _ERROR) or size < _HEAD.size:
            return False
        message = memoryview(answer)[at + _HEAD.size : at + size]
        (port,) = _PORT.unpack_from(message, 4)
        if message[1] == _LISTENS:
            listening.add(port)
        else:
            (inode,) = _INODE.unpack_from(message, _INODE_AT)
            found.append((port, str(inode), _moved_in(message[_MESSAGE_BYTES:])))
        at += size + 3 & ~3
    return True


def _moved_in(attributes: memoryview) -> int:
    """Return the bytes that tcp_info among these attributes counts, 0 if it is not there or older."""
    at = 0
    while at + _ATTRIBUTE.size <= len(attributes):
        size, kind = _ATTRIBUTE.unpack_from(attributes, at)
        if kind == _INFO and size - _ATTRIBUTE.size >= _MOVED_AT + _MOVED.size:
            return int(sum(_MOVED.unpack_from(attributes, at + _ATTRIBUTE.size + _MOVED_AT)))
        if size < _ATTRIBUTE.size:
            break
        at += size + 3 & ~3
    return 0
