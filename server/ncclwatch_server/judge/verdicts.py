"""Makes verdicts: of every independent root and the rule that explains it, and of what rules warn of beside.

A root waits for nobody, so no other root explains it. What it does explain are the ranks whose waits lead to it: these
are no roots of their own, and the finders are asked again about the ranks that are left.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ncclwatch.contract.model.job import WaitClass
from ncclwatch.contract.model.rank import RankView
from ncclwatch.contract.model.verdict import Cause, Certainty, Divergence, Lateness, Verdict
from ncclwatch_server.judge.alike import joined, ranks_of
from ncclwatch_server.judge.explanation import Explanation, Told, When, warns_of_nothing
from ncclwatch_server.judge.rules import RULES, explain
from ncclwatch_server.judge.rules.unseen_host import unseen_hosts
from ncclwatch_server.judge.rules.without_file import records_that_end, without_file
from ncclwatch_server.judge.telling.words import group_words
from ncclwatch_server.judge.theory.case import Case, explained
from ncclwatch_server.judge.theory.finders.devices import find_perhaps_stopped, find_refused, find_stopped
from ncclwatch_server.judge.theory.finders.insiders import find_inside, find_inside_after_mismatch, find_untold
from ncclwatch_server.judge.theory.finders.lingering import find_lingering
from ncclwatch_server.judge.theory.finders.lost_nodes import find_lost_nodes, find_vanished_nodes
from ncclwatch_server.judge.theory.finders.meetings import find_left_behind, find_scattered, find_unseen
from ncclwatch_server.judge.theory.finders.named_apart import find_named_apart
from ncclwatch_server.judge.theory.finders.outsiders import find_outside
from ncclwatch_server.judge.theory.finders.proven import find_circle, find_destroyed, find_gone, find_mismatches
from ncclwatch_server.judge.theory.histories.lines.call_sites import source_line
from ncclwatch_server.judge.theory.roots import Found, LateRoot, LingeringRoot, OutsideRoot, Place, Root, UntoldRoot

Stage = Callable[[Case], tuple[Verdict, ...]]
ROOTS_MAX = 8  # told at a time: who mends these looks again
_ENDINGS = frozenset({Cause.RANK_CRASHED, Cause.RANK_EXITED})
_WARNING = {
    when: tuple(rule for rule in RULES if rule.when is when and rule.warn is not warns_of_nothing) for when in When
}


def _by_itself(tell: Callable[[Case], tuple[Told, ...]]) -> Stage:
    return lambda case: tuple(warned(case, each) for each in tell(case))


def _by_rules(find: Callable[[Case], Found | Root | None]) -> Stage:
    def stage(case: Case) -> tuple[Verdict, ...]:
        found = find(case)
        if not found:
            return ()
        return judged_all(case, ((found,),) if isinstance(found, Root) else found)

    return stage


def _of_waits(stage: Stage) -> Stage:
    """Ask for roots of what ranks wait in only while somebody waits for no root that was told already."""
    return lambda case: stage(case) if case.unexplained else ()


# In the order of what they prove. What only files tell has rules of its own.
STAGES: tuple[Stage, ...] = (
    _by_rules(find_refused),
    _by_rules(find_stopped),
    _by_rules(find_mismatches),
    _by_rules(find_gone),
    _of_waits(_by_rules(find_destroyed)),
    _of_waits(_by_rules(find_named_apart)),
    _of_waits(_by_rules(find_circle)),
    _of_waits(_by_rules(find_scattered)),
    _of_waits(_by_rules(find_left_behind)),
    _of_waits(_by_rules(find_lost_nodes)),
    _by_rules(find_vanished_nodes),
    _by_itself(unseen_hosts),
    _by_rules(find_perhaps_stopped),
    _of_waits(_by_itself(without_file)),
    _of_waits(_by_rules(find_unseen)),
    _by_rules(find_outside),
    _of_waits(_by_rules(find_inside_after_mismatch)),
    _of_waits(_by_rules(find_inside)),
    _of_waits(_by_rules(find_untold)),
    _by_rules(find_lingering),
)


def verdicts_of(case: Case) -> tuple[Verdict, ...]:
    """Return a verdict for each independent root, in the order of what they prove."""
    told: list[Verdict] = []
    rest = case
    for stage in STAGES:
        while len(told) < ROOTS_MAX and (found := stage(rest)):
            told += [verdict for verdict in found if _is_no_aftermath(case, told, verdict)]
            before, rest = rest, rest.beside(rank for verdict in found for rank in ranks_of(verdict))
            if (rest.told, rest.explained) == (before.told, before.explained):
                break
    return tuple(verdict for verdict in told if not _comes_after_a_silence(case, told, verdict))


def warnings_of(case: Case, when: When) -> tuple[Verdict, ...]:
    """Return what rules warn of; at rest, only what the first says that has something to say."""
    rules = _WARNING[when]
    if when is When.AT_REST:
        ends = tuple(warned(case, each) for each in records_that_end(case))
        return ends or next(
            (found for rule in rules if (found := tuple(warned(case, each) for each in rule.warn(case)))), ()
        )
    return tuple(warned(case, each) for rule in rules for each in rule.warn(case))


def judged(case: Case, root: Root) -> Verdict | None:
    """Return the verdict on a root, None if no rule explains it."""
    why = explain(root, case)
    return _verdict(case, root, why) if why is not None else None


def judged_all(case: Case, found: Sequence[Sequence[Root]]) -> tuple[Verdict, ...]:
    """Return the verdicts on what one finder found: one for all roots of one mistake with one cause."""
    verdicts = []
    for alike in found:
        kinds: dict[object, list[Verdict]] = {}
        for verdict in (judged(case, root) for root in alike):
            if verdict is not None:
                kinds.setdefault((verdict.cause, verdict.one_of), []).append(verdict)
        more = alike[0].others_alike
        for same in kinds.values():
            verdicts.append(joined(case, same, more))
            more = ()
    return tuple(verdicts)


def _is_no_aftermath(case: Case, told: Sequence[Verdict], verdict: Verdict) -> bool:
    """Say whether a root is there for another reason than that a rank has ended: it was there before, for certain."""
    if not any(each.cause in _ENDINGS for each in told):
        return True
    return verdict.onset_s > max(map(_ended_s, case.views.values()), default=0.0)


def _comes_after_a_silence(case: Case, told: Sequence[Verdict], verdict: Verdict) -> bool:
    """Say whether a root of files came up after another one's rank had fallen silent, who may have ended then.

    No file tells how a rank ended that was killed; that its pulse stopped before the others' is all that is left of it.
    """
    own = set(ranks_of(verdict))
    silent = {culprit.rank for each in told for culprit in each.culprits} - own
    return any(
        view.file is not None and view.pulse_age_s > verdict.onset_s
        for rank in silent
        if (view := case.views.get(rank)) is not None
    )


def _ended_s(view: RankView) -> float:
    return view.ending.age_s + view.news_age_s if view.ending is not None else 0.0


def _verdict(case: Case, root: Root, why: Explanation) -> Verdict:
    """Return the verdict on a root: what is so is told by the root, and why by the rule."""
    ranks = {*(culprit.rank for culprit in why.culprits), *why.victims}
    if isinstance(root, UntoldRoot):
        ranks = {block.rank for block in root.blocks}
    return _made(
        case,
        why,
        _Facts(
            certainty=root.hangs,
            place=root.place,
            onset_s=why.onset_s if why.onset_s is not None else root.onset_s,
            still_s=_still_s(root),
            waited=root.waited if isinstance(root, (OutsideRoot, LateRoot)) else None,
            lateness=root.lateness if isinstance(root, LateRoot) else Lateness.NONE,
            explained=explained(case, ranks),
        ),
    )


def _still_s(root: Root) -> float:
    if isinstance(root, OutsideRoot):
        return root.still.still_s
    return root.still_s if isinstance(root, (LateRoot, LingeringRoot)) else 0.0


def warned(case: Case, warning: Told) -> Verdict:
    """Return the verdict on something that is wrong, and no root of a hang."""
    facts = _Facts(
        certainty=warning.certainty,
        place=warning.place,
        onset_s=warning.onset_s,
        explained=warning.explained,
        predicted=warning.predicted,
        about=warning.about,
    )  # fmt: skip
    return _made(case, warning.said, facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What a verdict says that no rule decides on."""

    certainty: Certainty
    place: Place
    onset_s: float = 0.0
    still_s: float = 0.0
    waited: WaitClass | None = None
    lateness: Lateness = Lateness.NONE
    explained: tuple[int, int] = (0, 0)
    predicted: bool = False
    about: str = ""


