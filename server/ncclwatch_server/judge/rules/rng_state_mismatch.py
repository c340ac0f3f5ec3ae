"""Random states do not fit the run that restores them.

A list of device states has one for each device that the saving run saw. With fewer devices torch raises at the first
state too many, on every rank; with more, the other devices keep the state of the start and nobody says so. Trainers
that save one file for each rank leave the ranks that are new without one.
"""

import re
from collections.abc import Iterator, Sequence

from ncclwatch.contract.model.rank import Ending, RngRestore
from ncclwatch.contract.model.verdict import Cause, Evidence, Severity
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation, Rule, Told, When
from ncclwatch_server.judge.rules.frames.ends import tell_closer
from ncclwatch_server.judge.telling.evidence import culprit
from ncclwatch_server.judge.telling.words import at, at_line
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.roots import GoneRoot, Root

CAUSE = Cause.RNG_STATE_MISMATCH
ADVICE = (
    "Restore only as many random states as this run has devices, and seed the others: "
    "ncclwatch.restore_rng_state(states) does both. Where there are too many, "
    "torch.cuda.set_rng_state_all(states[:torch.cuda.device_count()]) does, too."
)
# "rng_state_3.pth" of transformers, "random_states_3.pkl" of Accelerate, and their like.
_FILE_OF_A_RANK = re.compile(r"['\"]([^'\"]*\b(?:rng|random)_?states?_(\d+)\.\w+)['\"]")
_TOO_MANY = ("index out of range", "invalid device ordinal", "invalid device id")


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain a crash at the line that restores random states, or for want of the file that holds them."""
    if not isinstance(root, GoneRoot) or not root.ends.failed:
        return None
    failed, first = root.ends.failed, root.ends.first
    return _too_many(case, failed, first) or _of_other_ranks(case, failed, first)


def _too_many(case: Case, crashed: Sequence[int], first: int) -> Explanation | None:
    """Explain a crash at the line that restores more states than there are devices."""
    view = case.views[first]
    ending, rng = view.ending, view.rng
    if ending is None or rng is None or rng.saved <= rng.present or not _is_of(ending, rng):
        return None
    alike = tuple(
        rank
        for rank in crashed
        if (other := case.views[rank]).ending is not None
        and other.rng is not None
        and (other.rng.saved, other.rng.present) == (rng.saved, rng.present)
        and _is_of(other.ending, other.rng)
    )
    known = Explanation(
        cause=CAUSE,
        advice=ADVICE,
        culprits=(),
        summary=(
            f"{ranks_words(alike)} {_had(alike)} the random states of {rng.saved} devices"
            f"{at_line(rng.site)} and see{'s' if len(alike) == 1 else ''} {rng.present}: {ending.exception}."
        ),
        explanation=(
            f"{rng.call} takes one state for each visible device, and these were saved by a run that saw {rng.saved}. "
            f"This run of {view.world_size} ranks has {rng.present} on {view.host}."
        ),
        evidence=(_fact(first, rng),),
    )
    return tell_closer(case, known, alike)


def _of_other_ranks(case: Case, crashed: Sequence[int], first: int) -> Explanation | None:
    """Explain a crash for want of the file that holds a rank's own random states."""
    found = {rank: name for rank in crashed if (name := _own_file(case.views[rank].ending, rank))}
    if first not in found:
        return None
    ranks = tuple(sorted(found))
    has = "have" if len(ranks) > 1 else "has"
    known = Explanation(
        cause=CAUSE,
        advice=ADVICE,
        culprits=(),
        summary=(
            f"{ranks_words(ranks)} {has} no random states in the checkpoint{_end_at(case, first)}: "
            f"there is no file {found[first]}."
        ),
        explanation=(
            f"Each rank of the run that saved it wrote one file. This run has {case.snapshot.world_size} ranks; the "
            f"checkpoint is of a run with fewer, or it is not whole."
        ),
    )
    return tell_closer(case, known, ranks)


def warn(case: Case) -> Iterator[Told]:
    """Warn of ranks whose device keeps the random state of the start, though states were restored."""
    found = {rank: view.rng for rank, view in sorted(case.views.items()) if view.rng is not None and _lacks(view.rng)}
    if not found:
        return
    ranks = tuple(found)
    first = found[ranks[0]]
    saved, present = first.saved, first.present
    left = str(saved) if present == saved + 1 else f"{saved}-{present - 1}"
    said = Explanation(
        cause=CAUSE,
        severity=Severity.WARNING,
        summary=(
            f"random states were restored in part: {ranks_words(ranks)} {_had(ranks)} the states of {saved} devices"
            f"{at_line(first.site)} for {present}; device{'s' if present > saved + 1 else ''} {left} kept the state of "
            "the start."
        ),
        explanation=(
            f"{first.call} sets as many devices as it is given states and says nothing of the others. The states "
            f"are of a run that saw {saved} devices; this one of {case.snapshot.world_size} ranks sees {present}. "
            "What these devices draw (dropout, sampling) does not go on where the checkpoint was made."
        ),
        advice=ADVICE,
        culprits=tuple(culprit(case.views[rank], rng.site, "restored random states") for rank, rng in found.items()),
        evidence=tuple(_fact(rank, rng) for rank, rng in list(found.items())[:16]),
    )
    yield Told(said=said)


def _is_of(ending: Ending | None, rng: RngRestore) -> bool:
    """Whether a rank ended at the line that restored the states, or by the call that torch put off until CUDA began."""
    if ending is None or not any(words in ending.exception for words in _TOO_MANY):
        return False
    return rng.site is None or (ending.site is not None and ending.site == rng.site)


def _own_file(ending: Ending | None, rank: int) -> str:
    """Return the file of this rank's random states that was not there, "" if that is not why it ended."""
    if ending is None or not ending.exception.startswith("FileNotFoundError"):
        return ""
    found = _FILE_OF_A_RANK.search(ending.exception)
    return found.group(1) if found is not None and int(found.group(2)) == rank else ""


def _lacks(rng: RngRestore) -> bool:
    """Whether the rank's own device got no state; where it is not known which that is, one of its devices did not."""
    return rng.saved < rng.present and not 0 <= rng.own < rng.saved


def _had(ranks: tuple[int, ...]) -> str:
    return "was given" if len(ranks) == 1 else "were given"


def _fact(rank: int, rng: RngRestore) -> Evidence:
    fact = f"{rng.call} with {rng.saved} states{at(rng.site)}, {rng.present} devices visible"
    return Evidence(source="ring", rank=rank, fact=fact)


def _end_at(case: Case, rank: int) -> str:
    ending = case.views[rank].ending
    return at_line(ending.site) if ending is not None else ""


RULE = Rule(cause=CAUSE, advice=ADVICE, recognise=recognise, warn=warn, when=When.AT_REST)
