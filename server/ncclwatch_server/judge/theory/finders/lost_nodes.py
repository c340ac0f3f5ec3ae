"""Finds nodes that report no more, and whose ranks others wait for, or ended for the loss of.

A silent agent alone is no news of its ranks: the way to the server may be broken, and training goes on. Two things have
to agree: nothing of the node has come to the server since some moment, and nothing of it has come to the other ranks
since the same moment, so that they came to wait for it then, or lost their connection to it. A node that answers
another one is up, and its ranks may be at work.
"""

from collections.abc import Iterable, Mapping, Sequence

from ncclwatch.contract.model.job import Contact, QuietNode
from ncclwatch.contract.model.phases import Phase
from ncclwatch.contract.model.rank import Ending, Op, RankView
from ncclwatch.contract.model.verdict import Certainty
from ncclwatch_server.judge.theory.case import Case, onset_s
from ncclwatch_server.judge.theory.ends.kinds import SAME_TIME_S, ended_s_ago, is_timeout, lost_peer, was_told
from ncclwatch_server.judge.theory.finders.meetings import unexplained_blocks
from ncclwatch_server.judge.theory.histories.signatures import SYNCHRONISING
from ncclwatch_server.judge.theory.lateness import FIRST_TIME_S, allowed_s
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
GONE = (Contact.MUTE, Contact.CLOSED)  # of any other node the processes may have no more than too little CPU time
_LONGEST_S = max(FIRST_TIME_S.values())
NOTICED_S = 60.0  # in which a rank comes to its next collective, and so notices that a peer is gone
_OF_BACKENDS = ("RuntimeError", "DistBackendError")  # what gloo and NCCL raise at the loss of a peer


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
    gone = {id(block) for contact in GONE for node in by_contact.get(contact, ()) for block in waits[node.host]}
    # Ranks of a node that is up may wait for those of one that is gone, as the others do that are seen to.
    up = [node for node in by_contact.pop(Contact.REACHED, ()) if not gone.issuperset(map(id, waits[node.host]))]
    return tuple((_root(case, nodes, waits),) for nodes in (*by_contact.values(), up) if nodes)


def find_vanished_nodes(case: Case) -> LostNodesRoot | None:
    """Return the nodes on which everything was gone at once, agent and ranks, before others lost a peer and ended.

    A container that is killed takes all that is in it along, and its kernel closes the connections: nobody is left to
    tell of it, and nobody waits. Then the launchers of the other containers end, and with them their agents. Whoever
    was told of as having lost a peer was on a node that was still there.

    All that could explain the loss in another way has to be ruled out: a rank that ended for a reason of its own, one
    that was told to stop, one of which nothing is known, a node that is mute. A node whose agent alone is gone goes on
    to meet the others.
    """
    gone = {rank: view for rank, view in case.views.items() if view.ending is not None}
    lost_s = {rank: ended_s_ago(view) for rank, view in gone.items() if view.ending and _lost_a_rank(view.ending)}
    if case.told or not lost_s or any(not _is_no_reason(case, rank, view, lost_s) for rank, view in gone.items()):
        return None
    snapshot = case.snapshot
    # A rank that is silent on a node that is not has detached: nobody knows what it has done.
    quiet = {rank for node in snapshot.quiet_nodes for rank in node.ranks}
    if len({*case.views, *quiet, *snapshot.unasked}) < snapshot.world_size:
        return None
    witnesses = {case.views[rank].host for rank in lost_s}
    first_s = max(lost_s.values())
    apart = [node for node in snapshot.quiet_nodes if node.host not in witnesses and not _goes_on(case, node)]
    before = [
        node for node in apart if node.contact_s >= first_s - SAME_TIME_S and not _goes_on(case, node, perhaps=True)
    ]
    closed_s = max((node.contact_s for node in before), default=0.0)
    elsewhere = any(node.contact is not Contact.CLOSED or node.contact_s > first_s + NOTICED_S for node in apart)
    if elsewhere or closed_s < VANISHED_S:
        return None
    nodes = tuple(node for node in before if node.contact_s >= closed_s - SAME_TIME_S)
    return LostNodesRoot(
        hangs=Certainty.STALLED,
        ranks=tuple(sorted({rank for node in nodes for rank in node.ranks})),
        victims=tuple(sorted(gone)),
        place=place_of(()),
        onset_s=first_s,
        nodes=nodes,
        alone="",
        echoes=tuple(sorted(lost_s, key=lambda rank: (-lost_s[rank], rank))),
    )


def _goes_on(case: Case, node: QuietNode, *, perhaps: bool = False) -> bool:
    """Say whether a node has met another one since its last report, or, `perhaps`, may have."""
    return any(_has_met(view, node, perhaps=perhaps) for view in case.views.values())


def _lost_a_rank(ending: Ending) -> bool:
    """Say whether a backend of collectives raised for the loss of a rank: not a store, a pipe or a timeout."""
    return ending.exception.startswith(_OF_BACKENDS) and lost_peer(ending) and not is_timeout(ending)


def _is_no_reason(case: Case, rank: int, view: RankView, lost_s: Mapping[int, float]) -> bool:
    """Say whether a rank ended for the loss of another one, or was told to stop after one on its host had."""
    return rank in lost_s or (
        view.ending is not None and was_told(view.ending) and not _was_told_first(view, lost_s, case)
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
        in_doubt=all(_is_in_doubt(case, node, waits[node.host]) for node in nodes),
    )


