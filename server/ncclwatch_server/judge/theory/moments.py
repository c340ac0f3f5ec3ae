"""Tells what the moments of files leave open: for how long ranks had waited, and whose file is older than the others.

An agent says when it looked. A file has a time that may be that of a copy, and the files of one job may have been taken
at different moments: then what a rank had not done yet says nothing about it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ncclwatch.contract.model.rank import GroupView, RankView
from ncclwatch_server.judge.theory.histories.signatures import SYNCHRONISING
from ncclwatch_server.judge.theory.waits.rank_standing import (
    Block,
    Operation,
    RankStanding,
    has_met,
    message_of,
    timeout_of,
)

AT_WORK_S = 5.0  # a live job is now and then caught waiting for less than this
WAITING_S_MIN = 0.5  # and for less than this at every moment
GIVEN_UP_OF_TIMEOUT = 0.9  # a wait that has lasted for this share of its group's timeout ended the job


@dataclass(frozen=True, slots=True, kw_only=True)
class Lasted:
    """For how long ranks had waited when their files were written."""

    seconds: float
    known: bool  # the times of the files can be trusted
    moving: bool = False  # they cannot, and ranks were at work when their files were written

    @property
    def too_short(self) -> bool:
        """Whether a healthy job looks the same."""
        return self.moving or (self.known and self.seconds < AT_WORK_S)


def lasted(views: Mapping[int, RankView], blocks: Iterable[Block], awaited: Iterable[int] = ()) -> Lasted:
    """Return for how long all ranks in these waits had waited when the files of the awaited were written, as well.

    The waits count on the clock of each rank itself, and up to the moment of the oldest view; between files that were
    kept with their times, the times of the files.
    """
    found, ranks = list(blocks), tuple(awaited)
    moving = are_moving(views, ranks, [block.rank for block in found])
    if not all(is_timed(views[block.rank]) for block in found):
        return Lasted(seconds=0.0, known=False, moving=moving)
    live = (block.rank for block in found if views[block.rank].file is None)
    seen_s = max((_behind_s(views[rank]) for rank in (*ranks, *live)), default=0.0)
    waited_s = min((block.wait.age_s + _older_s(views[block.rank]) for block in found), default=0.0)
    return Lasted(seconds=max(0.0, waited_s - seen_s), known=True, moving=moving)


def _behind_s(view: RankView) -> float:
    """Return for how long nobody heard any more of what a rank does, as far as times tell; a ring hears to the last."""
    if view.file is not None and (view.file.saw_host or not view.file.timed):
        return 0.0
    return _older_s(view)


def awaited_s(views: Mapping[int, RankView], blocks: Iterable[Block], ranks: Iterable[int]) -> Mapping[int, float]:
    """Return for how long others had waited for each of these ranks when its view was taken; < 0: nobody had yet.

    Later waits of theirs say nothing of a rank: it may have come since.
    """
    begun_s: dict[int, float] = {}
    waits: dict[Operation, float] = {}
    for block in blocks:
        s_ago = _older_s(views[block.rank]) + block.wait.age_s
        waits[block.operation] = max(waits.get(block.operation, 0.0), s_ago)
    for operation, s_ago in waits.items():
        for rank in operation.members:
            begun_s[rank] = max(begun_s.get(rank, 0.0), s_ago)
    return {r: begun_s.get(r, 0.0) - _behind_s(views[r]) - views[r].taken_s for r in ranks}


def _older_s(view: RankView) -> float:
    """Return how long ago a view was taken."""
    return view.file.older_s if view.file is not None else view.news_age_s


def has_lasted(views: Mapping[int, RankView], blocks: Iterable[Block], seconds: float) -> bool:
    """Say whether waits have lasted for so long, or nobody can tell: who keeps the files of a job had a reason to."""
    long = lasted(views, blocks)
    return not long.known or long.seconds >= seconds


def is_timed(view: RankView) -> bool:
    """Say whether the ages of a view count up to the moment at which it was taken."""
    return view.file is None or view.file.timed


def is_moving(view: RankView) -> bool:
    """Say whether a rank was at work when its file was written, and no time tells that this was long ago."""
    return view.file is not None and view.file.moving and not view.file.timed


def may_go_on(found: Mapping[int, RankStanding]) -> bool:
    """Say whether files with times of their own may be of a job that went on afterwards.

    A file tells what a rank had recorded, and not whether it worked at that moment. It is the end of the job that tells
    that somebody was waited for in vain: a wait that its group gave up, or what a log says, which speaks at the end.
    """
    if any(each.view.file is not None and each.view.file.source == "log" for each in found.values()):
        return False
    return not any(
        _is_given_up(each.view, block)
        for each in found.values()
        if is_timed(each.view)
        for block in (*each.blocks, *each.queued)
    )


def _is_given_up(view: RankView, block: Block) -> bool:
    """Say whether a wait had lasted to its timeout; one in an older file may have ended since."""
    timeout_s = timeout_of(view, block.operation.group)
    since_s = 0.0 if view.file is not None and view.file.older else _older_s(view)
    return timeout_s > 0 and block.wait.age_s + since_s >= GIVEN_UP_OF_TIMEOUT * timeout_s


def are_moving(views: Mapping[int, RankView], awaited: Iterable[int], waiting: Iterable[int]) -> bool:
    """Say whether ranks that are waited for were at work when their files were written, or all that wait for them."""
    return any(is_moving(views[rank]) for rank in awaited if rank in views) or all(
        is_moving(views[rank]) for rank in waiting
    )


def without_older_files(views: Mapping[int, RankView]) -> Mapping[int, RankView]:
    """Return the views with all that is not told by files that are older than those of other ranks.

    One member is through with a collective that no member can end without all others, and such a file does not know of
    it: it was written before. Or it was written before any of the others that wait now came to wait. So whatever it has
    not entered may have been entered since.
    """
    if not any(view.file is not None for view in views.values()):
        return views
    through, waits, messages = completed_by_all(views), _waits_begun(views), _messages_begun(views)
    found = dict(views)
    for rank, view in views.items():
        if view.file is None:
            continue
        behind = any(group.enqueued < through.get(group.name, 0) for group in view.groups if not group.untold)
        before = {
            group.name
            for group in view.groups
            if _was_before(view, group, waits.get(group.name, {}), messages.get((group.name, rank), ()))
        }
        if behind or before:
            groups = (replace(g, untold=True) if behind or g.name in before else g for g in view.groups)
            found[rank] = replace(view, groups=tuple(groups), file=replace(view.file, older=True))
    return found


def _waits_begun(views: Mapping[int, RankView]) -> dict[str, dict[int, float]]:
    """Return by group and number how long ago the first rank came to an unfinished collective, as far as times tell."""
    found: dict[str, dict[int, float]] = {}
    for view in views.values():
        for group in view.groups if is_timed(view) else ():
            pending = group.pending
            if pending is not None and not group.destroyed:
                begun = found.setdefault(group.name, {})
                begun[pending.seq] = max(begun.get(pending.seq, 0.0), _older_s(view) + pending.age_s)
    return found


def _messages_begun(views: Mapping[int, RankView]) -> dict[tuple[str, int], list[tuple[Operation, float]]]:
    """Return the messages that ranks wait in, and how long ago they came to, by group and whom they wait for."""
    found: dict[tuple[str, int], list[tuple[Operation, float]]] = {}
    for view in views.values():
        waits = (thread.wait for thread in view.threads if thread.wait is not None) if is_timed(view) else ()
        for wait in waits:
            if wait.op.is_p2p and wait.peer >= 0:
                message = message_of(view.rank, wait.group, wait.kind, wait.seq, wait.peer)
                found.setdefault((wait.group, wait.peer), []).append((message, _older_s(view) + wait.age_s))
    return found


def _was_before(
    view: RankView, group: GroupView, waits: Mapping[int, float], messages: Iterable[tuple[Operation, float]]
) -> bool:
    """Say whether a file was written before others came to wait in what it does not know of."""
    if not is_timed(view):
        return False
    begun = [s_ago for seq, s_ago in waits.items() if seq > group.enqueued]
    begun += [s_ago for message, s_ago in messages if not has_met(view, message)]
    return bool(begun) and _behind_s(view) >= max(begun)


def is_outdated(view: RankView, age_s: float) -> bool:
    """Say whether a file was written long before those of others, and its rank was at work then.

    `age_s`: for how long the rank had been where it was, when the file was written.
    """
    file = view.file
    return file is not None and file.timed and file.older_s >= AT_WORK_S and age_s < AT_WORK_S


def perhaps_older(views: Mapping[int, RankView]) -> frozenset[int]:
    """Return ranks whose files may be older than others': they lack what others have completed, of unknown kind.

    A broadcast ends for others before a member has come, so the file may as well be as new as theirs. And where no
    time tells, who was at work when its file was written may have come since.
    """
    if not any(view.file is not None for view in views.values()):
        return frozenset()
    moving = frozenset(rank for rank, view in views.items() if is_moving(view))
    newest: dict[str, int] = {}
    for view in views.values():
        for group in view.groups:
            if not group.untold and group.completed > newest.get(group.name, 0):
                newest[group.name] = group.completed
    return moving.union(
        rank
        for rank, view in views.items()
        if view.file is not None
        and any(not group.untold and group.enqueued < newest.get(group.name, 0) for group in view.groups)
    )


def completed_by_all(views: Mapping[int, RankView]) -> dict[str, int]:
    """Return for each group the newest collective that all members must have entered, as one is through with it."""
    kinds = {
        (op.group, op.seq): op.op for view in views.values() for op in view.history if not op.op.is_p2p and op.completed
    }
    found: dict[str, int] = {}
    for view in views.values():
        for group in view.groups:
            sure = kinds.get((group.name, group.completed)) in SYNCHRONISING
            if sure and not group.untold and group.completed > found.get(group.name, 0):
                found[group.name] = group.completed
    return found
