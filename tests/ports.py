"""Ports for servers that are started by tests."""

import itertools
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

_FIRST = 10_000  # below are the ports of well-known services
_SLICES = 8  # more than a run of tests has workers
_RANDOM = random.SystemRandom()  # fixed seeds of tests would give all processes the same ports


def _ports() -> Iterator[int]:
    """Return ports without end: each worker of a run has a slice of its own, and comes back to none for long.

    Two workers that draw from one range may draw a port that is free for both, before either server listens.
    """
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    mine = range(_FIRST + worker % _SLICES, end, _SLICES)
    begin = _RANDOM.randrange(len(mine))
    return itertools.cycle([*mine[begin:], *mine[:begin]])


_MINE = _ports()


def free_port() -> int:
    """Return a port that is free on all addresses.

    It is below the range from which the kernel takes ports for outgoing connections and for servers without a port of
    their own: such a connection of another test could take it before the server listens.
    """
    for port in _MINE:
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
    raise AssertionError("the ports are a cycle")
