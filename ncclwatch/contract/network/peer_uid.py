"""Tells which user holds the other end of a TCP connection inside this machine, as the kernel knows it.

Whoever listens on a port of 127.0.0.1 may be any user of the machine. The kernel knows who holds each end of a
connection, and tells everybody: by netlink in one question and one answer (sock_diag(7): `inet_diag_req_v2`,
`inet_diag_msg`), and where that is not allowed in /proc/net/tcp. Both ends must be in one network namespace; an end
that is not there is somebody on another machine.

Asked is for the connection itself and never for the port: a listener may be another's by the time of the answer. An
end that no process holds, because none has accepted it yet or its process has closed it, is told by the kernel as one
of uid 0, without an inode. It says nothing about who will read what is sent.
"""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from ncclwatch.contract.errors import NcclwatchError

ACCEPT_S_MAX = 3.0  # in which a server must have accepted a connection
FIRST_PAUSE_S, PAUSE_S_MAX = 0.0005, 0.05  # between two questions about an end that nobody holds yet

Address = tuple[str, int]

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLMSG_ERROR = 2
_NLM_F_REQUEST = 1
_ANY_STATE = 0xFFFFFFFF
_ESTABLISHED, _LISTEN = 1, 10
_NETLINK_HEAD = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_REQUEST = struct.Struct("=BBBxI")  # family, protocol, extensions, states
_PORTS = struct.Struct("!HH")
_ANSWER_HEAD = struct.Struct("=BBBB")  # family, state, timer, retransmissions
_ANSWER_TAIL = struct.Struct("=5I")  # expires, queues, uid, inode
_SOCKET_ID_BYTES = 48  # ports, two addresses of 16 bytes, interface, cookie
_NO_INTERFACE_NO_COOKIE = struct.pack("=III", 0, _ANY_STATE, _ANY_STATE)


class NotOurs(NcclwatchError):
    """A server that must belong to this user belongs to another, or nobody can tell. The message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The other end of a connection."""

    uid: int
    held: bool  # by a process; else `uid` means nothing


def other_end(local: Address, peer: Address) -> End | None:
    """Return who holds the other end of a connection; None if it is not on this machine or nobody can tell."""
    try:
        ours, theirs = _plain(local), _plain(peer)
        found = _ask_netlink(theirs, ours)
        if found is None and not _netlink_answers():
            found = _read_proc(theirs, ours)
    except (OSError, ValueError):
        return None
    return None if found is None or (found.held and _is_unmapped(found.uid)) else found


def is_ours(uid: int) -> bool:
    """Whether a user is this one, or has the number of root, who can do all that this one can.

    The number is no proof of that: a container on the host's network may have it, and no rights. Servers ask for more.
    """
    return uid in (0, os.geteuid())


def pauses() -> Iterator[float]:
    """Return how long to wait before each further question about an end that nobody holds yet, until time is up."""
    pause_s, waited_s = FIRST_PAUSE_S, 0.0
    while waited_s < ACCEPT_S_MAX:
        yield pause_s
        waited_s += pause_s
        pause_s = min(PAUSE_S_MAX, 2 * pause_s)


def check(url: str, end: End | None, *, or_root: bool = True) -> None:
    """Raise `NotOurs` unless the server at the other end belongs to this user, or to root if that will do as well."""
    if end is None:
        raise NotOurs(f"nobody can tell on this machine which user the server at {url} belongs to")
    if not end.held:
        raise NotOurs(f"what listens at {url} accepts no connection, so nobody can tell which user it belongs to")
    if not (is_ours(end.uid) if or_root else end.uid == os.geteuid()):
        raise NotOurs(f"what listens at {url} belongs to another user (uid {end.uid}, this is uid {os.geteuid()})")


def addresses(sock: socket.socket) -> tuple[Address, Address]:
    """Return both addresses of a connected TCP socket: its own, and the other end's."""
    local, peer = sock.getsockname(), sock.getpeername()
    return (local[0], local[1]), (peer[0], peer[1])


@dataclass(frozen=True, slots=True)
class _Plain:
    """An address as the kernel compares it."""

    family: int
    packed: bytes
    port: int