def _made(case: Case, why: Explanation, facts: _Facts) -> Verdict:
    """Make a verdict. There is no other place that does."""
    return Verdict(
        cause=why.cause,
        certainty=facts.certainty,
        severity=why.severity,
        summary=why.summary,
        explanation=why.explanation,
        advice=why.advice,
        culprits=why.culprits,
        victims=why.victims,
        one_of=why.one_of,
        predicted=facts.predicted,
        about=facts.about,
        group=facts.place.group,
        group_title=_group_title(case, facts.place.group),
        seq=facts.place.seq,
        op=facts.place.op,
        onset_s=facts.onset_s,
        still_s=facts.still_s,
        waited=facts.waited,
        lateness=facts.lateness,
        explained=facts.explained,
        first_divergence=_completed(case, why.divergence),
        repairs=why.repairs,
        evidence=why.evidence,
    )


def _completed(case: Case, parted: Divergence | None) -> Divergence | None:
    """Add the source lines at which histories parted, and how the group is called."""
    if parted is None:
        return None
    culprits, victims = (source_line(case.views.values(), site) for site in (parted.culprit_site, parted.victim_site))
    title = _group_title(case, parted.group)
    return replace(parted, culprit_source=culprits, victim_source=victims, group_title=title)


def _group_title(case: Case, name: str) -> str:
    return group_words(case.views, name) if name else ""
