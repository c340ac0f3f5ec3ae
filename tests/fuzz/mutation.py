"""Changes inputs at random: bytes as bytes, JSON as values."""

import json
import random
from collections.abc import Callable
from typing import Any

INTEGERS = (
    0, 1, -1, 2, 3, 7, 127, 128, 255, 256, 32_767, 65_535, 65_536, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32, 2**53,
    2**63 - 1, 2**63, -(2**63), 2**64 - 1, 10**30,
)  # fmt: skip
FLOATS = (0.0, -0.0, -1.0, 0.5, 1e-300, 1e9, 1e18, 1e308, -1e308)
TEXTS = (
    "", "0", "-1", "x", "\0", "\n", "\x1b[31m", "\u202e", "\ud800", "é" * 300, "A" * 5000, "/", "../..", "None", "nan",
    "0" * 400, "%s", "{}", "<script>", "a:1 in f()",
)  # fmt: skip
_BYTES = tuple(bytes([each]) for each in (0, 1, 0x7F, 0x80, 0xFF, 0x0A, 0x22, 0x5B, 0x7B))
ROUNDS_MAX = 4
DEPTH_MAX = 200

Mutate = Callable[[random.Random, bytes], bytes]


def of_bytes(rng: random.Random, data: bytes) -> bytes:
    """Return bytes with a few changes."""
    found = bytearray(data)
    for _ in range(rng.randint(1, ROUNDS_MAX)):
        at = rng.randrange(len(found) + 1)
        end = min(len(found), at + rng.choice((1, 1, 2, 4, 8, 64, 1024)))
        kind = rng.randrange(6)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            found[at:end] = rng.choice(_BYTES) * max(1, end - at)
        elif kind == 2:
            del found[at:end]
        elif kind == 3:
            found[at:at] = found[at:end] * rng.choice((1, 2, 30))
        elif kind == 4:
            found[at : at + 8] = (rng.choice(INTEGERS) % 2**64).to_bytes(8, "little")[: rng.choice((1, 2, 4, 8))]
        else:
            found[at:end] = rng.randbytes(end - at)
    return bytes(found)


def of_json(rng: random.Random, data: bytes) -> bytes:
    """Return JSON with a few of its values changed, or its bytes, where it is none."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return of_bytes(rng, data)
    if rng.random() < 0.1:
        return of_bytes(rng, data)
    for _ in range(rng.randint(1, ROUNDS_MAX)):
        value = changed(rng, value)
    return json.dumps(value).encode()


def changed(rng: random.Random, value: Any) -> Any:
    """Return a value of JSON with one place in it changed."""
    places = list(_places(value))
    if not places:
        return _other(rng, value)
    holder, key = rng.choice(places)
    kind = rng.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif kind == 2:
        other, there = rng.choice(places)
        holder[key] = _copy(other[there])
    elif kind == 3:
        holder[key] = [_copy(holder[key])] * rng.choice((1, 2, 50))
    else:
        holder[key] = _other(rng, holder[key])
    return value


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _places(value: Any, depth: int = 0) -> "list[tuple[Any, Any]]":
    keys: Any = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    found = [(value, key) for key in keys]
    if depth < DEPTH_MAX:
        for key in keys:
            found += _places(value[key], depth + 1)
    return found


def _other(rng: random.Random, value: Any) -> Any:
    """Return another value, mostly of the same kind: others are refused at the door."""
    if rng.random() < 0.1:
        return rng.choice((None, True, 0, -1, "", "x", [], {}, 1.5))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, -value, value * 2, *rng.sample(INTEGERS, 4)))
    if isinstance(value, float):
        return rng.choice((value + 1, -value, value * 1e6, *rng.sample(FLOATS, 4)))
    if isinstance(value, str):
        return rng.choice((value + "x", value[1:], value * 2, value[::-1], *rng.sample(TEXTS, 4)))
    return rng.choice((None, [], {}, 0, "x")) if value is None else type(value)()
