"""Says whether a circle of waits is a proof: what could still end it, though its ranks' views show it closed.

Three things: the views were taken at different instants, and the waits never held together; a message is under
way that counting alone cannot tell from one that was never sent; a member of a rooted collective may not need
the one that is missing. The first is no finding at all, the others are only likely.
"""

from collections.abc import Iterable, Mapping

from ncclwatch.contract.model.rank import RankView, WaitKind
from ncclwatch_server.judge.theory.waits.full_tables import lacks_peers
from ncclwatch_server.judge.theory.waits.mismatches import ROOTED
from ncclwatch_server.judge.theory.waits.rank_standing import Block
from ncclwatch_server.judge.theory.waits.wait_graph import WaitGraph, waited_for


def held_together(views: Mapping[int, RankView], blocks: Iterable[Block]) -> bool:
    """Say whether there was an instant at which all of these waits were under way.

    A view that was asked for at one instant and came at another was taken in between. A wait of some age is certain
    from its beginning, as late as it may have been, to the instant at which the view was asked for.
    """
    begun_s, seen_s = [], []
    for block in blocks:
        view = views[block.rank]
        begun_s.append(view.news_age_s + _held_s(block))
        seen_s.append(view.news_age_s + view.taken_s)
    return max(seen_s, default=0.0) <= min(begun_s, default=0.0)


def _held_s(block: Block) -> float:
    """Return for how long a thread has been held up. The host of a device came to stand after what it issued."""
    if not block.on_device:
        return block.wait.age_s
    wait = block.thread.wait
    return min(block.wait.age_s, wait.age_s if wait is not None else block.thread.same_s)


def seen_after_s(view: RankView) -> float:
    """Return how long ago, at most, a view was taken."""
    return view.news_age_s + view.taken_s


def may_end(views: Mapping[int, RankView], graph: WaitGraph, block: Block) -> bool:
    """Say whether the wait of one rank of a circle may end although the circle is closed."""
    if block.wait.kind in (WaitKind.SEND, WaitKind.RECV):
        # On a device the n-th receive gets the n-th message, and who has to finish something else first is known.
        return not waited_for(graph, block) if block.on_device else _message_under_way(views, block)
    root = block.wait.peer
    if block.wait.op not in ROOTED or root in (-1, block.rank):
        return False
    # Only the root is needed for certain; whether a leaf waits for another one is up to the backend.
    return root not in waited_for(graph, block) or root not in graph.doomed


def _message_under_way(views: Mapping[int, RankView], block: Block) -> bool:
    """Say whether something that the other side issued before may be what this side waits for.

    The n-th receive need not get the n-th message: tags may part them. Only where every message that was sent has
    been received is it certain that none is under way; the same for receives that were posted.
    """
    operation = block.operation
    other = operation.target if operation.kind is WaitKind.SEND else operation.source
    if other < 0 or other not in views:
        return False
    if lacks_peers(views[other]) or lacks_peers(views[block.rank]):
        return True
    own = [peer for peer in views[block.rank].peers if (peer.group, peer.peer) == (operation.group, other)]
    theirs = [peer for peer in views[other].peers if peer.group == operation.group]
    if operation.kind is WaitKind.SEND:
        posted = sum(peer.recvs for peer in theirs if peer.peer in (block.rank, -1))
        return posted > sum(peer.sends_completed for peer in own)
    sent = sum(peer.sends for peer in theirs if peer.peer == block.rank)
    return sent > sum(peer.recvs_completed for peer in own)
