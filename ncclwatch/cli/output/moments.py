"""Reads the moment that somebody means who types "2h", "2026-11-20" or "2026-11-20 17:30"."""

import re
from datetime import datetime

from ncclwatch.contract.errors import ConfigError

_UNITS_S = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_SPAN = re.compile(r"(\d{1,9})\s*(s|m|min|h|d|w)")


def span_s(written: str) -> int | None:
    """Return the seconds of a span such as "90s", "15m", "2h", "3d"; None if it is none."""
    found = _SPAN.fullmatch(written.strip().lower())
    return int(found[1]) * _UNITS_S[found[2]] if found is not None else None


def moment(written: str) -> str:
    """Return a moment in ISO 8601 with its zone; without one the reader's own is meant. Raises `ConfigError`."""
    text = written.strip()
    try:
        found = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
        return found.astimezone().isoformat()
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(f"{written!r} is no time; write 2h, 3d, 2026-11-20 or 2026-11-20T17:30") from error
