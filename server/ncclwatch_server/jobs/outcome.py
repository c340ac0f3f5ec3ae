"""Says how a job that is over came to its end: the first thing that somebody wants to know of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ncclwatch.contract.model.rank import Ending
from ncclwatch.contract.model.verdict import Cause, Certainty, Severity
from ncclwatch_server.incidents.book import Incident, IncidentState, worst_first
from ncclwatch_server.judge.theory.ends.kinds import is_clean

_CRASHES = frozenset({Cause.RANK_CRASHED, Cause.RANK_EXITED})


class Outcome(str, Enum):
    """How a job ended."""

    COMPLETED = "completed"  # every rank was seen to end without an error
    HUNG = "hung"  # it ended while it hung
    CRASHED = "crashed"
    UNKNOWN = "ended"  # nobody saw how


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a job ended, and what shows it."""

    outcome: Outcome = Outcome.UNKNOWN
    sentence: str = ""
    incident: str = ""  # id of the one that says so, "" if none does


def end_of(incidents: Iterable[Incident], endings: Iterable[Ending | None], *, all_ended: bool) -> End:
    """Return how a job ended. `endings` are those of the ranks that were seen, None where nobody saw how.

    An incident that was still open does not make it hung if every rank then ended without an error: it went on. Where
    it was proven that the job could not, the ranks were made to end.
    """
    found = tuple(endings)
    well = all_ended and bool(found) and all(ending is not None and is_clean(ending) for ending in found)
    mine = worst_first(i for i in incidents if i.state is IncidentState.ENDED)
    last = next((i for i in mine if i.verdict.severity is Severity.CRITICAL and not i.verdict.predicted), None)
    if last is not None and not (well and last.verdict.certainty is not Certainty.PROVEN):
        outcome = Outcome.CRASHED if last.verdict.cause in _CRASHES else Outcome.HUNG
        return End(outcome=outcome, sentence=last.verdict.summary, incident=last.id)
    failed = sum(ending is not None and ending.kind != "vanished" and not is_clean(ending) for ending in found)
    if failed:
        lost = next((i for i in mine if i.verdict.cause is Cause.NODE_LOST), None)  # a warning where no rank was left
        if lost is not None:
            return End(outcome=Outcome.CRASHED, sentence=lost.verdict.summary, incident=lost.id)
        return End(outcome=Outcome.CRASHED, sentence=f"{failed} rank{'s' if failed > 1 else ''} ended with an error")
    return End(outcome=Outcome.COMPLETED if well else Outcome.UNKNOWN)
