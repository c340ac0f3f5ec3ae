"""A rank that closes all of its descriptors after attach(), as a daemon does, and then opens files of its own.

The argument says where these are to lie.
"""

import os
import socket
import sys
import time
from pathlib import Path

import ncclwatch
from ncclwatch.contract.network import sockets
from ncclwatch.rank import worker_server
from ncclwatch.rank.ring.ringfile import process_start_ticks

FILES = 40

runtime = Path(os.environ["NCCLWATCH_RUNTIME_DIR"]) / f"ncclwatch-{os.getuid()}"
path = sockets.worker_socket(str(runtime), os.getpid(), process_start_ticks())


def until(done) -> None:
    """Wait for a moment that comes within seconds."""
    deadline = time.monotonic() + 30.0
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def some_thread_accepts() -> bool:
    """Whether torch's thread has come to wait for a question."""
    calls = [each.read_text().split(" ", 1)[0] for each in Path("/proc/self/task").glob("*/syscall")]
    return bool(set(calls) & {"43", "288", "202", "242"})  # accept and accept4, on x86-64 and arm64


ncclwatch.attach()
until(lambda: worker_server._listens_at)
until(some_thread_accepts)
os.closerange(3, 4096)
files = [open(f"{sys.argv[1]}/{number}.txt", "w") for number in range(FILES)]  # noqa: SIM115 - closed below
for file in files:
    file.write("the user's own")
until(lambda: not Path(path).exists())
try:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(path)
except FileNotFoundError:
    print("nobody can ask")
ncclwatch.detach()
for file in files:
    file.close()
print("files written", sum(Path(file.name).read_text() == "the user's own" for file in files))
