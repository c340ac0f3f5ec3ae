"""The addresses of this node, and those that processes here are connected to."""

import ipaddress
import socket
from collections.abc import Iterable


def own_addresses() -> tuple[str, ...]:
    """Return the IPv4 addresses of the interfaces of this node, those of the loopback left out."""
    import psutil  # only in jobs on several nodes: an agent has no other use for it

    every = (each for interface in psutil.net_if_addrs().values() for each in interface)
    found = (each.address for each in every if each.family == socket.AF_INET)
    return tuple(dict.fromkeys(address for address in found if not ipaddress.ip_address(address).is_loopback))


def connected_to(pids: Iterable[int]) -> set[str]:
    """Return the IPv4 addresses at the other ends of the TCP connections of processes. Never raises."""
    import psutil

    found: set[str] = set()
    for pid in pids:
        try:
            process = psutil.Process(pid)
            # The older name, until psutil 6.0.
            connections = getattr(process, "net_connections", None) or process.connections
            ends = [each.raddr.ip for each in connections("tcp") if each.status == psutil.CONN_ESTABLISHED]
        except (psutil.Error, OSError):  # it has ended
            continue
        found.update(map(_plain, ends))
    return found


def _plain(address: str) -> str:
    """Return an address as IPv4 if it is one within IPv6, as sockets for both show it."""
    found = ipaddress.ip_address(address.partition("%")[0])
    within = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(within or found)
