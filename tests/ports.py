"""Ports for servers that are started by tests."""

import random
import socket
from pathlib import Path

_FIRST = 10_000  # below are the ports of well-known services
_RANDOM = random.SystemRandom()  # fixed seeds of tests would give all processes the same ports


def free_port() -> int:
    """Return a port that is free on all addresses.

    It is below the range from which the kernel takes ports for outgoing connections and for servers without a port of
    their own: such a connection of another test could take it before the server listens.
    """
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = _RANDOM.randrange(_FIRST, end)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