def _waits_for(case: Case, quiet: Iterable[QuietNode]) -> dict[str, list[Block]]:
    """Return the waits for ranks of quiet nodes, by host.

    A rank of a node that is quiet itself was seen to wait before, and nobody knows whether it still does. Where a
    rank that still reports has not entered the operation either, the wait says nothing about the node: that rank may
    be validating, and all others wait for it.
    """
    host_of = {rank: node.host for node in quiet for rank in node.ranks}
    found: dict[str, list[Block]] = {}
    for block in unexplained_blocks(case):
        if block.rank in host_of or case.graph.absent[block.operation]:
            continue
        hosts = {host_of[rank] for rank in case.graph.unseen[block.operation] if rank in host_of}
        for host in hosts:
            found.setdefault(host, []).append(block)
    return found


def _is_lost(case: Case, node: QuietNode, blocks: Sequence[Block]) -> bool:
    """Say whether a node has stopped at the moment of its last report, and is waited for longer than it may take."""
    if _goes_on(case, node):
        return False
    waited_s, together = _waited_s(case, blocks), _fell_silent_first(case, node, blocks)
    if node.contact is not Contact.MUTE:
        # A server that was halted sees that a connection was closed long after the last report. Its agent dials again.
        quiet_s = node.contact_s if node.contact is Contact.CLOSED else node.silent_s
        if not together or node.contact is Contact.REACHED:
            return quiet_s >= QUIET_S_MAX and not _may_be_late(case, node, blocks)
        return quiet_s >= QUIET_S and waited_s >= _patience_s(case, blocks, QUIET_S, QUIET_S_MAX)
    if node.contact_s < (MUTE_S if together else MUTE_ALONE_S):
        return False
    return waited_s >= _patience_s(case, blocks, MUTE_WAIT_S, MUTE_WAIT_S_MAX)


def _waited_s(case: Case, blocks: Iterable[Block]) -> float:
    return max(block.wait.age_s + case.views[block.rank].news_age_s for block in blocks)


def _fell_silent_first(case: Case, node: QuietNode, blocks: Iterable[Block]) -> bool:
    """Say whether nobody had waited for a node before it fell silent."""
    return _waited_s(case, blocks) <= node.silent_s + SLACK_S


def _patience_s(case: Case, blocks: Iterable[Block], least_s: float, most_s: float) -> float:
    """Return after how long such a wait is told: as long as this job has waited in such operations before."""
    ops = {block.wait.op.value for block in blocks}
    known_s = (habit.bound_s for kind, habit in case.snapshot.habits.items() if kind.op in ops)
    return min(most_s, max((least_s, *known_s)))


def _may_be_late(case: Case, node: QuietNode, blocks: Sequence[Block]) -> bool:
    """Say whether ranks that work may keep others waiting for so long, on a node cut off from the server alone.

    A wait that began before the node fell silent has another reason: what its ranks were seen to do then. One that
    began later is a sign of the loss, but for as long as steps of this job keep others waiting, or at a call that the
    waiting ranks have not been through lately, after which anything may take its time.
    """
    if _fell_silent_first(case, node, blocks):
        repeated = any(_is_repeated(case, block) for block in blocks)
        return _waited_s(case, blocks) < (_longest_step_s(case, blocks) if repeated else _LONGEST_S)
    under_way = case.snapshot.under_way
    begun = {kind for block in blocks for kind in under_way.get((block.operation.group, block.operation.seq), ())}
    allowed = (max(allowed_s(case, kind), FIRST_TIME_S[kind.phase]) for kind in begun)
    return _waited_s(case, blocks) < max(allowed, default=_LONGEST_S)


def _longest_step_s(case: Case, blocks: Iterable[Block]) -> float:
    """Return for how long this job lets a step keep others waiting in such operations; 0: nobody knows."""
    ops = {block.wait.op.value for block in blocks}
    habits = ((kind, habit) for kind, habit in case.snapshot.habits.items() if habit.waits)
    return max((habit.bound_s for kind, habit in habits if kind.phase is Phase.STEP and kind.op in ops), default=0.0)


def _is_in_doubt(case: Case, node: QuietNode, blocks: Sequence[Block]) -> bool:
    """Say whether ranks of a node that is told may be well: agents end while ranks go on, and some are waited for."""
    alone = node.contact is not Contact.MUTE and not _fell_silent_first(case, node, blocks)
    return alone or _may_be_late(case, node, blocks)


def _is_repeated(case: Case, block: Block) -> bool:
    """Say whether a rank has lately been through the call that it waits in."""
    same = (block.wait.op, block.wait.site)
    return any(op.completed and (op.op, op.site) == same for op in case.views[block.rank].history)


def _has_met(view: RankView, node: QuietNode, *, perhaps: bool = False) -> bool:
    """Say whether a rank is through with what it issued after the last report of a node, and what needs that node.

    `perhaps`: also if nobody knows whether a member of the group is on that node.
    """
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
                in_group[op.group] = _is_in(view, op.group, node, perhaps=perhaps)
            met = in_group[op.group]
        else:
            met = False
        if met:
            return True
    return False


def _is_in(view: RankView, name: str, node: QuietNode, *, perhaps: bool) -> bool:
    """Say whether a group of a rank has members on a node; `perhaps`: or may have some."""
    group = group_of(view, name)
    if group is None:
        return perhaps
    return not set(node.ranks).isdisjoint(group.ranks) or (perhaps and bool(group.unnamed))
