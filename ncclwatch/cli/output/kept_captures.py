"""Keeps the captures that `ncclwatch run` takes before it ends a hung job."""

import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ncclwatch.cli.output.report_file import prepare
from ncclwatch.contract import config, job_names
from ncclwatch.contract.machine import boot, homes

NAME_CHARS_MAX = 100  # of the job in the name of a file
KEPT_MAX = 20  # the newest of this user, where no directory is named


def name_of(job: str, at: float | None = None) -> str:
    """Return the name of a capture that is taken now, or at a moment in seconds since 1970."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))
    return f"{job_names.to_directory(job)[:NAME_CHARS_MAX]}-{moment}.zip"


def keep(job: str, data: bytes, environ: Mapping[str, str] = os.environ) -> Path:
    """Write a capture to the directory in NCCLWATCH_CAPTURES, else below this user's state directory.

    Returns where. Raises OSError or `ConfigError`.
    """
    named = environ.get(config.ENV_CAPTURES, "").strip()
    if named:
        place = homes.expanded(named)
    else:
        base, makeshift = homes.state_dir(environ)
        if makeshift:
            homes.make_own(base)
        place = base / "captures"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Several nodes may write to one directory, and of one job several hangs in one second.
    path = place / f"{name_of(job).removesuffix('.zip')}-{boot.host_name()}-{secrets.token_hex(2)}.zip"
    file = prepare(path, "the capture", config.ENV_CAPTURES)
    try:
        file.write(data)
    except OSError:
        file.discard()
        raise
    if not named:
        _forget_old(place)
    return path


def _forget_old(place: Path) -> None:
    with suppress(OSError):
        kept = sorted(place.glob("*.zip"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in kept[KEPT_MAX:]:
            old.unlink()