def _plain(address: Address) -> _Plain:
    host, port = address[0].partition("%")[0], address[1]
    if ":" not in host:
        return _Plain(socket.AF_INET, socket.inet_pton(socket.AF_INET, host), port)
    return _of_bytes(socket.inet_pton(socket.AF_INET6, host), port)


def _of_bytes(packed: bytes, port: int) -> _Plain:
    """Return an address of IPv6; one that stands for an IPv4 address as that."""
    if packed.startswith(b"\0" * 10 + b"\xff\xff"):
        return _Plain(socket.AF_INET, packed[12:], port)
    return _Plain(socket.AF_INET6, packed, port)


def _ask_netlink(one: _Plain, other: _Plain) -> End | None:
    """Return the end at `one` of a connection with `other`, None if netlink does not answer or knows none."""
    identity = _PORTS.pack(one.port, other.port) + _wide(one) + _wide(other) + _NO_INTERFACE_NO_COOKIE
    body = _REQUEST.pack(one.family, socket.IPPROTO_TCP, 0, _ANY_STATE) + identity
    head = _NETLINK_HEAD.pack(_NETLINK_HEAD.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with suppress(OSError, struct.error):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as asking:
            asking.settimeout(0.5)
            asking.sendto(head + body, (0, 0))
            answer, (sender, _) = asking.recvfrom(4096)
        if sender == 0:  # any process may send to it, under its own number; 0 is the kernel
            return _parse(answer, one, other)
    return None


def _wide(address: _Plain) -> bytes:
    return address.packed.ljust(16, b"\0")


def _parse(answer: bytes, one: _Plain, other: _Plain) -> End | None:
    if _NETLINK_HEAD.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    at = _NETLINK_HEAD.size
    family, state, _, _ = _ANSWER_HEAD.unpack_from(answer, at)
    identity = answer[at + _ANSWER_HEAD.size :][:_SOCKET_ID_BYTES]
    *_, uid, inode = _ANSWER_TAIL.unpack_from(answer, at + _ANSWER_HEAD.size + _SOCKET_ID_BYTES)
    ports = _PORTS.unpack_from(identity)
    found = (_from_wide(family, identity[4:20], ports[0]), _from_wide(family, identity[20:36], ports[1]))
    # Where there is no such connection the kernel answers with a listener that would take one.
    if found != (one, other) or state == _LISTEN:
        return None
    return End(uid=uid, held=inode != 0)


def _from_wide(family: int, packed: bytes, port: int) -> _Plain:
    return _of_bytes(packed, port) if family == socket.AF_INET6 else _Plain(family, packed[:4], port)


@cache
def _netlink_answers() -> bool:
    """Whether netlink tells of connections here at all, found out once, with one of our own.

    Of a connection that is gone it knows nothing either, and to read the table instead takes 100 ms where there are
    thousands: that must not be had for the asking.
    """
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname(), timeout=1.0) as known,
        ):
            one, other = addresses(known)
            return _ask_netlink(_plain(one), _plain(other)) is not None
    except OSError:
        return False


def _read_proc(one: _Plain, other: _Plain) -> End | None:
    for name in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with suppress(OSError), open(name, encoding="ascii") as table:
            next(table, None)  # its heading
            for line in table:
                words = line.split()
                if int(words[3], 16) != _LISTEN and (_from_hex(words[1]), _from_hex(words[2])) == (one, other):
                    return End(uid=int(words[7]), held=words[9] != "0")
    return None


def _from_hex(text: str) -> _Plain:
    """Return an address of /proc/net/tcp: words of 4 bytes in the order of this machine, and the port."""
    host, _, port = text.partition(":")
    raw = bytes.fromhex(host)
    packed = b"".join(struct.pack("!I", *struct.unpack_from("=I", raw, at)) for at in range(0, len(raw), 4))
    return _of_bytes(packed, int(port, 16)) if len(packed) == 16 else _Plain(socket.AF_INET, packed, int(port, 16))


def _is_unmapped(uid: int) -> bool:
    """Whether a uid is what a user namespace shows for all users that it does not have."""
    try:
        with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:
            if uid != int(file.read()):
                return False
        with open("/proc/self/uid_map", encoding="ascii") as file:
            return file.read().split() != ["0", "0", "4294967295"]
    except (OSError, ValueError):
        return True
