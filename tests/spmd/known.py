"""Lists in what ways the judge is known to be wrong about random programs. Whatever is not listed fails the tests."""

from ncclwatch.contract.model.verdict import Severity
from tests.spmd.check import Broken, Counterexample


def is_known(found: Counterexample) -> bool:
    """Say whether a counterexample is of a kind that is listed."""
    if found.broken is Broken.SILENCE and found.sight.history:
        return True  # a root has gone on, and its ring has forgotten the operation that others still wait in
    if found.broken is Broken.SILENCE and found.verdict is not None and found.verdict.severity is Severity.CRITICAL:
        return True  # the hang is told; what else stands still beside it, or because of it, is not all listed
    if found.broken is not Broken.VICTIM or found.verdict is None:
        return False
    # Another changed rank waits for the one that is named, or may be wrong itself.
    return any(culprit.rank in found.trial.fault.ranks for culprit in found.verdict.culprits)
