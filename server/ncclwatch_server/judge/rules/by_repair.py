"""Tells who is at fault by the smallest repair: the rank whose smallest change, if made, would have let the job go on.

The root proves that the job hangs. Where the repair names other ranks than the rule does, the repair is told: it was
replayed with all recorded calls, and a rule compares ranks at one operation.
"""

from collections.abc import Set
from dataclasses import replace

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.model.verdict import Cause, Repair
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.frames.ends import tell_left
from ncclwatch_server.judge.telling.evidence import culprit
from ncclwatch_server.judge.telling.repairs import counterfactual_words, data, deed_words, site_of, would_words
from ncclwatch_server.judge.telling.words import waiting_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.circles import Closed
from ncclwatch_server.judge.theory.ends.causes import Went
from ncclwatch_server.judge.theory.histories.exceptions import have_caught_apart
from ncclwatch_server.judge.theory.histories.lines.call_sites import rank_condition
from ncclwatch_server.judge.theory.histories.odd_side import Sign
from ncclwatch_server.judge.theory.histories.parting import Way
from ncclwatch_server.judge.theory.repair.edits import Change
from ncclwatch_server.judge.theory.repair.findings import Finding, Reference, Suspect
from ncclwatch_server.judge.theory.roots import AloneRoot, CircleRoot, DestroyedRoot, GoneRoot, MismatchRoot, Root
from ncclwatch_server.judge.theory.waits.rank_standing import Standing

_CALLS = (WaitKind.COLLECTIVE, WaitKind.SEND, WaitKind.RECV, WaitKind.BACKWARD)
SUSPECTS_MAX = 16  # ranks that are named as one of several
_WAYS_BY_CALLS = (Way.SHIFT, Way.UNKNOWN)
_CLOSED_BY_CALLS = (Closed.SKIPPED_CALL, Closed.NEW_PAIR, Closed.HABIT_LEFT, Closed.ORDER)
# What a repair that is certain overrules.
_WAYS_OVERRULED = (*_WAYS_BY_CALLS, Way.SLIP, Way.ARGUMENTS)
_CLOSED_OVERRULED = (*_CLOSED_BY_CALLS, Closed.WRONG_PEER, Closed.PAIRS)


def with_repair(case: Case, root: Root, why: Explanation, rule: Rule) -> Explanation:
    """Return what a rule explains of a root with the smallest repair, where the recorded calls tell one."""
    if not _is_of_calls(root):
        return why
    finding = case.repair
    named = {each.rank for each in why.culprits}
    suspects = {each.rank for each in finding.suspects}
    if finding.together:
        suspects &= {*root.victims, *named}  # what else stands still is told by roots of its own
    if not suspects or not _is_explained(case, root, finding):
        return why
    if finding.certain and finding.aligned:
        if named == suspects and not why.one_of:
            words = would_words(case, finding, finding.suspects[0])
            told = " ".join(filter(None, (why.explanation, words)))
            return replace(why, repairs=_data(finding), explanation=told)
        return _retold(case, root, why, finding) if _may_be_retold(case, root, suspects) else why
    if finding.together and all(named <= set(each) for each in finding.together):
        return why  # all of a set are wrong: the others are no alternative to those that are named
    if named in (suspects, *map(set, finding.together)):
        return why if finding.together else replace(why, repairs=_data(finding))
    others = (
        not finding.together and finding.aligned and named.isdisjoint(suspects) and _may_be_retold(case, root, suspects)
    )
    by_calls = not why.one_of and _is_by_calls_alone(root)
    if not others and not by_calls:
        return why
    undecided = rule.recognise(_undecided(root), case) or why
    why = replace(why, explanation=undecided.explanation, divergence=undecided.divergence)
    return _as_one_of(case, root, why, finding, suspects)


def _is_explained(case: Case, root: Root, finding: Finding) -> bool:
    """Say whether a finding is about the waits of a root.

    They are in recorded calls, and who only has to come back has ended: a rank that lives may be at work.
    """
    back = (each.rank for each in finding.suspects if each.change is Change.COME_BACK)
    if finding.certain and any(case.views[rank].ending is None for rank in back):
        return False
    waiting = {block.rank for block in root.blocks if block.wait.kind in _CALLS}
    return not root.blocks or not finding.stuck.isdisjoint(waiting)


def _data(finding: Finding) -> tuple[Repair, ...]:
    return tuple(map(data, finding.suspects[:SUSPECTS_MAX]))


def _may_be_retold(case: Case, root: Root, suspects: Set[int]) -> bool:
    """Say whether a root may be told by the smallest repair alone: no fact that is no call says otherwise.

    Where ranks have ended together that may be one mistake of all of them, as well as a call too many of who waits. So
    it is where all but the suspects have caught an exception before.
    """
    others = _inside(root) - suspects
    if others and have_caught_apart(case.views, others, suspects):
        return False
    if isinstance(root, MismatchRoot):
        return root.partings[0].way in _WAYS_OVERRULED and not root.partings[0].condition
    if isinstance(root, CircleRoot):
        return root.circle.closed in _CLOSED_OVERRULED
    if isinstance(root, GoneRoot):
        return root.counts is None and not root.ends.ranks[1:]
    if not isinstance(root, AloneRoot) or root.counts is not None:
        return False
    return root.call is None or root.call.condition is None


def _inside(root: Root) -> set[int]:
    """Return the ranks of a mismatch or circle."""
    if isinstance(root, MismatchRoot):
        return {rank for side in root.sides for rank in side.ranks}
    return set(root.circle.ranks) if isinstance(root, CircleRoot) else set()


