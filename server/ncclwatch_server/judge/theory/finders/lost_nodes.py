"""Finds nodes that report no more, and whose ranks others wait for, or ended for the loss of.

A silent agent alone is no news of its ranks: the way to the server may be broken, and training goes on. Two things have
to agree: nothing of the node has come to the server since some moment, and nothing of it has come to the other ranks
since the same moment, so that they came to wait for it then, or lost their connection to it.
"""

from collections.abc import Iterable, Mapping, Sequence

from ncclwatch.contract.model.job import Contact, QuietNode
from ncclwatch.contract.model.rank import Op, RankView
from ncclwatch.contract.model.verdict import Certainty
from ncclwatch_server.judge.theory.case import Case, onset_s
from ncclwatch_server.judge.theory.endings import SAME_TIME_S, ended_s_ago, is_victim, lost_peer
from ncclwatch_server.judge.theory.finders.meetings import unexplained_blocks
from ncclwatch_server.judge.theory.histories.signatures import SYNCHRONISING
from ncclwatch_server.judge.theory.roots import LostNodesRoot, place_of
from ncclwatch_server.judge.theory.waits.rank_standing import Block, group_of
from ncclwatch_server.judge.theory.waits.wait_graph import victims_of

_FROM_ROOT = (Op.BROADCAST, Op.SCATTER)
SLACK_S = 3.0  # between the last report of a node and its end: reports come each second, later on a busy node
MUTE_S, MUTE_WAIT_S, MUTE_WAIT_S_MAX = 5.0, 5.0, 60.0  # its kernel acknowledges nothing; TCP retransmits five times
MUTE_ALONE_S = 60.0  # the same, where others had waited for its ranks before
QUIET_S, QUIET_S_MAX = 30.0, 120.0  # without such a sign: living ranks have started another agent long before

# By then a node that closed its connection at the same time counts as silent too, which takes 5 s.
VANISHED_S = 7.0


def find_lost_nodes(case: Case) -> tuple[tuple[LostNodesRoot, ...], ...]:
    """Return the nodes that are gone as far as anybody can see, those of which the same is known as one root."""
    quiet = case.snapshot.quiet_nodes
    if not quiet:
        return ()
    waits = _waits_for(case, quiet)
    by_contact: dict[Contact, list[QuietNode]] = {}
    for node in quiet:
        if node.host in waits and _is_lost(case, node, waits[node.host]):
            by_contact.setdefault(node.contact, []).append(node)
    return tuple((_root(case, nodes, waits),) for nodes in by_contact.values())


def find_vanished_nodes(case: Case) -> LostNodesRoot | None:
    """Return the nodes on which everything was gone at once, agent and ranks, before others lost a peer and ended.

    A container that is killed takes all that is in it along, and its kernel closes the connections: nobody is left to
    tell of it, and nobody waits. Then the launchers of the other containers end, and with them their agents. Whoever
    was told of as having lost a peer was on a node that was still there.
    """
    quiet = [node for node in case.snapshot.quiet_nodes if node.contact is Contact.CLOSED]
    gone = {rank: view for rank, view in case.views.items() if view.ending is not None} if quiet else {}
    lost_s = {rank: ended_s_ago(view) for rank, view in gone.items() if view.ending and lost_peer(view.ending)}
    if case.told or not lost_s or any(view.ending and not is_victim(view.ending) for view in gone.values()):
        return None
    if any(_was_told_first(view, lost_s, case) for rank, view in gone.items() if rank not in lost_s):
        return None
    first_s = max(lost_s.values())
    witnesses = {case.views[rank].host for rank in lost_s}
    before = [node for node in quiet if node.host not in witnesses and node.contact_s >= first_s - SAME_TIME_S]
    closed_s = max((node.contact_s for node in before), default=0.0)
    if closed_s < VANISHED_S:
        return None
    nodes = tuple(node for node in before if node.contact_s >= closed_s - SAME_TIME_S)
    echoes = tuple(sorted(lost_s, key=lambda rank: (-lost_s[rank], rank)))
    return LostNodesRoot(
        hangs=Certainty.STALLED,
        ranks=tuple(sorted({rank for node in nodes for rank in node.ranks})),
        victims=tuple(sorted(gone)),
        place=place_of(()),
        onset_s=first_s,
        nodes=nodes,
        alone="",
        echoes=echoes,
    )


