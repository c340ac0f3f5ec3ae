"""Reads what may grow in a server, an agent, their store and their runtime directory."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import psutil

MIB = 1024 * 1024


def read(server: psutil.Process, agent: psutil.Process, directory: Path, url: str) -> dict[str, float]:
    """Return all gauges at this moment. CPU is what was used so far, in seconds."""
    with urlopen(f"{url}/held", timeout=30) as answer:
        held = json.load(answer)
    found = {f"server {name}": float(number) for name, number in held.items()}
    for name, process in (("server", server), ("agent", agent)):
        with process.oneshot():
            found[f"{name} memory MiB"] = process.memory_full_info().uss / MIB
            found[f"{name} descriptors"] = float(process.num_fds())
            found[f"{name} threads"] = float(process.num_threads())
            found[f"{name} CPU s"] = sum(process.cpu_times()[:2])
    found["agent maps"] = float(len(Path(f"/proc/{agent.pid}/maps").read_text().splitlines()))
    found["store MiB"] = _bytes_below(directory / "store") / MIB
    found["runtime directory MiB"] = _bytes_below(directory / "runtime") / MIB
    found["runtime directory files"] = float(sum(1 for _ in _below(directory / "runtime")))
    return found


def _bytes_below(place: Path) -> int:
    total = 0
    for file in _below(place):
        with contextlib.suppress(OSError):  # it may go at this moment
            total += file.stat().st_blocks * 512
    return total


def _below(place: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(place):  # passes over directories that go at this moment
        yield from (Path(parent, name) for name in names)
