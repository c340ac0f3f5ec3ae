"""Shows JSON to people so that a terminal obeys nothing of it: ranks choose names of files and functions."""

import re

_UNPRINTED = re.compile(r"[^\x20-\x7e\n]")


def readable_json(data: bytes) -> str:
    """Return JSON over several lines, safe to show."""
    import msgspec

    return escaped(msgspec.json.format(data, indent=2).decode())


def escaped(json: str) -> str:
    """Return JSON in which whatever a terminal would act upon is written as an escape."""
    return _UNPRINTED.sub(_escaped, json)


def _escaped(found: re.Match[str]) -> str:
    if found[0].isprintable():
        return found[0]
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
