"""Lists in what ways the judge is known to be wrong about random programs. Whatever is not listed fails the tests."""

from ncclwatch.contract.model.verdict import Cause
from tests.spmd.check import Broken, Counterexample

_TIE = "two sides of one size: a fresh call, or a departure from a habit, is told as who is wrong"
_EXITED = "a rank that came to its end is blamed, though the one that waits made a call too many"
_ORDER = "a circle in which nothing tells who closed it names all of its ranks, without saying that it is one of them"
_PASSED = "who is through with a rooted collective, or waits in one for ranks that live, is told as a victim"
_COUNTS = "a circle over several groups names only the first of the sides that ran out of batches"

KNOWN = {
    (Broken.CULPRIT, Cause.DIVERGENT_CONTROL_FLOW): _TIE,
    (Broken.VICTIM, Cause.DIVERGENT_CONTROL_FLOW): _TIE,
    (Broken.CULPRIT, Cause.RANK_EXITED): _EXITED,
    (Broken.VICTIM, Cause.RANK_EXITED): _EXITED,
    (Broken.CULPRIT, Cause.COLLECTIVE_ORDER): _ORDER,
    (Broken.VICTIM, Cause.COLLECTIVE_ORDER): _TIE,
    (Broken.PROOF, Cause.DIVERGENT_CONTROL_FLOW): _PASSED,
    (Broken.PROOF, Cause.RANK_CRASHED): _PASSED,
    (Broken.VICTIM, Cause.UNEVEN_BATCHES): _COUNTS,
}


def is_known(found: Counterexample) -> bool:
    """Say whether a counterexample is of a kind that is listed."""
    return found.verdict is not None and (found.broken, found.verdict.cause) in KNOWN
