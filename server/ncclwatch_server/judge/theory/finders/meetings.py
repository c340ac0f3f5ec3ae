"""Finds ranks that do not come together: at different addresses, left behind in a rendezvous, or never seen."""

from collections import Counter
from collections.abc import Sequence

from ncclwatch.contract.model import preflight
from ncclwatch.contract.model.rank import OpView, RankView, WaitKind
from ncclwatch.contract.model.verdict import Certainty
from ncclwatch_server.judge.theory.case import Case, onset_s
from ncclwatch_server.judge.theory.histories.signatures import SYNCHRONISING
from ncclwatch_server.judge.theory.majority import majority
from ncclwatch_server.judge.theory.roots import LeftBehindRoot, Place, ScatteredRoot, UnseenRoot
from ncclwatch_server.judge.theory.waits.rank_standing import Block, Operation, generation, group_of
from ncclwatch_server.judge.theory.waits.wait_graph import victims_of

MISSING_S = 7.0  # for a rank of this very node that nobody has seen
MISSING_ELSEWHERE_S = 60.0  # nodes of a large job come up minutes apart
TOGETHER_S = 5.0  # all in init_process_group, and not together
LEFT_BEHIND_S = 3.0  # in the making of a second group: connecting to ranks that do come takes less
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MAKES_SECOND_GROUP = "_create_process_group_wrapper "


def find_scattered(case: Case) -> ScatteredRoot | None:
    """Return ranks that are all in init_process_group and do not find each other: their addresses differ."""
    blocks = tuple(block for block in unexplained_blocks(case) if block.operation.kind is WaitKind.INIT)
    if not blocks or onset_s(blocks) < TOGETHER_S or not _are_all_inside(case, blocks):
        return None
    ends = {rank: _address_of(case, view) for rank, view in case.views.items() if view.endpoint}
    votes = Counter(ends.values())
    if len(votes) < 2:
        return None
    addresses = {end: tuple(rank for rank, each in ends.items() if each == end) for end in votes}
    usual = majority(addresses.values())
    guilty = tuple(rank for rank in ends if rank not in (usual or ()))
    return ScatteredRoot(
        hangs=Certainty.STALLED,
        ranks=guilty,
        decided=usual is not None,
        victims=tuple(rank for rank in case.blocked if rank not in guilty),
        blocks=blocks,
        place=Place(WaitKind.INIT.value),
        onset_s=onset_s(blocks),
        addresses=addresses,
    )


def _are_all_inside(case: Case, blocks: Sequence[Block]) -> bool:
    """Say whether all ranks of the job were seen, and all that were asked wait in init_process_group or have ended."""
    inside = {block.rank for block in blocks}
    away = (rank for rank, view in case.views.items() if rank not in inside and view.ending is None)
    seen = case.snapshot.unasked.union(case.views)
    return len(seen) == case.snapshot.world_size and next(away, None) is None


def _address_of(case: Case, view: RankView) -> str:
    """Return where a rank looks for the others. Beside rank 0, which has the store, "localhost" is that one's host."""
    (host, _, port), first = view.endpoint.rpartition(":"), case.views.get(0)
    if host not in _LOOPBACK or first is None or first.host != view.host:
        return view.endpoint
    named = (each.endpoint.rpartition(":") for each in case.views.values())
    return next((f"{name}:{port}" for name, _, its in named if its == port and name not in _LOOPBACK), view.endpoint)


def find_left_behind(case: Case) -> LeftBehindRoot | None:
    """Return ranks that stand still in init_process_group, for a second group that others have gone on without.

    With TORCH_DISTRIBUTED_DEBUG=DETAIL torch makes a group of gloo beside each process group, which ends when all ranks
    of that group have come to it (`_create_process_group_wrapper` in torch's distributed_c10d). A rank that has not set
    it makes none. Once such a rank has left init_process_group, those that did set it wait there for as long as gloo
    lets them: no later call of it belongs to that group. Two things have to agree: what the ranks said of themselves,
    and the frame in which the waiting ones stand still. Ranks that have yet to come to init_process_group may be slow,
    and prove nothing here.
    """
    checking = {
        rank
        for ranks in case.snapshot.setup.alike
        if ranks.facts.get(preflight.DEBUG) == "DETAIL"
        for rank in ranks.ranks
    }
    told = {rank for ranks in case.snapshot.setup.alike for rank in ranks.ranks}
    blocks = tuple(each for each in unexplained_blocks(case) if each.rank in checking and _makes_second_group(each))
    if not blocks:
        return None
    gone_on = tuple(rank for rank in sorted(told - checking) if _has_left(case, rank, blocks[0].operation))
    inside = tuple(sorted({block.rank for block in blocks}))
    if not gone_on:
        return None
    return LeftBehindRoot(
        hangs=Certainty.PROVEN,
        ranks=inside,
        victims=tuple(sorted({*inside, *victims_of(case.graph, inside)})),
        blocks=blocks,
        place=Place(WaitKind.INIT.value),
        onset_s=onset_s(blocks),
        gone_on=gone_on,
    )


