"""The addresses of this node, and those that processes here are connected to."""

import ipaddress
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")  # see proc_pid_net(5)
_ESTABLISHED = "01"


def own_addresses() -> tuple[str, ...]:
    """Return the IPv4 addresses of the interfaces of this node, those of the loopback left out. Never raises."""
    import psutil  # only in jobs on several nodes: an agent has no other use for it

    try:
        every = [each for interface in psutil.net_if_addrs().values() for each in interface]
    except OSError:  # a sandbox may forbid netlink, by which the kernel tells them
        return ()
    found = (each.address for each in every if each.family == socket.AF_INET)
    return tuple(dict.fromkeys(address for address in found if not ipaddress.ip_address(address).is_loopback))


def connected_to(pids: Iterable[int]) -> set[str]:
    """Return the addresses at the other ends of the TCP connections of processes, as IPv4 where it is. Never raises.

    The tables of all connections here are read once, however many processes these are: each may have a thousand.
    """
    inodes = {inode for pid in pids for inode in sockets_of(pid)}
    found: set[str] = set()
    for table in _TABLES:
        with suppress(OSError), open(table, encoding="ascii", errors="replace") as lines:
            for line in lines:
                words = line.split(None, 10)
                if len(words) > 9 and words[3] == _ESTABLISHED and words[9] in inodes:
                    found.add(words[2].partition(":")[0])
    return {address for text in found if (address := _address(text))}


def sockets_of(pid: int) -> Iterator[str]:
    """Yield the inodes of the sockets of a process; of one that has ended or is none of ours, nothing."""
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                kind, _, inode = str(link.readlink()).partition(":")
                if kind == "socket":
                    yield inode.strip("[]")


def _address(text: str) -> str:
    """Return an address of such a table, words of 4 bytes in the order of this machine, "" if it is none.

    One of IPv4 within IPv6, as sockets for both show it, is one of IPv4.
    """
    try:
        raw = bytes.fromhex(text)
        packed = b"".join(struct.pack("!I", *word) for word in struct.iter_unpack("=I", raw))
        found = ipaddress.ip_address(packed)
    except (ValueError, struct.error):
        return ""
    within = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(within or found)
