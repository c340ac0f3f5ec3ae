"""What is a crash called whose reason is known more closely than its exception says?"""

from dataclasses import dataclass, replace

from ncclwatch.contract.model.verdict import Cause, Evidence, Verdict
from ncclwatch.contract.words.text import ADVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownEnd:
    """Why ranks crashed, in the words that go into the verdict."""

    cause: Cause
    ranks: tuple[int, ...]  # whom it is about; never empty
    victims: tuple[int, ...] = ()  # who crashed of it, too, through no mistake of its own
    summary: str
    explanation: str
    advice: str = ""  # "": that of the cause
    evidence: tuple[Evidence, ...] = ()


def closer(verdict: Verdict, known: KnownEnd) -> Verdict:
    """Return a verdict on a crash with the cause that is known of it."""
    return replace(
        verdict,
        cause=known.cause,
        victims=tuple(sorted({*verdict.victims, *known.victims})),
        summary=known.summary,
        explanation=f"{known.explanation} {verdict.explanation}",
        advice=known.advice or ADVICE[known.cause],
        evidence=(*known.evidence, *verdict.evidence),
    )
