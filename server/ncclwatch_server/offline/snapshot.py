"""How does a recording look to the judge? As a rank that waits in its oldest unfinished operations.

A dump knows nothing of processes and threads: each stream of operations becomes a thread of its own, and
the state of the process stays unknown.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import (
    GroupView,
    Op,
    OpView,
    PeerView,
    ProcessState,
    ProcessView,
    RankView,
    ThreadView,
    WaitKind,
    WaitView,
)
from ncclwatch.contract.words.text import rank_list
from ncclwatch_server.offline.recording import GroupKey, Issued, PairRecord, Recording

AGE_UNKNOWN_S = 1.0  # enough to count as a wait; how long it was is told in words


def group_names(keys: Iterable[GroupKey]) -> dict[GroupKey, str]:
    """Return a name for each group that no other one has: on other ranks the same name may mean another group."""
    by_name: dict[str, set[GroupKey]] = {}
    for key in keys:
        by_name.setdefault(key.name, set()).add(key)
    return {
        key: name if len(found) == 1 else f"{name} ({rank_list(key.members) or 'members unknown'})"
        for name, found in by_name.items()
        for key in found
    }


def age_s(recording: Recording, issued: Issued) -> float:
    """Return how old an operation was when the file was written, 0 if nobody can tell."""
    if is_age_known(recording) and issued.created_ns:
        return max(0.0, (recording.written_ns - issued.created_ns) / 1e9)
    return 0.0


def is_age_known(recording: Recording) -> bool:
    """Say whether the time of the file can be the time of the dump: a copy has a time of its own."""
    if not recording.written_ns or not recording.newest_ns:
        return False
    since_s = (recording.written_ns - recording.newest_ns) / 1e9
    return 0 <= since_s <= 2 * recording.timeout_s + 3600


def snapshot_of(
    recordings: Mapping[int, Recording], ranks: Iterable[int], names: Mapping[GroupKey, str], world: tuple[int, ...]
) -> JobSnapshot:
    """Return a snapshot of these ranks."""
    chosen = sorted(set(ranks) & recordings.keys())
    context = _Context(recordings=recordings, names=names, world=world)
    views = {rank: _view(recordings[rank], context) for rank in chosen}
    return JobSnapshot(job="", world_size=len(world), ranks=views, stacks={}, silent={})


def keys_of(recording: Recording) -> set[GroupKey]:
    """Return all groups a rank recorded something of."""
    return {*recording.groups, *(pair.key for pair in recording.pairs)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """What the view of one rank needs to know of all."""

    recordings: Mapping[int, Recording]
    names: Mapping[GroupKey, str]
    world: tuple[int, ...]


def _view(recording: Recording, context: _Context) -> RankView:
    groups = _groups(recording, context)
    waits = [_wait(recording, group.pending) for group in groups if group.pending is not None]
    waits += [_pair_wait(recording, pair, context) for pair in recording.pairs if pair.pending is not None]
    waits.sort(key=lambda wait: -wait.age_s)
    history = _history(recording, context)
    return RankView(
        rank=recording.rank,
        local_rank=0,
        host=recording.host,
        pid=0,
        device="",
        world_size=len(context.world),
        local_world_size=len(context.world),
        attempt=0,
        process=ProcessView(state=ProcessState.UNKNOWN),
        pulse_age_s=0.0,
        initialised=True,
        threads=tuple(
            ThreadView(tid=number, main=number == 0, issued=len(history), wait=wait)
            for number, wait in enumerate(waits or [None])
        ),
        groups=groups,
        peers=_peers(recording, context),
        history=history,
        sites=tuple(dict.fromkeys(op.site for op in history if op.site is not None)),
        timeout_s=recording.timeout_s,
    )


def _history(recording: Recording, context: _Context) -> tuple[OpView, ...]:
    issued = [(each, context.names[r.key]) for r in recording.groups.values() for each in r.tail]
    issued.sort(key=lambda each: each[0].record)
    return tuple(_op(recording, each, name) for each, name in issued)


def _groups(recording: Recording, context: _Context) -> tuple[GroupView, ...]:
    found = {
        record.key: GroupView(
            name=context.names[record.key],
            desc=record.desc,
            ranks=record.key.members,
            enqueued=record.enqueued,
            completed=record.completed,
            prefix_hash=0,
            pending=_op(recording, record.pending, context.names[record.key]) if record.pending is not None else None,
        )
        for record in recording.groups.values()
    }
    for pair in recording.pairs:
        name = context.names[pair.key]
        empty = GroupView(name=name, desc="", ranks=pair.key.members, enqueued=0, completed=0, prefix_hash=0)
        found.setdefault(pair.key, empty)
    return tuple(found.values())


def _op(recording: Recording, issued: Issued, group: str) -> OpView:
    signature = issued.signature
    return OpView(
        group=group,
        seq=issued.seq,
        op=signature.op,
        dtype=signature.dtype,
        numel=max(signature.numel, 0),
        peer=recording.rank if signature.root else signature.peer,
        reduce_op=signature.reduce_op,
        site=issued.site,
        completed=issued.done,
        age_s=age_s(recording, issued),
    )


def _wait(recording: Recording, pending: OpView) -> WaitView:
    return WaitView(
        kind=WaitKind.COLLECTIVE,
        age_s=max(pending.age_s, AGE_UNKNOWN_S),
        group=pending.group,
        seq=pending.seq,
        op=pending.op,
        site=pending.site,
    )


def _pair_wait(recording: Recording, pair: PairRecord, context: _Context) -> WaitView:
    found = _pair(context.recordings.get(pair.peer), pair.key, recording.rank, not pair.sends)
    counted = pair.whole and (found is None or found.whole)
    issued = pair.pending
    return WaitView(
        kind=WaitKind.SEND if pair.sends else WaitKind.RECV,
        age_s=max(age_s(recording, issued) if issued is not None else 0.0, AGE_UNKNOWN_S),
        group=context.names[pair.key],
        seq=pair.completed + 1 if counted else 1,
        op=Op.SEND if pair.sends else Op.RECV,
        peer=pair.peer,
        site=issued.site if issued is not None else None,
    )


def _peers(recording: Recording, context: _Context) -> tuple[PeerView, ...]:
    found: dict[tuple[GroupKey, int], PeerView] = {}
    for pair in recording.pairs:
        known = found.get((pair.key, pair.peer), PeerView(group=context.names[pair.key], peer=pair.peer))
        other = _pair(context.recordings.get(pair.peer), pair.key, recording.rank, not pair.sends)
        # Where a buffer has lost its beginning, only what is unfinished on both sides can be laid side by side.
        lost = 0 if pair.whole and (other is None or other.whole) else pair.completed
        issued, completed = pair.issued - lost, pair.completed - lost
        found[(pair.key, pair.peer)] = (
            replace(known, sends=issued, sends_completed=completed)
            if pair.sends
            else replace(known, recvs=issued, recvs_completed=completed)
        )
    return tuple(found.values())


def _pair(recording: Recording | None, key: GroupKey, peer: int, sends: bool) -> PairRecord | None:
    if recording is None:
        return None
    return next((p for p in recording.pairs if (p.key, p.peer, p.sends) == (key, peer, sends)), None)
