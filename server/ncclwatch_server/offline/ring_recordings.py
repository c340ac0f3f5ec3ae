"""Makes a recording of operations out of a ring, so that rings and dumps of one job can be judged together."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ncclwatch.contract.model.rank import GroupView, Op, OpView, PeerView, RankView
from ncclwatch_server.judge.theory.histories.signatures import Signature
from ncclwatch_server.judge.theory.waits.memberships import with_members
from ncclwatch_server.offline.recording import (
    TAIL,
    GroupKey,
    GroupRecord,
    Issued,
    PairRecord,
    Recording,
)
from ncclwatch_server.offline.rings import Left, newest_pulse_ns
from ncclwatch_server.postmortem.frontier import DEFAULT_GROUP

PULSE_LAG_S = 3.0  # a pulse that stopped so long before the others of its host stopped for a reason


def recordings_of(found: Iterable[Left]) -> Mapping[int, Recording]:
    """Return a recording for each ring."""
    rings = list(found)
    newest = newest_pulse_ns(rings)
    world_size = max((left.view.world_size for left in rings), default=0)
    # What is still unknown then is told by another recorder, or guessed and called a guess: see `frontier`.
    views = with_members({left.view.rank: left.view for left in rings}, world_size, partly=False)
    whole = (replace(left, view=views[left.view.rank]) for left in {left.view.rank: left for left in rings}.values())
    return {left.view.rank: _recording(left, newest[left.view.host]) for left in whole}


def lags_of(found: Iterable[Left]) -> Mapping[int, float]:
    """Return by how many seconds the pulse of a rank stopped before the newest one of its host."""
    rings = list(found)
    newest = newest_pulse_ns(rings)
    lags = {left.view.rank: (newest[left.view.host] - left.pulse_ns) / 1e9 for left in rings}
    return {rank: lag for rank, lag in lags.items() if lag >= PULSE_LAG_S}


def _recording(left: Left, host_ns: int) -> Recording:
    view = left.view
    world = next((group.ranks for group in view.groups if group.desc == DEFAULT_GROUP), ())
    groups = (_group(view, group, left.pulse_ns) for group in view.groups if group.enqueued)
    stamps = [left.pulse_ns - int(op.age_s * 1e9) for op in view.history]
    return Recording(
        rank=view.rank,
        path=left.path,
        source="ring",
        version="",
        backend="",
        groups={group.key: group for group in groups},
        pairs=tuple(pair for peer in view.peers for pair in _pairs(view, peer, left.pulse_ns)),
        world=world or tuple(range(view.world_size)),
        whole=True,
        timeout_s=view.timeout_s,
        newest_ns=max(stamps, default=left.pulse_ns),
        written_ns=host_ns,
        host=view.host,
    )


def _group(view: RankView, group: GroupView, now_ns: int) -> GroupRecord:
    tail = [(n, op) for n, op in enumerate(view.history) if op.group == group.name and not op.op.is_p2p][-TAIL:]
    pending = next((n for n, op in enumerate(view.history) if op == group.pending), 0)
    return GroupRecord(
        key=GroupKey(group.name, group.ranks),
        desc=group.desc,
        enqueued=group.enqueued,
        completed=group.completed,
        pending=_issued(group.pending, pending, now_ns) if group.pending is not None else None,
        tail=tuple(_issued(op, number, now_ns) for number, op in tail),
        whole=True,
    )


def _pairs(view: RankView, peer: PeerView, now_ns: int) -> Iterable[PairRecord]:
    members = next((group.ranks for group in view.groups if group.name == peer.group), ())
    for sends, issued, completed in (
        (True, peer.sends, peer.sends_completed),
        (False, peer.recvs, peer.recvs_completed),
    ):
        if not issued or peer.peer < 0:
            continue
        op = Op.SEND if sends else Op.RECV
        oldest = next(
            (
                (number, each)
                for number, each in enumerate(view.history)
                if (each.group, each.peer, each.op, each.seq) == (peer.group, peer.peer, op, completed + 1)
            ),
            None,
        )
        yield PairRecord(
            key=GroupKey(peer.group, members),
            peer=peer.peer,
            sends=sends,
            issued=issued,
            completed=completed,
            pending=_issued(oldest[1], oldest[0], now_ns) if oldest is not None else None,
            whole=True,
        )


def _issued(op: OpView, number: int, now_ns: int) -> Issued:
    return Issued(
        seq=op.seq,
        signature=Signature(
            op=op.op,
            name=op.op.value,
            dtype={"bool": "uint8", "other": ""}.get(op.dtype, op.dtype),
            numel=-1 if op.op is Op.ALL_GATHER else op.numel,
            peer=-1 if op.op.is_p2p else op.peer,
            reduce_op=op.reduce_op,
        ),
        site=op.site,
        created_ns=now_ns - int(op.age_s * 1e9),
        started=False,
        done=op.completed,
        record=number,
    )


def by_clock_of(view: RankView, lag_s: float) -> RankView:
    """Return a view as of the moment when the last ring of its host was left."""
    threads = tuple(
        replace(thread, wait=replace(thread.wait, age_s=thread.wait.age_s + lag_s) if thread.wait else None)
        for thread in view.threads
    )
    return replace(view, threads=threads)
