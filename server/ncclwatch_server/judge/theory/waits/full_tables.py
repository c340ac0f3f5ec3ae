"""Tells what a ring had no room for: of a rank whose tables were full, what is missing says nothing.

A table that is full to its last row, in a ring that has counted something as dropped, may lack a row. Then a group or
a peer that is not in it was perhaps used, and a thread that is not in it perhaps waits, or will let others go on.
"""

from collections.abc import Mapping
from dataclasses import replace

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import RankView, WaitKind
from ncclwatch_server.judge.theory.waits.rank_standing import Operation

_P2P = (WaitKind.SEND, WaitKind.RECV)
_MEETINGS = (WaitKind.INIT, WaitKind.NEW_GROUP)


def lacks_groups(view: RankView) -> bool:
    """Whether a rank may be in groups that its view does not have."""
    return view.dropped > 0 and len(view.groups) >= config.GROUPS_MAX


def lacks_peers(view: RankView) -> bool:
    """Whether a rank may have sent and received more than its view has."""
    return view.dropped > 0 and len(view.peers) >= config.PEERS_MAX


def lacks_threads(view: RankView) -> bool:
    """Whether a rank may have threads that issue operations, or wait, and are not in its view."""
    return view.dropped > 0 and len(view.threads) >= config.THREADS_MAX


def may_have_entered(view: RankView, operation: Operation) -> bool:
    """Whether a rank may have issued its part of an operation although its view does not say so."""
    if operation.kind in _MEETINGS:
        return lacks_threads(view) or (operation.kind is WaitKind.NEW_GROUP and lacks_groups(view))
    if operation.kind is not WaitKind.COLLECTIVE and operation.kind not in _P2P:
        return False
    if any(group.name == operation.group and group.untold for group in view.groups):
        return True
    if operation.kind in _P2P:
        return lacks_peers(view)
    return lacks_groups(view) and all(group.name != operation.group for group in view.groups)


def legible(views: Mapping[int, RankView]) -> Mapping[int, RankView]:
    """Return views without the operations of groups that they have not: these have one name, and nothing in common."""
    if not any(map(lacks_groups, views.values())):
        return views
    return {rank: _legible(view) if lacks_groups(view) else view for rank, view in views.items()}


def _legible(view: RankView) -> RankView:
    return replace(view, history=tuple(operation for operation in view.history if operation.group))
