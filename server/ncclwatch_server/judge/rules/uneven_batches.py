"""Ranks have unequal numbers of batches, and each batch needs all of them: a hang at the end of an epoch, or to come.

A warning, and a careful one: many jobs whose loaders differ in length are healthy. It is given only where all of this
is seen: the loop goes over the loader to its end (its source has no other way out); each of its batches, on a rank
with few and on one with many, has issued a collective of a group that both are in; nothing that keeps uneven ranks
together (even_batches, torch's Join) is at work; and no pass of this loop has ended well with unequal counts before.
What it cannot see is a loop that makes up for the missing batches afterwards, by hand.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import CallSite, LoaderView, OpView, RankView, SourceNote
from ncclwatch.contract.model.verdict import Cause, Certainty, Evidence, Severity
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation, Rule, Told
from ncclwatch_server.judge.rules.frames import alone, circle, destroyed, ends, mismatch, standstill
from ncclwatch_server.judge.rules.frames.data_buckets import bucket_evidence
from ncclwatch_server.judge.telling.evidence import culprit
from ncclwatch_server.judge.telling.words import at, at_line, counts_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.circles import Closed
from ncclwatch_server.judge.theory.ends.kinds import last_site
from ncclwatch_server.judge.theory.histories.batches import ran_out_as_well, uneven_counts
from ncclwatch_server.judge.theory.histories.parting import Parting, Way, kin_of
from ncclwatch_server.judge.theory.roots import (
    AloneRoot,
    CircleRoot,
    DestroyedRoot,
    GoneRoot,
    MismatchRoot,
    OutsideRoot,
    Root,
)
from ncclwatch_server.judge.theory.stillness import Trouble
from ncclwatch_server.judge.theory.waits.wait_graph import victims_of

CAUSE = Cause.UNEVEN_BATCHES
ADVICE = (
    "Give all ranks the same number of batches: `for batch in ncclwatch.even_batches(loader)` ends the epoch on all "
    "ranks together. Or agree on the minimum before the epoch (all_reduce the count with MIN), use drop_last=True, "
    "pad the short ranks, or use torch.distributed.algorithms.Join. A longer timeout does not help: the missing batch "
    "never comes."
)
ADVICE_JOIN = (
    "Call no collective in a loop under join() but those of DDP: move this one, such as a barrier or an all_reduce of "
    "a metric, behind the loop, or end the loop on all ranks together with `for batch in "
    "ncclwatch.even_batches(loader)`. Join makes calls only for what has a JoinHook."
)
BATCHES_MIN = 2  # whole batches whose collectives are seen on either side
# Heads of loops that may end before the loader does.
_BOUNDED = re.compile(r"\b(zip|range|islice|takewhile|next|iter|even_batches)\s*\(")
_LEAVES = re.compile(r": (break|return)$")


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain a root in which some ranks came to the end of their batches before the others."""
    if isinstance(root, MismatchRoot):
        if root.partings[0].way is Way.JOINED:
            return mismatch.tell(case, root, CAUSE, reason=_not_joined, advice=ADVICE_JOIN)
        if kin_of(root.partings[0], in_forward=root.forward is not None) is not Way.BATCHES:
            return None
        return _with_short(case, root, mismatch.tell(case, root, CAUSE, reason=_reason, advice=ADVICE, deed=_ran_out))
    if isinstance(root, CircleRoot) and root.circle.closed is Closed.BATCHES:
        reason = f"Batches drawn: {counts_words(root.circle.counts or {})}."
        drawn, call = root.circle.counts or {}, circle.own_call(root)
        early = _ran_out_words({drawn[rank] for rank in root.ranks if rank in drawn}, drawn)
        deed = f"{early} and called {call}" if early and call else ""
        return circle.tell(case, root, CAUSE, reason=reason, advice=ADVICE, deed=deed)
    if isinstance(root, AloneRoot) and root.counts is not None:
        more = _ran_out_words({root.counts[rank] for rank in root.ranks}, root.counts)
        return alone.tell(case, root, CAUSE, advice=ADVICE, reason=_drawn_words(root.counts), deed=more)
    if isinstance(root, DestroyedRoot) and root.counts is not None:
        return destroyed.tell(case, root, CAUSE, advice=ADVICE, reason=_drawn_words(root.counts))
    if isinstance(root, GoneRoot) and root.counts is not None:
        more = f" {ranks_words(root.short).capitalize()} ran out of batches as well." if root.short else ""
        return ends.tell_left(case, root, CAUSE, advice=ADVICE, reason=f"{_drawn_words(root.counts)}{more}")
    if isinstance(root, OutsideRoot) and root.still.trouble is Trouble.BATCHES:
        others = tuple(rank for rank in root.victims if rank in case.views)
        counts = uneven_counts(case.views, root.ranks[:1], others)
        return standstill.tell(case, root, CAUSE, advice=ADVICE, reason=_drawn_words(counts) if counts else "")
    return None


