"""Says in words what a smallest repair changes: what one rank did, and what says that it should not have."""

from collections.abc import Callable, Sequence

from ncclwatch.contract.model.rank import Op
from ncclwatch.contract.model.verdict import Repair, RepairCall

Namer = Callable[[str], str]


def _named(group: str) -> str:
    return f"group {group}"


def deed_words(repair: Repair, namer: Namer = _named) -> str:
    """Return what the rank did: "skipped send to rank 2 at pipe.py:49". `namer` names a group."""
    made, missing = calls_words(repair.made, namer), calls_words(repair.missing, namer)
    match repair.change:
        case "put in":
            return f"skipped {missing}"
        case "leave out" if repair.waits:
            return f"waits in {made}, while the other ranks wait for it elsewhere"
        case "leave out":
            return f"made {made} too many" if len(repair.made) > 1 else f"made {made}, one call too many"
        case "swap":
            first, second = (call_words(call, namer) for call in repair.made[:2])
            return f"made {first} before {second} instead of after it"
        case "replace" if made == missing:  # words have neither size nor type
            return f"made {made} with another size, type or reduction than was due"
        case "replace":
            return f"made {made} instead of {missing}"
        case "rewind":
            return f"continued to {made} too early"
    return "did not continue"


def reference_words(repair: Repair) -> str:
    """Return what says that it was wrong, as a sentence; "" where nothing does but that the others wait."""
    if repair.change in ("come back", "rewind") or repair.waits:
        return ""
    if repair.reference == "past" and repair.held:
        return f"In {repair.held} of the {repair.visits} times it reached this point before, it did not do so."
    if repair.reference == "peers" and repair.peers > 0:
        return f"{_others(repair.peers)} that ran the same code did not do so."
    return "It drew a different number of batches than the other ranks." if repair.reference == "batches" else ""


def instead_words(repair: Repair, namer: Namer = _named) -> str:
    """Return the change as the beginning of a sentence: "With barrier at train.py:60 on rank 2"; "": nothing to say."""
    made, missing = calls_words(repair.made, namer), calls_words(repair.missing, namer)
    if repair.change == "leave out" and repair.waits:
        return f"Had rank {repair.rank} made the call of the other ranks"
    if repair.change == "replace" and made == missing:
        return f"With the size, type and reduction that were due on rank {repair.rank}"
    found = {
        "put in": f"With {missing}",
        "leave out": f"Without {made}",
        "swap": "In the reverse order",
        "replace": f"With {missing} instead of {made}",
    }.get(repair.change)
    return f"{found} on rank {repair.rank}" if found else ""


def calls_words(calls: Sequence[RepairCall], namer: Namer = _named) -> str:
    """Return some calls by the first of them."""
    if not calls:
        return "nothing"
    first = call_words(calls[0], namer)
    return first if len(calls) == 1 else f"{len(calls)} calls (the first: {first})"


def call_words(call: RepairCall, namer: Namer = _named) -> str:
    """Return one call with its place."""
    where = f" at {call.site.place}" if call.site is not None else ""
    if call.op == Op.SEND.value:
        return f"send to rank {call.peer}{where}"
    if call.op == Op.RECV.value:
        return f"recv{f' from rank {call.peer}' if call.peer >= 0 else ''}{where}"
    group = f" of {namer(call.group)}" if call.group else ""
    root = f" with root {call.peer}" if call.peer >= 0 else ""
    return f"{call.op}{group}{root}{where}"


def _others(count: int) -> str:
    return "The other rank" if count == 1 else f"{count} other ranks"
