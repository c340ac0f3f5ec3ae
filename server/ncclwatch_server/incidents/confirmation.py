"""Lets those verdicts stand that two snapshots show, and the last word on a job that is over."""

from collections.abc import Iterable

from ncclwatch.contract.model.verdict import Cause, Verdict
from ncclwatch_server import limits

Key = tuple[Cause, tuple[int, ...], str, int, str]


def key_of(verdict: Verdict) -> Key:
    """Return what makes two verdicts the same statement."""
    ranks = tuple(sorted(culprit.rank for culprit in verdict.culprits))
    return (verdict.cause, () if verdict.about else ranks, verdict.group, verdict.seq, verdict.about)


def said_again(verdict: Verdict, verdicts: Iterable[Verdict]) -> Verdict:
    """Return what a later judgement says of the same: the same, or the same ranks with a better cause.

    Evidence that comes later, a stack or another witness, may name the cause more closely. Without either the
    verdict stands as it was.
    """
    alike = [each for each in verdicts if each.severity is verdict.severity]
    same = next((each for each in alike if key_of(each) == key_of(verdict)), None)
    return same or next((each for each in alike if key_of(each)[1:] == key_of(verdict)[1:]), verdict)


class Confirmation:
    """The verdicts of one job that were seen, and since when without a break."""

    def __init__(self) -> None:
        self._since: dict[Key, float] = {}

    def confirm(self, verdicts: tuple[Verdict, ...], now: float, *, final: bool) -> tuple[Verdict, ...]:
        """Return the verdicts that stand after this judgement."""
        self._since = {key_of(v): self._since.get(key_of(v), now) for v in verdicts}
        if final:
            return verdicts
        return tuple(v for v in verdicts if now - self._since[key_of(v)] >= limits.CONFIRM_S)

    @property
    def keys(self) -> frozenset[Key]:
        """Return what the last judgement said."""
        return frozenset(self._since)

    def clear(self) -> None:
        """Forget everything: the job is not suspicious any more."""
        self._since = {}
