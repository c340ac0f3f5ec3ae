"""Holds what a rule says of a root: why it is there, in words, who made it, and what to do about it.

A verdict is made of both, the root and this.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from ncclwatch.contract.model.verdict import Cause, Certainty, Culprit, Divergence, Evidence, Repair, Severity
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.roots import NOWHERE, Place, Root


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why something is wrong. What is so, and how certain it is, says the root."""

    cause: Cause
    summary: str
    explanation: str
    advice: str
    culprits: tuple[Culprit, ...]
    victims: tuple[int, ...] = ()
    one_of: bool = False
    severity: Severity = Severity.CRITICAL
    evidence: tuple[Evidence, ...] = ()
    divergence: Divergence | None = None
    repairs: tuple[Repair, ...] = ()
    onset_s: float | None = None  # None: that of the root


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Something that is wrong, or will be, by a rule that finds it itself: no root of a hang, or one that files "
    "tell."""

    said: Explanation
    certainty: Certainty = Certainty.PROVEN
    predicted: bool = False
    about: str = ""  # which of several findings about one set of ranks this is
    place: Place = NOWHERE
    onset_s: float = 0.0
    explained: tuple[int, int] = (0, 0)  # (blocked ranks this explains, blocked ranks in all)


class When(Enum):
    """When warnings of a rule are given."""

    AT_REST = "at rest"  # where no root and no earlier rule says anything
    NO_HANG = "no hang"  # beside ranks that are late, and not beside a hang
    ALWAYS = "always"


def recognises_nothing(root: Root, case: Case) -> Explanation | None:
    """Explain no root: the rule of a cause that nothing waits for."""
    return None


def warns_of_nothing(case: Case) -> Iterable[Told]:
    """Warn of nothing: the rule of a cause that is told when ranks hang of it."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One cause: how it is recognised, what is said of it, and what to do where nothing closer is known."""

    cause: Cause
    advice: str
    recognise: Callable[[Root, Case], Explanation | None] = recognises_nothing
    warn: Callable[[Case], Iterable[Told]] = warns_of_nothing
    when: When = When.ALWAYS
