"""Makes links from ranks to where their logs are, from a template that the administrator gives."""

import string
from urllib.parse import quote

from ncclwatch.contract.errors import ConfigError

PLACES = ("job", "host", "rank", "pid", "from_s", "to_s")
BEFORE_S, AFTER_S = 600, 60  # of the moment in question


def check_log_url(template: str) -> str:
    """Return a template of addresses of logs. Raises `ConfigError` if it is none."""
    if not template:
        return ""
    try:
        parts = [part for part in string.Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        raise ConfigError(f"--log-url {template!r} cannot be read: {error}") from error
    if not template.startswith(("https://", "http://")):
        raise ConfigError(f"--log-url {template!r} is no address: it begins with https:// or http://")
    if unknown := sorted({str(name) for _, name, _, _ in parts}.difference(PLACES)):
        known = ", ".join(f"{{{name}}}" for name in PLACES)
        raise ConfigError(f"--log-url {template!r} names {{{unknown[0]}}}; what can be put in is {known}")
    if formed := next((name for _, name, form, conversion in parts if form or conversion), None):
        raise ConfigError(f"--log-url {template!r} has a format in {{{formed}}}; write {{{formed}}} alone")
    return template


def log_url(template: str, *, at: float, job: str, host: str = "", rank: str = "", pid: str = "") -> str:
    """Return the address of the logs around a moment (seconds since 1970); "" where there is no template."""
    if not template:
        return ""
    values = {"job": job, "host": host, "rank": rank, "pid": pid}
    values |= {"from_s": str(int(at) - BEFORE_S), "to_s": str(int(at) + AFTER_S)}
    return template.format(**{name: quote(value, safe="") for name, value in values.items()})
