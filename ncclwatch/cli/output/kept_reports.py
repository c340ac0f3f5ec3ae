"""Keeps the reports of hangs that `ncclwatch run` has seen with a server of its own, which ends with the command."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ncclwatch.cli.output.report_file import prepare
from ncclwatch.contract import job_names
from ncclwatch.contract.machine.homes import make_own, state_dir

KEPT_MAX = 20  # the newest


def keep(job: str, report: bytes, environ: Mapping[str, str] = os.environ) -> Path:
    """Write a report below this user's state directory and return where. Raises OSError or `ConfigError`."""
    base, makeshift = state_dir(environ)
    if makeshift:
        make_own(base)
    place = base / "reports"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = place / f"{job_names.to_directory(job)}.json"
    prepare(path).write(report)
    _forget_old(place)
    return path


def _forget_old(place: Path) -> None:
    with suppress(OSError):
        reports = sorted(place.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in reports[KEPT_MAX:]:
            old.unlink()
