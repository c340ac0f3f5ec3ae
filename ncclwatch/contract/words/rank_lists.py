"""Writes many ranks and hosts in few characters, and reads them back: "0-2,4-7", "node[001-016],login"."""

import re
from collections.abc import Iterable

from ncclwatch.contract.errors import ConfigError

RANKS_MAX = 1_000_000  # that one written list may stand for

_NUMBER = re.compile(r"[0-9]{1,9}")
_SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def host_list(hosts: Iterable[str]) -> str:
    """Return hosts as Slurm writes them: ("gpu1", "gpu2", "gpu3", "login") is "gpu[1-3],login".

    The last number of a name counts. Where a number of some width begins with a zero, those of that width are joined
    with each other only, so that every name can be read back.
    """
    return ",".join(host_groups(hosts))


def host_groups(hosts: Iterable[str]) -> list[str]:
    """Return the parts of such a list: ["gpu[1-3]", "login"]."""
    plain: list[str] = []
    by_width: dict[tuple[str, str, int], list[str]] = {}
    for host in sorted(set(hosts)):
        *_, last = (None, *_NUMBER.finditer(host))
        if last is None:
            plain.append(host)
        else:
            by_width.setdefault((host[: last.start()], host[last.end() :], len(last[0])), []).append(last[0])
    numbered: dict[tuple[str, str, int], list[int]] = {}
    for (before, after, width), numbers in by_width.items():
        padded = width > 1 and any(number.startswith("0") for number in numbers)
        numbered.setdefault((before, after, width if padded else 0), []).extend(map(int, numbers))
    written = [_bracketed(*key, sorted(numbers)) for key, numbers in numbered.items()]
    return sorted([*plain, *written])


def ranks_of(written: str) -> tuple[int, ...]:
    """Return the ranks of a written list: "0-2,7" is (0, 1, 2, 7). Raises `ConfigError` with an example."""
    found: set[int] = set()
    for part in written.split(","):
        span = _SPAN.fullmatch(part.strip())
        first, last = (int(span[1]), int(span[2] or span[1])) if span is not None else (1, 0)
        if last < first:
            raise ConfigError(f"{written!r} is no list of ranks: {part.strip()!r} is not understood; write 3 or 0-7,12")
        if last - first + len(found) >= RANKS_MAX:
            raise ConfigError(f"{written!r} names more than {RANKS_MAX} ranks; name fewer")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def _bracketed(before: str, after: str, width: int, numbers: list[int]) -> str:
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    texts = [f"{a:0{width}}" if a == b else f"{a:0{width}}-{b:0{width}}" for a, b in spans]
    inside = ",".join(texts)
    return f"{before}{inside}{after}" if len(numbers) == 1 else f"{before}[{inside}]{after}"
