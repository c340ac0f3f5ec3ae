"""Ranks that others wait for and that are in no operation: stopped, still, or merely at work?

A rank that shows any sign of work is late and never a hang.
"""

from collections.abc import Iterable

from ncclwatch.contract.model.rank import CallSite, RankView
from ncclwatch.contract.model.verdict import Cause, Certainty, Severity, Verdict
from ncclwatch.contract.words.text import ADVICE, ranks_words, seconds_words
from ncclwatch_server.judge.rules.straggler import evidence_of, late, wait_class, waited_in
from ncclwatch_server.judge.theory.case import (
    Case,
    at,
    counts_words,
    culprit,
    explained,
    main_thread,
    onset_s,
    waiting_words,
)
from ncclwatch_server.judge.theory.histories.odd_side import uneven_counts
from ncclwatch_server.judge.theory.phases import class_of
from ncclwatch_server.judge.theory.places import place_of
from ncclwatch_server.judge.theory.stillness import Known, Stillness, may_wait_for_another, stillness, works
from ncclwatch_server.judge.theory.waits.rank_standing import Block, Standing
from ncclwatch_server.judge.theory.waits.wait_graph import victims_of


def outsiders(case: Case) -> tuple[Verdict, ...]:
    """Judge ranks that keep others waiting without being in an operation themselves."""
    ranks = _awaited(case, case.blocked)
    known = _known(case, ranks)
    found = [(rank, stillness(case, case.views[rank], known.get(rank, Known()))) for rank in ranks]
    stalled = [(rank, still) for rank, still in found if still is not None and still.still_s >= still.patience_s]
    if _waits_for_unnamed(case, ranks) or any(works(case.views[rank]) for rank in ranks):
        stalled = [(rank, still) for rank, still in stalled if not may_wait_for_another(case.views[rank], still)]
    alone = set(_awaited(case, case.unexplained))  # somebody waits for these and for no root that was told already
    if case.told:
        stalled = [(r, s) for r, s in stalled if r in alone or not may_wait_for_another(case.views[r], s)]
    if stalled:
        worst = _worst(stalled)
        return (_stalled(case, [rank for rank, still in stalled if still.cause is worst.cause], worst),)
    return (late(case, sorted(alone)),) if alone else ()


def _awaited(case: Case, waiting: Iterable[int]) -> list[int]:
    """Return the ranks in no operation that some of these wait for, those left out that were told of already."""
    wanted = {
        rank
        for blocked in waiting
        for block in case.graph.blocks[blocked]
        for rank in (*case.graph.absent[block.operation], *_frozen_members(case, block))
    }
    outside = (Standing.OUTSIDE, Standing.FROZEN)
    return [rank for rank in sorted(wanted - case.told) if case.found[rank].standing in outside]


def _waits_for_unnamed(case: Case, ranks: list[int]) -> bool:
    """Say whether those who wait for these ranks wait for others besides that nobody knows: they may be at work."""
    awaited = (each for each, absent in case.graph.absent.items() if not set(ranks).isdisjoint(absent))
    return any(operation.unnamed or case.graph.untold[operation] for operation in awaited)


def _known(case: Case, ranks: list[int]) -> dict[int, Known]:
    """Return what each of these ranks is waited for with, and for how long it has stood still in that before."""
    found: dict[int, Known] = {}
    for rank, block in waited_in(case, ranks).items():
        kind = class_of([case.views[rank]], block.operation, block.wait.op.value, case.snapshot.stacks)
        habit = case.snapshot.habits.get(kind)
        found[rank] = Known(phase=kind.phase, longest_still_s=habit.longest_still_s if habit is not None else 0.0)
    return found


def _worst(stalled: list[tuple[int, Stillness]]) -> Stillness:
    order = (Cause.PROCESS_FROZEN, Cause.SWALLOWED_EXCEPTION, Cause.UNEVEN_BATCHES)
    found = [still for _, still in stalled]
    return min(found, key=lambda s: order.index(s.cause) if s.cause in order else len(order))


def _frozen_members(case: Case, block: Block) -> tuple[int, ...]:
    """Return members that have entered an operation and were stopped inside: it cannot go on without them."""
    return tuple(
        rank for rank in block.operation.members if rank in case.found and case.found[rank].standing is Standing.FROZEN
    )


def _stalled(case: Case, ranks: list[int], why: Stillness) -> Verdict:
    victims = tuple(rank for rank in victims_of(case.graph, ranks) if rank not in ranks)
    blocks = [block for rank in victims for block in case.found[rank].blocks]
    view = case.views[ranks[0]]
    site = place_of(case, view)
    hosts = "" if len({v.host for v in case.views.values()}) == 1 else f" on {view.host}"
    return Verdict(
        cause=why.cause,
        certainty=Certainty.STALLED,
        severity=Severity.CRITICAL,
        summary=(
            f"{ranks_words(ranks)}{hosts} {_stalled_words(why, site, len(ranks))}; {waiting_words(case.views, blocks)}."
        ),
        explanation=_stalled_explanation(case, view, why, victims),
        advice=(why.advice or ADVICE[why.cause]).replace("<pid>", str(view.pid)),
        culprits=tuple(
            culprit(case.views[rank], place_of(case, case.views[rank]), _words_of(case, case.views[rank]))
            for rank in ranks
        ),
        victims=victims,
        group=blocks[0].operation.group if blocks else "",
        seq=blocks[0].operation.seq if blocks else 0,
        op=blocks[0].wait.op.value if blocks else "",
        onset_s=onset_s(blocks),
        still_s=why.still_s,
        waited=wait_class(case, ranks, blocks),
        explained=explained(case, victims),
        evidence=evidence_of(case, ranks, blocks),
    )


def _words_of(case: Case, view: RankView) -> str:
    found = stillness(case, view)
    return found.what.removeprefix("it ") if found is not None else ""


def _stalled_words(why: Stillness, site: CallSite | None, count: int) -> str:
    many = count > 1
    if why.cause is Cause.PROCESS_FROZEN:
        return f"{'are' if many else 'is'} stopped{at(site)}: {why.what}"
    return f"{'stand' if many else 'stands'} still{at(site)} for {seconds_words(why.still_s)}: {why.what}"


def _stalled_explanation(case: Case, view: RankView, why: Stillness, victims: tuple[int, ...]) -> str:
    parts = [
        f"{ranks_words(victims).capitalize()} cannot finish without rank {view.rank}, and it stands still: "
        f"no CPU for {seconds_words(view.process.cpu_still_s)}, process {view.process.state.value}"
        + (f", pulse {seconds_words(view.pulse_age_s)} ago." if view.attached else ".")
    ]
    if why.cause is Cause.UNEVEN_BATCHES:
        counts = uneven_counts(case.views, (view.rank,), tuple(r for r in victims if r in case.views))
        parts.append(f"Batches drawn in this epoch: {counts_words(counts)}." if counts else "")
    if why.cause is Cause.SWALLOWED_EXCEPTION:
        thread = main_thread(view)
        text = (thread.exception if thread else "") or view.last_exception
        site = (thread.exception_site if thread else None) or view.last_exception_site
        parts.append(f"It caught {text}{at(site)} and went its own way; the others know nothing of it.")
    if case.told and may_wait_for_another(view, why):
        others = ranks_words(sorted(case.told.union(case.explained)))
        parts.append(f"Whether it waits for one of {others}, by a file or a socket that nobody records, is not known.")
    return " ".join(part for part in parts if part)