def _with_short(case: Case, root: MismatchRoot, said: Explanation) -> Explanation:
    """Add the ranks that ran out of batches as well, and wait in a call of another group after the loop."""
    if not root.decided or not root.partings[0].counts:
        return said
    sides = {rank for side in root.sides for rank in side.ranks}
    short = tuple(r for r in ran_out_as_well(case.views, root.ranks, case.blocked) if r not in sides)
    if not short:
        return said
    return replace(
        said,
        explanation=f"{said.explanation} {ranks_words(short).capitalize()} ran out of batches as well.",
        culprits=(
            *said.culprits,
            *(culprit(case.views[rank], last_site(case.views[rank]), "ran out of batches, too") for rank in short),
        ),
        victims=tuple(sorted({*said.victims, *_held_up_by(case, short)} - {*root.ranks, *short})),
    )


def _held_up_by(case: Case, ranks: tuple[int, ...]) -> set[int]:
    """Return who waits for ranks, or is in a call that these have entered as another one."""
    inside = (case.graph.held.get(block.operation, ()) for rank in ranks for block in case.graph.blocks.get(rank, ()))
    return {*victims_of(case.graph, ranks), *(rank for held in inside for rank in held)}


def _not_joined(found: Parting) -> str:
    out = tuple(sorted(rank for side in found.others for rank in side.ranks))
    has, are, them = ("has", "is", "it") if len(out) == 1 else ("have", "are", "them")
    return (
        f"{ranks_words(out).capitalize()} {has} run out of batches and {are} at the end of a join(), which makes the "
        f"collectives of DDP for {them}, and not this one."
    )


def _ran_out(found: Parting) -> str:
    """Return what a side did before its call, for a headline."""
    counts = found.counts or {}
    words = _ran_out_words({counts[rank] for rank in found.culprit.ranks if rank in counts}, counts)
    return f"{words} and " if words else ""


def _ran_out_words(own: set[int], counts: Mapping[int, int]) -> str:
    """Return "ran out of batches (24, other ranks 25)" where that is what sets the culprits apart, else nothing."""
    others = sorted(set(counts.values()) - own)
    if len(own) != 1 or not others or others[0] < min(own) < others[-1]:
        return ""
    if others[-1] < min(own):
        return f"drew {min(own)} batches (other ranks {'-'.join(map(str, dict.fromkeys((others[0], others[-1]))))})"
    return f"ran out of batches ({min(own)}, other ranks {'-'.join(map(str, dict.fromkeys((others[0], others[-1]))))})"


def _drawn_words(counts: Mapping[int, int]) -> str:
    return f"Batches drawn in this epoch: {counts_words(counts)}."


def _reason(found: Parting) -> str:
    if not found.counts:
        own = ranks_words(found.culprit.ranks)
        return f"{own.capitalize()} finished the loop `{found.loop}` before the other ranks."
    fewest = [rank for rank, count in found.counts.items() if count == min(found.counts.values())]
    return f"{_drawn_words(found.counts)} {ranks_words(fewest).capitalize()} ran out of data first and continued."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loop:
    """One pass over a loader, by all ranks that are in it and whose numbers are known."""

    site: CallSite
    number: int
    loaders: Mapping[int, LoaderView]

    @property
    def lengths_hold(self) -> bool:
        """Whether no loader has been found to have another number of batches than it said."""
        return all(loader.drawn == loader.length for loader in self.loaders.values() if loader.exhausted)

    def totals(self) -> dict[int, int]:
        """Return how many batches each rank has, as far as it can tell."""
        told = {
            rank: loader.drawn if loader.exhausted else loader.length * self.lengths_hold
            for rank, loader in self.loaders.items()
        }
        return {rank: total for rank, total in told.items() if total}


def warn(case: Case) -> Iterator[Told]:
    """Warn of the first loop that some ranks will leave while others wait for them in it."""
    for loop in _loops(case.views):
        totals = loop.totals()
        least = min(totals.values(), default=0)
        short = tuple(sorted(rank for rank, total in totals.items() if total == least))
        more = tuple(
            sorted(
                rank
                for rank, loader in loop.loaders.items()
                if not loader.exhausted and max(loader.drawn, totals.get(rank, 0)) > least
            )
        )
        if not short or not more or _kept_together(loop):
            continue
        tie = _tie(case.views[short[0]], case.views[more[0]], loop)
        if tie is not None:
            said = _warning(case, loop, short, more, tie)
            yield Told(said=said, certainty=Certainty.LATE, predicted=True)
            return