def _is_by_calls_alone(root: Root) -> bool:
    """Say whether what decided between ranks are their calls, of which the smallest repair knows all.

    A test of the rank, an exception, a loop that was left, batches that ran out, and counts of forward passes are facts
    of their own. That a rank asks for a new peer while another one asks for it is none: that one waits in line, and the
    new peer may have left its part out. Where one line had other arguments than before, rules were right in all of 20
    random programs in which the repair did not decide; of those that are listed here they were right in 60 to 95 %
    only.
    """
    if isinstance(root, MismatchRoot):
        first = root.partings[0]
        counted = first.shift is not None and first.shift.op.forwards > 0
        return first.way in _WAYS_BY_CALLS and not first.condition and not counted
    return isinstance(root, CircleRoot) and root.circle.closed in _CLOSED_BY_CALLS


def _is_of_calls(root: Root) -> bool:
    """Say whether a root may come of a wrong call: not of a process that crashed, stands still, or was never seen."""
    if isinstance(root, GoneRoot):
        return root.ends.went is Went.LEFT
    return isinstance(root, (MismatchRoot, CircleRoot, AloneRoot, DestroyedRoot))


def _is_held_up(case: Case, root: Root, rank: int) -> bool:
    """Say whether a rank that is not to blame waits in what a root is about: it may be elsewhere so far."""
    if rank in case.graph.doomed or case.found[rank].standing is Standing.GONE:
        return True
    operations = {block.operation for block in root.blocks}
    return any(block.operation in operations for block in case.found[rank].blocks)


def _retold(case: Case, root: Root, why: Explanation, finding: Finding) -> Explanation:
    """Return an explanation by the one rank whose change ends the hang."""
    (suspect,) = finding.suspects
    if isinstance(root, GoneRoot) and suspect.change is Change.COME_BACK and suspect.rank in root.ranks:
        return _ended_too_early(case, root, why, suspect)
    cleared = (each.rank for each in why.culprits if _is_held_up(case, root, each.rank))
    held = {*why.victims, *cleared} - {suspect.rank}
    rule = _cause(case, suspect)
    deed = deed_words(case, suspect)
    return replace(
        why,
        cause=rule,
        summary=f"{ranks_words((suspect.rank,))} {deed}; {_waiting(case, root, suspect)}.",
        explanation=counterfactual_words(case, finding, suspect),
        culprits=(culprit(case.views[suspect.rank], site_of(suspect), deed),),
        victims=tuple(sorted(held)),
        one_of=False,
        divergence=None,
        repairs=_data(finding),
    )


def _ended_too_early(case: Case, root: GoneRoot, why: Explanation, suspect: Suspect) -> Explanation:
    """Return that a rank has ended: its calls tell no more than that it should have gone on."""
    alone = replace(root, ranks=(suspect.rank,), decided=True)
    went_on = suspect.reference is Reference.PEERS
    reason = "Other ranks that ran the same code went on." if went_on else ""
    told = tell_left(case, alone, why.cause, advice=why.advice, reason=reason)
    return replace(told, repairs=(data(suspect),))


def _waiting(case: Case, root: Root, suspect: Suspect) -> str:
    """Return who waits now: of the others, unless nobody else does."""
    others = [block for block in root.blocks if block.rank != suspect.rank]
    return waiting_words(case, others or root.blocks, (suspect.rank,))


def _as_one_of(case: Case, root: Root, why: Explanation, finding: Finding, suspects: Set[int]) -> Explanation:
    """Return an explanation by several ranks of which each could have ended the hang by a change as small."""
    named = {each.rank: each for each in why.culprits}
    known = {
        each.rank: culprit(case.views[each.rank], site_of(each), deed_words(case, each))
        for each in finding.suspects[:SUSPECTS_MAX]
        if each.rank in suspects and each.change is not Change.COME_BACK  # it may be at work
    }
    culprits = known | named
    return replace(
        why,
        summary=f"one of {ranks_words(sorted(culprits))} is the cause: {waiting_words(case, root.blocks)}.",
        explanation=f"{why.explanation} A change to any one of them would end the hang: which is wrong is not decided.",
        culprits=tuple(culprits[rank] for rank in sorted(culprits)),
        victims=tuple(rank for rank in why.victims if rank not in culprits),
        one_of=True,
        repairs=_data(finding),
    )


def _undecided(root: Root) -> Root:
    """Return a root with what is known of it, but for who made the mistake."""
    if isinstance(root, MismatchRoot):
        partings = tuple(replace(each, decided=False, sign=Sign.NONE) for each in root.partings)
        return replace(root, decided=False, partings=partings)
    if isinstance(root, CircleRoot):
        return replace(root, decided=False, circle=replace(root.circle, decided=False, sign=Sign.NONE))
    return root


def _cause(case: Case, suspect: Suspect) -> Cause:
    if suspect.reference is Reference.BATCHES:
        return Cause.UNEVEN_BATCHES
    if suspect.change is Change.SWAP:
        return Cause.COLLECTIVE_ORDER
    made, missing = suspect.made[:1], suspect.missing[:1]
    if suspect.change is Change.REPLACE and made and missing and made[0].site == missing[0].site:
        return Cause.P2P_DEADLOCK if made[0].op.is_p2p else Cause.SIGNATURE_MISMATCH
    for call in (*made, *missing):
        for view in case.views.values():
            if call.site is not None and rank_condition(view, call.site, call.op.value, call.way) is not None:
                return Cause.RANK_CONDITIONAL_COLLECTIVE
    return Cause.DIVERGENT_CONTROL_FLOW