def _was_told_first(view: RankView, lost_s: Mapping[int, float], case: Case) -> bool:
    """Say whether a rank was told to stop when none on its host had lost a peer: somebody ends the job."""
    here = (ago_s for rank, ago_s in lost_s.items() if case.views[rank].host == view.host)
    return ended_s_ago(view) > max(here, default=0.0)


def _root(case: Case, nodes: Sequence[QuietNode], waits: Mapping[str, Sequence[Block]]) -> LostNodesRoot:
    ranks = tuple(sorted({rank for node in nodes for rank in node.ranks}))
    blocks = tuple({id(block): block for node in nodes for block in waits[node.host]}.values())
    return LostNodesRoot(
        hangs=Certainty.STALLED,
        ranks=ranks,
        victims=tuple(sorted({*victims_of(case.graph, ranks), *(block.rank for block in blocks)})),
        blocks=blocks,
        place=place_of(blocks),
        onset_s=onset_s(blocks),
        nodes=tuple(nodes),
        alone=case.snapshot.cut_off_host,
    )


def _waits_for(case: Case, quiet: Iterable[QuietNode]) -> dict[str, list[Block]]:
    """Return the waits for ranks of quiet nodes, by host."""
    host_of = {rank: node.host for node in quiet for rank in node.ranks}
    found: dict[str, list[Block]] = {}
    for block in unexplained_blocks(case):
        hosts = {host_of[rank] for rank in case.graph.unseen[block.operation] if rank in host_of}
        for host in hosts:
            found.setdefault(host, []).append(block)
    return found


def _is_lost(case: Case, node: QuietNode, blocks: Sequence[Block]) -> bool:
    """Say whether a node has stopped at the moment of its last report, and is waited for longer than it may take."""
    waited_s = max(block.wait.age_s + case.views[block.rank].news_age_s for block in blocks)
    if any(_has_met(view, node) for view in case.views.values()):
        return False
    together = waited_s <= node.silent_s + SLACK_S
    if node.contact is not Contact.MUTE:
        return together and node.silent_s >= QUIET_S and waited_s >= _patience_s(case, blocks, QUIET_S, QUIET_S_MAX)
    if node.contact_s < (MUTE_S if together else MUTE_ALONE_S):
        return False
    return waited_s >= _patience_s(case, blocks, MUTE_WAIT_S, MUTE_WAIT_S_MAX)


def _patience_s(case: Case, blocks: Iterable[Block], least_s: float, most_s: float) -> float:
    """Return how long such a wait may last: as long as this job has waited in such operations before."""
    ops = {block.wait.op.value for block in blocks}
    known_s = (habit.bound_s for kind, habit in case.snapshot.habits.items() if kind.op in ops)
    return min(most_s, max((least_s, *known_s)))


def _has_met(view: RankView, node: QuietNode) -> bool:
    """Say whether a rank is through with what it issued after the last report of a node, and what needs that node."""
    if view.rank in node.ranks:
        return False
    in_group: dict[str, bool] = {}  # a group may have 100,000 members
    for op in reversed(view.history):
        if op.age_s + view.news_age_s >= node.silent_s - SLACK_S:
            return False
        if not op.completed:
            continue
        if op.op is Op.RECV or (op.op in _FROM_ROOT and op.peer != view.rank):
            met = op.peer in node.ranks
        elif op.op in SYNCHRONISING:
            if op.group not in in_group:
                in_group[op.group] = _is_in(view, op.group, node)
            met = in_group[op.group]
        else:
            met = False
        if met:
            return True
    return False


def _is_in(view: RankView, name: str, node: QuietNode) -> bool:
    """Say whether a group of a rank has members on a node."""
    group = group_of(view, name)
    return group is not None and not set(node.ranks).isdisjoint(group.ranks)
