"""Writes and reads what an agent tells a rank of the hangs of its job: one small file beside the rank's ring.

The agent writes it anew each second while a hang stands, and takes it away when none does, so that a rank that sees it
change knows that the verdict still holds. The rank imports this: the standard library alone.
"""

import json
from dataclasses import asdict, dataclass

from ncclwatch.contract import foreign_json

FILE_BYTES_MAX = 128 * 1024
TEXT_CHARS_MAX = 1000  # of a sentence, and of an advice
RANKS_MAX = 64  # culprits that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldVerdict:
    """A critical verdict, as a rank of the job is told it."""

    incident: str  # its id
    job: str
    cause: str  # such as "rank_conditional_collective"
    certainty: str  # "PROVEN" or "STALLED"
    sentence: str
    advice: str
    culprits: tuple[int, ...]  # ranks, at most the first 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """All that a rank is told. `beat` grows with each time."""

    beat: int
    raised: str = ""  # the incident for which `HangError` is raised, "" for none
    hangs: tuple[ToldVerdict, ...] = ()

    @property
    def to_raise(self) -> ToldVerdict | None:
        """Return the verdict for which `HangError` is raised."""
        return next((each for each in self.hangs if each.incident == self.raised), None) if self.raised else None


def encode(told: Told) -> bytes:
    """Return it as a file holds it."""
    return json.dumps(asdict(told)).encode("utf-8", "replace")


def parse(data: bytes) -> Told | None:
    """Return what a file says, None if it says nothing that can be read. Never raises."""
    found = foreign_json.read(data) if data else None
    if not isinstance(found, dict) or not isinstance(found.get("beat"), int):
        return None
    hangs = found.get("hangs")
    return Told(
        beat=found["beat"],
        raised=_text(found, "raised"),
        hangs=tuple(_verdict(each) for each in hangs if isinstance(each, dict)) if isinstance(hangs, list) else (),
    )


def _verdict(found: dict[object, object]) -> ToldVerdict:
    culprits = found.get("culprits")
    return ToldVerdict(
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
