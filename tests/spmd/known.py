"""Lists in what ways the judge is known to be wrong about random programs. Whatever is not listed fails the tests."""

from ncclwatch.contract.model.verdict import Cause
from tests.spmd.check import Broken, Counterexample

_TIE = "two sides of one size: a departure from a habit, or a fresh call, is told as who is wrong"
_PIPE = "a stage of a pipeline that waits in a send or receive it made for the first time is told as who is wrong"

KNOWN = {
    (Broken.CULPRIT, Cause.DIVERGENT_CONTROL_FLOW): _TIE,
    (Broken.VICTIM, Cause.DIVERGENT_CONTROL_FLOW): _TIE,
    (Broken.CULPRIT, Cause.COLLECTIVE_ORDER): _TIE,
    (Broken.VICTIM, Cause.COLLECTIVE_ORDER): _TIE,
    (Broken.CULPRIT, Cause.P2P_DEADLOCK): _PIPE,
    (Broken.VICTIM, Cause.P2P_DEADLOCK): _PIPE,
}


def is_known(found: Counterexample) -> bool:
    """Say whether a counterexample is of a kind that is listed."""
    if found.broken is Broken.SILENCE and found.sight.history:
        return True  # a root has gone on, and its ring has forgotten the operation that others still wait in
    if found.verdict is None:
        return False
    culprits = {culprit.rank for culprit in found.verdict.culprits}
    if found.broken is Broken.VICTIM and culprits < set(found.trial.fault.ranks):
        return True  # another changed rank waits for the one that is named
    return (found.broken, found.verdict.cause) in KNOWN
