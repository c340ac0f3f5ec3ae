"""Says in words, and as data, what one rank should have done otherwise, and that the others would have continued."""

from ncclwatch.contract.model.rank import CallSite
from ncclwatch.contract.model.verdict import Repair, RepairCall
from ncclwatch.contract.words import repairs as words
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.telling.words import group_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.repair.findings import Finding, Suspect
from ncclwatch_server.judge.theory.repair.tapes import Call

CALLS_MAX = 64  # of a repair


def data(suspect: Suspect) -> Repair:
    """Return a suspect as it is stored and served."""
    return Repair(
        rank=suspect.rank,
        change=suspect.change.value,
        made=tuple(map(_call, suspect.made[:CALLS_MAX])),
        missing=tuple(map(_call, suspect.missing[:CALLS_MAX])),
        waits=suspect.waits,
        reference=suspect.reference.value,
        visits=suspect.visits,
        held=suspect.held,
        peers=suspect.peers,
    )


def _call(call: Call) -> RepairCall:
    return RepairCall(op=call.op.value, group=call.group, peer=call.peer, site=call.site)


def site_of(suspect: Suspect) -> CallSite | None:
    """Return the line of the call that should not have been made there, or else of the one that is missing."""
    return next((call.site for call in (*suspect.made, *suspect.missing) if call.site is not None), None)


def deed_words(case: Case, suspect: Suspect) -> str:
    """Return what a rank did: "skipped send to rank 2 at pipe.py:49"."""
    return words.deed_words(data(suspect), lambda group: group_words(case.views, group))


def would_words(case: Case, finding: Finding, suspect: Suspect) -> str:
    """Return what would have come of the change: "With barrier at train.py:60, ranks 0-1 would have continued."."""
    instead = words.instead_words(data(suspect), lambda group: group_words(case.views, group))
    others = sorted(finding.stuck - {suspect.rank})
    return f"{instead}, {ranks_words(others)} would have continued." if instead and others else ""


def counterfactual_words(case: Case, finding: Finding, suspect: Suspect) -> str:
    """Return what a rank did, what says that this was wrong, and what would have come of the change."""
    deed = f"{ranks_words((suspect.rank,)).capitalize()} {deed_words(case, suspect)}."
    known = words.reference_words(data(suspect))
    return " ".join(filter(None, (deed, known, would_words(case, finding, suspect))))
