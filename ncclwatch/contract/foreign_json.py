"""Reads JSON that anybody may have written: values that can be passed on, or nothing.

Python's own reader takes more than JSON can say further on: numbers of any size, infinity, and halves of characters,
which cannot be written as UTF-8. A ring, a file or a program that says such a thing must not stop whoever tells of it.
"""

import json
import math
import re
from typing import Any

_DIGITS_MAX = 18  # of a whole number: what has as many fits into 64 bits
_DEPTH_MAX = 100
_HALF = re.compile(r"\\u[dD]|[\ud800-\udfff]")


def read(data: str | bytes) -> Any:
    """Return the value of a text, None if it is no JSON. Numbers that nobody can send are None in it."""
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    try:
        found = _decoder.decode(text)
        return whole(found) if _HALF.search(text) else found
    except (ValueError, RecursionError):
        return None


def whole(value: Any, depth: int = 0) -> Any:
    """Return a value in which each half of a character is a question mark."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, (list, tuple)) and depth < _DEPTH_MAX:
        return [whole(each, depth + 1) for each in value]
    if isinstance(value, dict) and depth < _DEPTH_MAX:
        return {whole(key): whole(each, depth + 1) for key, each in value.items()}
    return value if isinstance(value, (int, float)) else None


def _integer(text: str) -> int | None:
    return int(text) if len(text.lstrip("-")) <= _DIGITS_MAX else None


def _real(text: str) -> float | None:
    found = float(text)
    return found if math.isfinite(found) else None


_decoder = json.JSONDecoder(parse_int=_integer, parse_float=_real, parse_constant=lambda _: None)