def _loops(views: Mapping[int, RankView]) -> tuple[_Loop, ...]:
    found: dict[tuple[CallSite, int], dict[int, LoaderView]] = {}
    for rank, view in sorted(views.items()):
        for loader in view.loaders if view.ending is None else ():
            found.setdefault((loader.site, loader.passes), {})[rank] = loader
    return tuple(
        _Loop(site=site, number=number, loaders=loaders)
        for (site, number), loaders in found.items()
        if len(loaders) > 1
    )


def _kept_together(loop: _Loop) -> bool:
    """Say whether something sees to it that uneven ranks do not wait, or has so far."""
    if any(loader.even for loader in loop.loaders.values()):
        return True
    before = {loader.last_drawn for loader in loop.loaders.values()}
    # A pass that was left before its end has no count; that too is a way to end together.
    return loop.number > 1 and (len(before) > 1 or 0 in before)


def _tie(short: RankView, more: RankView, loop: _Loop) -> OpView | None:
    """Return a collective that each batch of both ranks needs the other for; None if there is no such, or none yet."""
    notes = [_note(view, loop.site) for view in (short, more)]
    if any(note is None or not _goes_to_the_end(note) for note in notes):
        return None
    together = {
        group.name
        for group in short.groups
        if {short.rank, more.rank} <= set(group.ranks) and group.desc != config.EVEN_BATCHES_GROUP
    }
    for name in sorted(together):
        ops = [_needed(view, loop.site, name) for view in (short, more)]
        if all(ops):
            return ops[1]
    return None


def _note(view: RankView, site: CallSite) -> SourceNote | None:
    """Return a note on a line inside the loop at this site."""
    inside = (n for n in view.sources if n.site.file == site.file and n.loop_lines[0] == site.line and n.loop)
    return next(inside, None)


def _goes_to_the_end(note: SourceNote) -> bool:
    return not _BOUNDED.search(note.loop) and not any(map(_LEAVES.search, note.loop_escapes))


def _needed(view: RankView, site: CallSite, group: str) -> OpView | None:
    """Return the newest collective of a group if each whole batch in the history has issued one, None otherwise."""
    mine = [op for op in view.history if op.loader and _site_of(view, op) == site and not op.op.is_p2p]
    batches: dict[int, OpView] = {op.batch: op for op in mine if op.group == group}
    if not mine or not batches:
        return None
    # The first may have been cut off by the history's bound, and the last may still be under way.
    whole = range(mine[0].batch + 1, mine[-1].batch)
    if len(whole) < BATCHES_MIN or any(batch not in batches for batch in whole):
        return None
    return batches[whole[-1]]


def _site_of(view: RankView, op: OpView) -> CallSite | None:
    return view.loaders[op.loader - 1].site if op.loader <= len(view.loaders) else None


def _warning(case: Case, loop: _Loop, short: tuple[int, ...], more: tuple[int, ...], tie: OpView) -> Explanation:
    totals = loop.totals()
    least = totals[short[0]]
    verb = "has" if len(short) == 1 else "have"
    drawn = {rank: loader.drawn for rank, loader in loop.loaders.items()}
    others = {rank: max(totals.get(rank, 0), drawn[rank]) for rank in loop.loaders if rank not in short}
    known = {**dict.fromkeys(short, least), **others}
    return Explanation(
        cause=CAUSE,
        severity=Severity.WARNING,
        summary=(
            f"a hang is coming: {ranks_words(short)} {verb} {least} batches in the loop{at_line(loop.site)}, and "
            f"{ranks_words(more)} {'has' if len(more) == 1 else 'have'} more ({counts_words(known)})."
        ),
        explanation=(
            f"Every batch needs all of them in {tie.op.value}{at(tie.site)}. After batch {least} "
            f"{ranks_words(short)} will leave the loop, and the others will wait there for the next one. "
            f"Batches drawn so far: {counts_words(drawn)}."
        ),
        advice=ADVICE,
        culprits=tuple(
            culprit(case.views[rank], loop.site, f"in pass {loop.number} over {least} batches") for rank in short
        ),
        victims=more,
        evidence=(
            *(
                Evidence(source="ring", rank=rank, fact=_fact(loop.loaders[rank], loop.number))
                for rank in (*short[:4], *more[:4])
            ),
            *bucket_evidence(case.views, drawn),
        ),
    )


def _fact(loader: LoaderView, number: int) -> str:
    says = f", its length is {loader.length}" if loader.length else ", it tells no length"
    return f"pass {number}{at(loader.site)}: {loader.drawn} batches drawn{' and no more left' * loader.exhausted}{says}"


RULE = Rule(cause=CAUSE, advice=ADVICE, recognise=recognise, warn=warn)
