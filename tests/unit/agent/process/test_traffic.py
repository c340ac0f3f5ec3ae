"""What a process receives by recv() is no read() that the kernel counts for it, and is seen all the same."""

import fcntl
import itertools
import os
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import closing

import pytest

from ncclwatch_agent.process.connections import traffic as traffic_module
from ncclwatch_agent.process.connections.traffic import NodeTraffic, Traffic

SECOND_NS = 10**9
PART = 200_000
DOWNLOADS = f"""
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as line:
    while len(line.recv({PART}, socket.MSG_WAITALL)) == {PART}:
        print(flush=True)
"""


class Download:
    """A process that takes what we send it, in parts."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        command = [sys.executable, "-c", DOWNLOADS, str(self._listener.getsockname()[1])]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._line, _ = self._listener.accept()
        self.pids = (self._process.pid,)

    def send(self) -> None:
        """Send a part, and wait until it is there."""
        self._line.sendall(b"x" * PART)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def send_little(self) -> None:
        """Send what is no part, and wait until it is there."""
        self._line.sendall(b"x" * 1000)
        while fcntl.ioctl(self._line, termios.TIOCOUTQ, bytes(4)) != bytes(4):  # not yet acknowledged
            pass

    def close(self) -> None:
        """End it."""
        self._line.close()
        self._listener.close()
        with self._process:
            pass


@pytest.fixture
def download() -> Iterator[Download]:
    with closing(Download()) as found:
        yield found


def test_what_a_process_receives_is_seen_while_it_does(download: Download) -> None:
    traffic = Traffic(NodeTraffic())
    download.send()
    assert traffic.look(download.pids, SECOND_NS) == 0, "nobody knows when that was"
    download.send()
    assert traffic.look(download.pids, 2 * SECOND_NS) == PART


def test_what_was_received_long_ago_is_no_sign_of_work_now(download: Download) -> None:
    traffic = Traffic(NodeTraffic())
    traffic.look(download.pids, SECOND_NS)
    download.send()
    assert traffic.look(download.pids, 9 * SECOND_NS) == 0


def test_a_trickle_is_no_work(download: Download, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store is asked again and again by who waits for a key."""
    monkeypatch.setattr(traffic_module, "_octets", itertools.count(step=PART).__next__)  # others move much here
    traffic = Traffic(NodeTraffic())
    traffic.look(download.pids, SECOND_NS)
    download.send_little()
    assert traffic.look(download.pids, 2 * SECOND_NS) == 0


def test_what_was_moved_before_a_quiet_second_is_not_moved_after_it(
    download: Download, monkeypatch: pytest.MonkeyPatch
) -> None:
    octets = iter([PART, PART, 2 * PART])  # nothing is moved in the second, and others move much in the third
    monkeypatch.setattr(traffic_module, "_octets", lambda: next(octets))
    traffic = Traffic(NodeTraffic())
    download.send()
    assert [traffic.look(download.pids, second * SECOND_NS) for second in (1, 2, 3)] == [0, 0, 0]


def test_who_is_asked_is_not_at_work_of_its_own(download: Download) -> None:
    """Rank 0 may have the store, and be asked by thousands."""
    traffic = Traffic(NodeTraffic())
    traffic.look((os.getpid(),), SECOND_NS)
    download.send()
    assert traffic.look((os.getpid(),), 2 * SECOND_NS) == 0
