"""Every scenario is judged again with groups whose lists of members nobody has.

A group without known members is never judged as if it had none: what was critical stays so with the same culprits or
some of them, names them as one of several, or is not said. Nothing becomes critical, and no culprit is named for
certain that is none where the lists are known.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import GroupView, RankView
from ncclwatch.contract.model.verdict import Cause, Severity, Verdict
from ncclwatch.contract.ring.members import digest_of
from ncclwatch_server.judge import judge
from tests.scenarios.texts import FILES, SEPARATOR, render, situation

# Three circles of two ranks, each told as one of its own; where not all groups are known, one circle is left.
# The same of a circle of two within one of three to five, though it be none of those that wait in new_group.
OF_PLACES = {
    "roots_circles_of_one_mistake",
    "alone_beside_one_who_is_no_member",
    "first_receive_from_a_rank_that_is_in_a_collective",
    "group_after_a_call_that_another_left_out",
}
# No repair is known where the sizes of groups are not, and then what a rank did before decides.
OF_HABITS = {"players_receive_weights_once_more_than_the_learner_sends"}
Claim = tuple[Cause, tuple[int, ...], bool]
Change = Callable[[JobSnapshot], JobSnapshot]


def lost(group: GroupView) -> GroupView:
    """Return a group as a ring has it in which the list found no room."""
    return (
        replace(group, ranks=(), size=len(group.ranks), members_digest=digest_of(group.ranks)) if group.ranks else group
    )


def unknown(group: GroupView) -> GroupView:
    """Return a group of which not even the number of members is known."""
    return replace(group, ranks=(), size=0, members_digest=0)


def in_all_groups(change: Callable[[GroupView], GroupView]) -> Change:
    return lambda snapshot: _with_groups(snapshot, lambda view: tuple(map(change, view.groups)))


def without_unused(change: Callable[[GroupView], GroupView]) -> Change:
    """Return the same where ranks have no record of groups that they have not used yet, nor seen made."""
    return lambda snapshot: _with_groups(
        snapshot, lambda view: tuple(change(group) for group in view.groups if _is_used(view, group))
    )


def _is_used(view: RankView, group: GroupView) -> bool:
    waits = {thread.wait.group for thread in view.threads if thread.wait is not None}
    named = waits | {peer.group for peer in view.peers}
    return group.enqueued > 0 or group.destroyed or group.site is not None or group.name in named


def _with_groups(snapshot: JobSnapshot, groups: Callable[[RankView], tuple[GroupView, ...]]) -> JobSnapshot:
    return replace(snapshot, ranks={rank: replace(view, groups=groups(view)) for rank, view in snapshot.ranks.items()})


def critical(verdicts: tuple[Verdict, ...]) -> set[Claim]:
    """Return what is claimed by critical verdicts."""
    return {
        (verdict.cause, tuple(sorted(culprit.rank for culprit in verdict.culprits)), verdict.one_of)
        for verdict in verdicts
        if verdict.severity is Severity.CRITICAL
    }


def _follows(claim: Claim, known: Claim) -> bool:
    """Whether whoever is named was named before: all of those, or some where each of them was said to be at fault."""
    (cause, ranks, one_of), (known_cause, known_ranks, known_one_of) = claim, known
    if one_of and not known_one_of:  # what decided between them is not known
        return set(known_ranks) < set(ranks)
    if cause is not known_cause or one_of is not known_one_of:
        return False
    return ranks == known_ranks or (not one_of and set(ranks) <= set(known_ranks))


def _is_of_those(claim: Claim, known: Claim) -> bool:
    return claim[2] and set(claim[1]) <= set(known[1])


def _is_some_of(claim: Claim, known: Claim) -> bool:
    return claim[0] is known[0] and known[2] and set(claim[1]) <= set(known[1])


def _fits(path: Path) -> Callable[[Claim, Claim], bool]:
    ways = ((OF_PLACES, _is_of_those), (OF_HABITS, _is_some_of))
    return next((way for stems, way in ways if path.stem in stems), _follows)


@cache  # five tests ask for each
def snapshot_of(path: Path) -> JobSnapshot:
    return situation(path.read_text().partition(SEPARATOR)[0]).snapshot()


@cache
def _verdicts_with_all_lists(path: Path) -> tuple[Verdict, ...]:
    return judge(snapshot_of(path))


def outcome(path: Path, change: Change) -> str:
    """Return how what is critical changes when members are unknown."""
    before = _verdicts_with_all_lists(path)
    after = judge(change(snapshot_of(path)))
    if not critical(after):
        return "silent" if critical(before) else "none"
    fits = _fits(path)
    if not all(any(fits(claim, known) for known in critical(before)) for claim in critical(after)):
        return "wrong"
    return "same" if render(after) == render(before) else "less"


def _all_recorded(path: Path) -> bool:
    """Whether each group has a record of each of its members; a rank that nobody has seen has recorded none."""
    ranks = snapshot_of(path).ranks
    groups = [(rank, group) for rank, view in ranks.items() for group in view.groups]
    recorded = {(group.name, group.ranks, rank) for rank, group in groups}
    members = {(group.name, group.ranks, member) for _, group in groups for member in group.ranks}
    return members <= recorded


@pytest.mark.parametrize("path", [path for path in FILES if _all_recorded(path)], ids=lambda path: path.stem)
def test_where_all_members_have_recorded_their_groups_the_judge_needs_no_list(path: Path):
    expected = path.read_text().partition(SEPARATOR)[2]
    assert render(judge(in_all_groups(lost)(snapshot_of(path)))) == expected


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (in_all_groups(lost), 200),
        (in_all_groups(unknown), 189),
        (without_unused(lost), 194),
        (without_unused(unknown), 146),
    ],
    ids=["all recorded", "all recorded, sizes unknown", "some recorded", "some recorded, sizes unknown"],
)
def test_where_members_are_missing_nobody_is_accused_who_would_not_be_otherwise(change: Change, same: int):
    found = Counter(outcome(path, change) for path in FILES)
    assert found["wrong"] == 0
    assert found["same"] >= same
