"""Says in words, and as data, what one rank did otherwise than it should have, and that the others would have gone on."""

from ncclwatch.contract.model.rank import CallSite, Op
from ncclwatch.contract.model.verdict import Repair, RepairCall
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.telling.words import at, group_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.repair.edits import Change
from ncclwatch_server.judge.theory.repair.findings import Finding, Reference, Suspect
from ncclwatch_server.judge.theory.repair.tapes import Call

CALLS_MAX = 8  # of a repair that are told as data


def data(suspect: Suspect) -> Repair:
    """Return a suspect as it is stored and served."""
    return Repair(
        rank=suspect.rank,
        change=suspect.change.value,
        made=tuple(map(_call, suspect.made[:CALLS_MAX])),
        missing=tuple(map(_call, suspect.missing[:CALLS_MAX])),
        reference=suspect.reference.value,
        visits=suspect.visits,
        held=suspect.held,
    )


def _call(call: Call) -> RepairCall:
    return RepairCall(op=call.op.value, group=call.group, peer=call.peer, site=call.site)


def site_of(suspect: Suspect) -> CallSite | None:
    """Return the line of the call that should not have been made there, or else of the one that is missing."""
    return next((call.site for call in (*suspect.made, *suspect.missing) if call.site is not None), None)


def deed_words(case: Case, suspect: Suspect) -> str:
    """Return what a rank did: "skipped send to rank 2 at pipe.py:49 in step()"."""
    made, missing = (_calls(case, calls) for calls in (suspect.made, suspect.missing))
    if suspect.change is Change.PUT_IN:
        return f"skipped {missing}"
    if suspect.change is Change.LEAVE_OUT:
        return f"made {made}, one call too many" if len(suspect.made) == 1 else f"made {made} too many"
    if suspect.change is Change.SWAP:
        first, second = (_words(case, call) for call in suspect.made)
        return f"made {first} before {second}, and not after it"
    if suspect.change is Change.REPLACE:
        return f"made {made} instead of {missing}"
    if suspect.change is Change.REWIND:
        return f"went on to {made} too early"
    return "did not go on"


def reference_words(suspect: Suspect) -> str:
    """Return what says that it was wrong, as the rest of a sentence; "" where nothing does but that others wait."""
    if suspect.reference is Reference.PAST and suspect.visits and suspect.held:
        return f"In {suspect.held} of the {suspect.visits} times before that it came to this point it did not do so."
    if suspect.reference is Reference.PEERS and suspect.peers > 0:
        others = "the other rank" if suspect.peers == 1 else f"{suspect.peers} other ranks"
        return f"Until there it did the same as {others} that did not do so."
    if suspect.reference is Reference.BATCHES:
        return "It drew another number of batches than the others."
    return ""


def would_words(case: Case, finding: Finding, suspect: Suspect) -> str:
    """Return what would have come of the change: "With barrier at train.py:60, ranks 0-1 would have gone on."."""
    others = sorted(finding.stuck - {suspect.rank})
    if not others:
        return ""
    made, missing = (_calls(case, calls) for calls in (suspect.made, suspect.missing))
    instead = {
        Change.PUT_IN: f"With {missing}",
        Change.LEAVE_OUT: f"Without {made}",
        Change.SWAP: "The other way round",
        Change.REPLACE: f"With {missing} instead of {made}",
    }.get(suspect.change)
    return f"{instead} on rank {suspect.rank}, {ranks_words(others)} would have gone on." if instead else ""


def counterfactual_words(case: Case, finding: Finding, suspect: Suspect) -> str:
    """Return what a rank did, what says that this was wrong, and what would have come of the change."""
    deed = f"{ranks_words((suspect.rank,)).capitalize()} {deed_words(case, suspect)}."
    return " ".join(filter(None, (deed, reference_words(suspect), would_words(case, finding, suspect))))


def _calls(case: Case, calls: tuple[Call, ...]) -> str:
    if not calls:
        return "nothing"
    first = _words(case, calls[0])
    return first if len(calls) == 1 else f"{len(calls)} calls, beginning with {first},"


def _words(case: Case, call: Call) -> str:
    if call.op is Op.SEND:
        return f"send to rank {call.peer}{at(call.site)}"
    if call.op is Op.RECV:
        return f"recv{f' from rank {call.peer}' if call.peer >= 0 else ''}{at(call.site)}"
    root = f" with root {call.peer}" if call.peer >= 0 else ""
    return f"{call.op.value} of {group_words(case.views, call.group)}{root}{at(call.site)}"
