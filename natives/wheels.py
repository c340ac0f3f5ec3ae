"""Fetches parts of a wheel without the rest: torch's headers are 9 MB of a wheel of 500 to 900."""

import json
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ncclwatch.native.build import NativeError

_DIRECTORY_BYTES = 4 << 20  # at the end of a wheel, with the list of its files


@dataclass(frozen=True, slots=True)
class Found:
    """A wheel of an index, or on this disk."""

    version: str
    url: str


def find(requirement: str) -> Found:
    """Return the wheel that pip would install for a requirement, as pip is set up here. Raises NativeError."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as report:
        command = ("install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet", "--report", report.name)
        done = subprocess.run([sys.executable, "-m", "pip", *command, requirement], capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
            raise NativeError(
                f"pip finds no wheel of {requirement}: {errors[0].removeprefix('ERROR: ') if errors else done.stderr}"
            )
        (wheel,) = json.load(report)["install"]
    return Found(wheel["metadata"]["version"], wheel["download_info"]["url"])


def extract(found: Found, wanted: Callable[[str], bool], into: Path) -> None:
    """Extract the files with a wanted name. Raises OSError where the server does not send parts of files."""
    parts = urllib.parse.urlsplit(found.url)
    if parts.scheme == "file":
        with zipfile.ZipFile(urllib.parse.unquote(parts.path)) as wheel:
            wheel.extractall(into, [name for name in wheel.namelist() if wanted(name)])
        return
    with _sparse(found.url) as (copy, fetch), zipfile.ZipFile(copy) as wheel:
        members = sorted(wheel.infolist(), key=lambda each: each.header_offset)
        ends = [*(each.header_offset for each in members[1:]), wheel.start_dir]
        spans: list[tuple[int, int]] = []
        for member, end in zip(members, ends, strict=True):
            if wanted(member.filename):
                begin = spans.pop()[0] if spans and spans[-1][1] == member.header_offset else member.header_offset
                spans.append((begin, end))
        for begin, end in spans:
            fetch(begin, end)
        wheel.extractall(into, [name for name in wheel.namelist() if wanted(name)])


@contextmanager
def _sparse(url: str) -> Iterator[tuple[Path, Callable[[int, int], None]]]:
    """Yield a file as long as the wheel, which has its end so far, and what fetches the bytes between two places."""
    with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=60) as answer:
        size = int(answer.headers["Content-Length"])
    with tempfile.NamedTemporaryFile(suffix=".whl") as copy:
        copy.truncate(size)

        def fetch(begin: int, end: int) -> None:
            part = urllib.request.Request(url, headers={"Range": f"bytes={begin}-{end - 1}"})
            with urllib.request.urlopen(part, timeout=300) as answer:
                if answer.status != 206:
                    raise OSError(f"{url}: the server sends whole files only")
                copy.seek(begin)
                while piece := answer.read(1 << 20):
                    copy.write(piece)
            copy.flush()

        fetch(max(0, size - _DIRECTORY_BYTES), size)
        yield Path(copy.name), fetch
