"""Says how a job that is over came to its end: the first thing that somebody wants to know of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ncclwatch.contract.model.rank import Ending
from ncclwatch.contract.model.verdict import Cause, Severity
from ncclwatch_server.incidents.book import Incident, IncidentState, worst_first
from ncclwatch_server.judge.theory.endings import is_clean

_CRASHES = frozenset({Cause.RANK_CRASHED, Cause.RANK_EXITED})


class Outcome(str, Enum):
    """How a job ended."""

    COMPLETED = "completed"  # every rank was seen to end without an error
    HUNG = "hung"  # it hung, and was over while it did
    CRASHED = "crashed"
    UNKNOWN = "ended"  # nobody saw how


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a job ended, and what tells it."""

    outcome: Outcome = Outcome.UNKNOWN
    sentence: str = ""
    incident: str = ""  # id of the one that says so, "" if none does


def end_of(incidents: Iterable[Incident], endings: Iterable[Ending | None], *, all_ended: bool) -> End:
    """Return how a job ended. `endings` are those of the ranks that were seen, None where nobody saw how."""
    mine = worst_first(i for i in incidents if i.state is IncidentState.ENDED)
    last = next((i for i in mine if i.verdict.severity is Severity.CRITICAL and not i.verdict.predicted), None)
    if last is not None:
        outcome = Outcome.CRASHED if last.verdict.cause in _CRASHES else Outcome.HUNG
        return End(outcome=outcome, sentence=last.verdict.summary, incident=last.id)
    found = tuple(endings)
    failed = sum(ending is not None and ending.kind != "vanished" and not is_clean(ending) for ending in found)
    if failed:
        return End(outcome=Outcome.CRASHED, sentence=f"{failed} rank{'s' if failed > 1 else ''} ended with an error")
    well = bool(found) and all(ending is not None and is_clean(ending) for ending in found)
    return End(outcome=Outcome.COMPLETED if well and all_ended else Outcome.UNKNOWN)
