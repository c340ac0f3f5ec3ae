"""A network between machines of a test: a switch in user space, which can lose, delay and refuse packets.

Each machine has one end of a TAP device; the kernels talk TCP over it as over any Ethernet.
"""

import ctypes
import fcntl
import os
import random
import selectors
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from tests.integration.machine import Machine

_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000  # <linux/if_tun.h>
_FRAME_BYTES_MAX = 65536
_QUEUE_BYTES_MAX = 256 * 1024  # that wait for a slow link; what is more is lost, as in any switch
_IPV4, _TCP = b"\x08\x00", 6

INTERFACE = "cable"


class Network:
    """Ethernet between machines, which get the addresses 10.92.0.1, 10.92.0.2 and so on as they join.

    Its faults may be changed at any time; machines are named by that order, from 0.
    """

    def __init__(self, seed: int = 0) -> None:
        self.cut: set[int] = set()  # machines that nothing reaches, and of which nothing comes
        self.refuses: Callable[[int, int, bytes], bool] = lambda source, target, frame: False
        self.loss = 0.0  # share of the packets that get lost
        self.bytes_per_s = 0.0  # of each machine's link; 0: as fast as it goes
        self._chance = random.Random(seed)
        self._taps: list[int] = []
        self._queues: list[deque[bytes]] = []
        self._queued: list[int] = []
        self._free_at: list[float] = []
        self._selector = selectors.DefaultSelector()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="network", daemon=True)

    def join(self, machine: Machine) -> str:
        """Connect a machine, and return its address."""
        number = len(self._taps)
        address = f"10.92.0.{number + 1}"
        tap = _tap_in(machine.net)
        os.set_blocking(tap, False)
        enter = ["nsenter", f"--net={machine.net}", "ip"]
        for words in (
            ["link", "set", INTERFACE, "address", _mac(number)],
            ["address", "add", f"{address}/24", "dev", INTERFACE],
            ["link", "set", INTERFACE, "up"],
        ):
            subprocess.run([*enter, *words], check=True)
        self._taps.append(tap)
        self._queues.append(deque())
        self._queued.append(0)
        self._free_at.append(0.0)
        self._selector.register(tap, selectors.EVENT_READ, number)
        return address

    def __enter__(self) -> "Network":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        for tap in self._taps:
            os.close(tap)
        self._selector.close()

    def _carry(self) -> None:
        while not self._over.is_set():
            ready = self._selector.select(self._pause_s()) if self._taps else []
            for key, _ in ready:
                self._take(key.fd, key.data)
            for number in range(len(self._queues)):
                self._drain(number)
            if not self._taps:
                time.sleep(0.01)

    def _pause_s(self) -> float:
        waiting = [self._free_at[number] for number, queue in enumerate(self._queues) if queue]
        return max(0.0, min(0.05, min(waiting) - time.monotonic())) if waiting else 0.05

    def _take(self, tap: int, source: int) -> None:
        for _ in range(64):
            try:
                frame = os.read(tap, _FRAME_BYTES_MAX)
            except (BlockingIOError, OSError):
                return
            target = frame[5] if frame[0] == 2 else -1  # our own addresses; all others are for everybody
            for number in range(len(self._taps)) if target < 0 else (target,):
                if number != source and number < len(self._taps) and self._passes(source, number, frame):
                    self._enqueue(number, frame)

    def _passes(self, source: int, target: int, frame: bytes) -> bool:
        if source in self.cut or target in self.cut or self.refuses(source, target, frame):
            return False
        return not (self.loss and self._chance.random() < self.loss)

    def _enqueue(self, number: int, frame: bytes) -> None:
        if self._queued[number] + len(frame) <= _QUEUE_BYTES_MAX:
            self._queues[number].append(frame)
            self._queued[number] += len(frame)

    def _drain(self, number: int) -> None:
        queue = self._queues[number]
        while queue:
            now = time.monotonic()
            if self.bytes_per_s and now < self._free_at[number]:
                return
            frame = queue.popleft()
            self._queued[number] -= len(frame)
            if self.bytes_per_s:
                self._free_at[number] = max(now - 0.01, self._free_at[number]) + len(frame) / self.bytes_per_s
            try:
                os.write(self._taps[number], frame)
            except OSError:  # its machine is going down, or takes no more: the packet is lost
                continue


def ports_of(frame: bytes) -> tuple[int, int]:
    """Return the ports of a packet of TCP over IPv4, (0, 0) of any other."""
    if frame[12:14] != _IPV4 or frame[23] != _TCP:
        return 0, 0
    head = 14 + (frame[14] & 0x0F) * 4
    return int.from_bytes(frame[head : head + 2], "big"), int.from_bytes(frame[head + 2 : head + 4], "big")


def _mac(number: int) -> str:
    return f"02:00:00:00:00:{number:02x}"


def _tap_in(net: str) -> int:
    """Return a new TAP device in another network namespace, which a thread enters for it."""
    found: list[int] = []

    def make() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        space = os.open(net, os.O_RDONLY)
        try:
            if libc.setns(space, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(space)
        tap = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), _IFF_TAP | _IFF_NO_PI))
        found.append(tap)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return found[0]
