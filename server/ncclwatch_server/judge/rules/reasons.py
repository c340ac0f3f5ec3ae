"""Why did the sides of a hang part, in the words of its reader, and what is to be done about it?"""

from ncclwatch.contract.model.verdict import Cause
from ncclwatch.contract.words.text import ADVICE, ADVICE_THREADS, ADVICE_UNUSED, ranks_words, seconds_words
from ncclwatch_server.judge.theory.case import at, counts_words
from ncclwatch_server.judge.theory.histories.exceptions import Handled
from ncclwatch_server.judge.theory.histories.habits import Slip
from ncclwatch_server.judge.theory.histories.odd_side import Parting
from ncclwatch_server.judge.theory.histories.skipped_calls import Shift


def reason(found: Parting) -> str:
    """Return why the sides parted, in a sentence or two."""
    own = ranks_words(found.culprit.ranks)
    if found.cause is Cause.UNEVEN_BATCHES:
        return _batches_words(found, own)
    if found.handled is not None:
        return handled_words(found.handled)
    if found.threads:
        return (
            f"Operations of this group come from two threads of each rank ({' and '.join(found.threads)}). Nothing "
            "orders one thread's calls against the other's, so the ranks issue them in different orders."
        )
    if found.slip is not None:
        return _slip_words(found, found.slip, own)
    if found.shift is not None:
        return _shift_words(found, found.shift, own)
    return _last_call_words(found, own)


def _batches_words(found: Parting, own: str) -> str:
    if not found.counts:
        return f"{own.capitalize()} came to the end of the loop `{found.loop}` before the others."
    fewest = [rank for rank, count in found.counts.items() if count == min(found.counts.values())]
    return (
        f"Batches drawn in this epoch: {counts_words(found.counts)}. {ranks_words(fewest).capitalize()} ran out of "
        "data first and went on."
    )


def _last_call_words(found: Parting, own: str) -> str:
    """Return why, where the sides agreed up to the very call they hang in."""
    if found.condition:
        whose = "The others' call" if found.condition_on_others else "That call"
        return f"{whose} is made under `{found.condition}`, so not by all ranks."
    if found.way_out:
        return f"{own.capitalize()} left a function that the others went on in, at a test of the rank: {found.way_out}."
    if found.forwards:
        bucket = max(found.others, key=lambda side: len(side.ranks)).op.label
        return (
            f"All have run {found.forwards} forward passes, so nobody is short of batches; {own} went on without "
            f"reducing {bucket}: a part of the model took no part in its last loss, or that backward was left out."
        )
    if found.loop:
        ways = f", which has a way out that each rank takes on its own ({found.escapes[0]})" if found.escapes else ""
        return f"One side has left the loop `{found.loop}`{ways}; the other is still in it."
    if found.cause is Cause.SIGNATURE_MISMATCH and found.one_of:
        return "All ranks are at the same call, but not with the same arguments."
    if found.cause is Cause.SIGNATURE_MISMATCH:
        return f"All ranks are at the same call, but not with the same arguments. Why {own}: {found.why_culprit}."
    if found.one_of:
        return f"{found.why_culprit.capitalize()}."
    return f"Why {own}: {found.why_culprit}."


def advice(found: Parting) -> str:
    """Return what to do, by what is known more closely than the cause."""
    if found.threads:
        return ADVICE_THREADS
    return f"{ADVICE_UNUSED} {ADVICE[found.cause]}" if found.forwards else ADVICE[found.cause]


def handled_words(handled: Handled) -> str:
    """Return what an exception has to do with a wait."""
    return (
        f"Rank {handled.rank} came to this wait while it handles {handled.text}{at(handled.site)}, of which the others "
        "know nothing."
    )


def shift_call(found: Parting, shift: Shift) -> str:
    """Return which call was skipped or made too often."""
    call = f"{shift.op.op.value}{at(shift.op.site)}"
    if shift.caller is not None:
        call += f", called{at(shift.caller)}"
    if found.condition:
        call += f", under `{found.condition}`,"
    if shift.count > 1:
        call = f"{shift.count} calls, beginning with {call}"
    ago = f" {seconds_words(shift.op.age_s)} ago" if shift.op.age_s else ""
    if shift.skipped > 0:
        return f"skipped {call}{ago}, which the others made"
    return f"made {call}{ago}, which the others did not"


def _shift_words(found: Parting, shift: Shift, own: str) -> str:
    return (
        f"It began earlier, at operation #{shift.seq}: {own} {shift_call(found, shift)}. Equal calls pair silently, "
        "so each later one was matched with the wrong one of the others."
    )


def _slip_words(found: Parting, slip: Slip, own: str) -> str:
    ahead = f"{ranks_words(slip.ranks)} was at {slip.clock} {slip.value + slip.offset} and the others at {slip.value}"
    after = "Each later call was matched with the wrong one of the others."
    if set(found.culprit.ranks) <= set(slip.ranks) and slip.offset > 0:
        unit = slip.clock if slip.offset == 1 else f"{slip.clock}es" if slip.clock == "batch" else f"{slip.clock}s"
        where = f" A rank may skip on its own at line {found.escapes[0]}." if found.escapes else ""
        return (
            f"It began earlier: at operation #{slip.seq} {ahead}, so the operations of {slip.offset} {unit} were "
            f"skipped there. {after}{where}"
        )
    return (
        f"It began earlier: before operation #{slip.seq} {own} made a call the others did not make ({ahead}). {after}"
    )
