"""Keeps what `ncclwatch run` knows of a hang: reports and captures, the newest of each where no place is named."""

import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ncclwatch.cli.output.report_file import prepare
from ncclwatch.contract import config, job_names
from ncclwatch.contract.machine import boot, homes

KEPT_MAX = 20
NAME_CHARS_MAX = 100  # of the job in the name of a capture


def keep_report(job: str, report: bytes, environ: Mapping[str, str] = os.environ) -> Path:
    """Write a report below this user's state directory and return where. Raises OSError or `ConfigError`."""
    path = _own_place("reports", environ) / f"{job_names.to_directory(job)}.json"
    prepare(path).write(report)
    _forget_old(path.parent, "*.json")
    return path


def keep_capture(job: str, data: bytes, environ: Mapping[str, str] = os.environ) -> Path:
    """Write a capture to the directory in NCCLWATCH_CAPTURES, else below this user's state directory.

    Returns where. Raises OSError or `ConfigError`.
    """
    named = environ.get(config.ENV_CAPTURES, "").strip()
    place = homes.expanded(named) if named else _own_place("captures", environ)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Several nodes may write to one directory, and of one job several hangs in one second.
    own = f"{boot.host_name()}-{secrets.token_hex(2)}"
    path = place / f"{_stem(job)}-{own}.zip"
    prepare(path, "the capture", config.ENV_CAPTURES).write(data)
    if not named:
        _forget_old(place, "*.zip")
    return path


def capture_name(job: str) -> str:
    """Return the name of a capture that is taken now."""
    return f"{_stem(job)}.zip"


def _stem(job: str) -> str:
    return f"{job_names.to_directory(job)[:NAME_CHARS_MAX]}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"


def _own_place(kind: str, environ: Mapping[str, str]) -> Path:
    base, makeshift = homes.state_dir(environ)
    if makeshift:
        homes.make_own(base)
    place = base / kind
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    return place


def _forget_old(place: Path, pattern: str) -> None:
    with suppress(OSError):
        kept = sorted(place.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in kept[KEPT_MAX:]:
            old.unlink()