def _makes_second_group(block: Block) -> bool:
    """Say whether a rank stands still where the second group is made."""
    thread = block.thread
    inside = block.operation.kind is WaitKind.INIT and thread.leaf.startswith(_MAKES_SECOND_GROUP)
    return inside and min(thread.same_s, block.wait.age_s) >= LEFT_BEHIND_S


def _has_left(case: Case, rank: int, operation: Operation) -> bool:
    """Say whether a rank has been through the very init_process_group that others are in."""
    view = case.views.get(rank)
    if view is None or not view.initialised or generation(view) != operation.seq:
        return False
    return not any(thread.wait is not None and thread.wait.kind is WaitKind.INIT for thread in view.threads)


def find_unseen(case: Case) -> UnseenRoot | None:
    """Return the ranks that others wait for and that nobody has ever seen."""
    waits: dict[Operation, list[Block]] = {}
    for block in unexplained_blocks(case):
        if _lost_in(case, block.operation):
            waits.setdefault(block.operation, []).append(block)
    # Who waits for somebody else, and for how long, says nothing about these.
    blocks = tuple(block for each in waits.values() if _is_missed(case, each) for block in each)
    if not blocks:
        return None
    lost = tuple(sorted({rank for block in blocks for rank in _lost_in(case, block.operation)}))
    met = _met(case, blocks, lost)
    if met is not None and onset_s(blocks) < MISSING_ELSEWHERE_S:
        return None  # who trains and is not watched may be late like any other rank
    return UnseenRoot(
        hangs=Certainty.STALLED,
        ranks=lost,
        victims=tuple(sorted({*victims_of(case.graph, lost), *(block.rank for block in blocks)})),
        blocks=blocks,
        place=Place(blocks[0].operation.group, blocks[0].operation.seq),
        onset_s=min(onset_s(blocks), case.snapshot.absent_s),
        one_node=_is_of_one_node(case, blocks[0]),
        met=met,
    )


def _met(case: Case, blocks: Sequence[Block], lost: Sequence[int]) -> OpView | None:
    """Return the last collective that a rank which waits has completed with all of these; None: they never came."""
    for rank in sorted({block.rank for block in blocks}):
        view = case.views[rank]
        groups = {op.group: group_of(view, op.group) for op in view.history}
        whole = {name for name, group in groups.items() if group is not None and set(lost) <= set(group.ranks)}
        done = (op for op in reversed(view.history) if op.completed and op.op in SYNCHRONISING and op.group in whole)
        if (last := next(done, None)) is not None:
            return last
    return None


def _lost_in(case: Case, operation: Operation) -> tuple[int, ...]:
    """Return the members of an operation that nobody has ever seen; one whose node has fallen silent was there."""
    silent = case.snapshot.silent
    return tuple(
        rank
        for rank in case.graph.unseen[operation]
        if rank not in case.views and rank not in case.told and rank not in silent
    )


def _is_missed(case: Case, blocks: Sequence[Block]) -> bool:
    """Say whether a rank that nobody has seen has been waited for longer than it may take to come up."""
    # A server that has just come up again has had no time to hear of the others.
    waited_s = min(onset_s(blocks), case.snapshot.absent_s)
    return waited_s >= (MISSING_S if _is_of_one_node(case, blocks[0]) else MISSING_ELSEWHERE_S)


def _is_of_one_node(case: Case, block: Block) -> bool:
    view = case.views[block.rank]
    return view.local_world_size == view.world_size


def unexplained_blocks(case: Case) -> tuple[Block, ...]:
    """Return the waits of ranks that wait for no root that was told already."""
    return tuple(block for rank in case.unexplained for block in case.graph.blocks[rank])
