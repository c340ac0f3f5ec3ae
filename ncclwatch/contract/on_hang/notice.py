"""Encodes and parses the notice by which an agent notifies a rank of hangs: one small file beside the rank's ring.

The agent rewrites it each second while a hang is open, and removes it when none is. A rank that sees `beat` change
knows that the verdict still holds. The rank imports this module: standard library only.
"""

import json
from dataclasses import asdict, dataclass

from ncclwatch.contract import foreign_json

FILE_BYTES_MAX = 128 * 1024
TEXT_CHARS_MAX = 1000  # of a sentence, and of an advice
RANKS_MAX = 64  # culprits that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class HangVerdict:
    """A critical verdict, as a notice carries it."""

    incident: str  # its id
    job: str
    cause: str  # such as "rank_conditional_collective"
    certainty: str  # "PROVEN" or "STALLED"
    sentence: str
    advice: str
    culprits: tuple[int, ...]  # ranks, at most the first 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """The open hangs of a job. `beat` grows with each rewrite."""

    beat: int
    raised: str = ""  # the incident for which `HangError` is raised, "" for none
    hangs: tuple[HangVerdict, ...] = ()

    @property
    def to_raise(self) -> HangVerdict | None:
        """Return the verdict for which `HangError` is raised."""
        return next((each for each in self.hangs if each.incident == self.raised), None) if self.raised else None


def encode(notice: Notice) -> bytes:
    """Return the content of the file."""
    return json.dumps(asdict(notice)).encode("utf-8", "replace")


def parse(data: bytes) -> Notice | None:
    """Return the notice, None if the file is empty or malformed. Never raises."""
    found = foreign_json.read(data) if data else None
    if not isinstance(found, dict) or not isinstance(found.get("beat"), int):
        return None
    hangs = found.get("hangs")
    return Notice(
        beat=found["beat"],
        raised=_text(found, "raised"),
        hangs=tuple(_verdict(each) for each in hangs if isinstance(each, dict)) if isinstance(hangs, list) else (),
    )


def _verdict(found: dict[object, object]) -> HangVerdict:
    culprits = found.get("culprits")
    return HangVerdict(
        incident=_text(found, "incident"),
        job=_text(found, "job"),
        cause=_text(found, "cause"),
        certainty=_text(found, "certainty"),
        sentence=_text(found, "sentence"),
        advice=_text(found, "advice"),
        culprits=tuple(each for each in culprits if isinstance(each, int)) if isinstance(culprits, list) else (),
    )


def _text(found: dict[object, object], name: str) -> str:
    value = found.get(name)
    return value[:TEXT_CHARS_MAX] if isinstance(value, str) else ""
