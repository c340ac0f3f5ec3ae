"""Cuts texts that are too long for where they are kept, so that what is left is still what it says it is.

A text that is cut in its middle is another text: half a JSON object is none, and two names with one beginning would
become one name.
"""

import hashlib
import json
from collections.abc import Mapping

from ncclwatch.contract import config

_MARK = "…"
_DIGEST_BYTES = 8
_ROUNDS_MAX = 64  # each halves the longest text that is left


def short_name(text: str) -> str:
    """Return the name or description of a group as its ring has it."""
    return short_text(text, config.NAME_BYTES_MAX)


def short_text(text: str, bytes_max: int) -> str:
    """Return a text in at most so many bytes: of a longer one its beginning, and a digest of all of it."""
    data = text.encode(errors="replace")
    if len(data) <= bytes_max:
        return data.decode()
    tail = _MARK + hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
    return data[: bytes_max - len(tail.encode())].decode(errors="ignore") + tail


def short_json(found: Mapping[str, object], bytes_max: int) -> str:
    """Return a JSON text of at most so many bytes, its longest texts cut until it fits; "" if it never does."""
    whole: object = dict(found)
    for _ in range(_ROUNDS_MAX):
        text = json.dumps(whole)
        if len(text) <= bytes_max:
            return text
        longest = _longest(whole)
        if longest < len(_MARK) + 2:
            return ""
        whole = _cut(whole, longest // 2)
    return ""


def _longest(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return max(map(_longest, parts), default=0)


def _cut(value: object, chars: int) -> object:
    """Return a value whose texts are at most so long, their beginnings kept."""
    if isinstance(value, str):
        return value if len(value) <= chars else value[: chars - 1] + _MARK
    if isinstance(value, dict):
        return {key: _cut(part, chars) for key, part in value.items()}
    return [_cut(part, chars) for part in value] if isinstance(value, list | tuple) else value
