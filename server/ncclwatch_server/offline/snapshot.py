"""Makes of what files say the views that live agents send, and of all of them one snapshot of the job.

A file is an agent that reported late. A dump knows nothing of processes and threads: the state of the process is
unknown, and a rank has its groups with what is unfinished in them. What a file leaves open is said so in the view: the
moment of the file, whether a group was entered, parts of a signature. Ages are taken on the clock of the rank itself;
where the moment of a file is unknown they count to its newest stamp.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ncclwatch.contract.model.devices import SharedDevice
from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import (
    UNTOLD,
    UNTOLD_RANK,
    Ending,
    FileView,
    GroupView,
    Op,
    OpView,
    PeerView,
    ProcessState,
    ProcessView,
    RankView,
    StackDump,
    ThreadView,
    WaitKind,
    WaitView,
)
from ncclwatch.contract.words.text import rank_list
from ncclwatch_server.offline.members import with_members
from ncclwatch_server.offline.recording import GroupKey, GroupRecord, Issued, PairRecord, Recording
from ncclwatch_server.offline.stacks import thread_of

AGE_UNKNOWN_S = 1.0  # of the newest thing in a file whose moment nobody knows: enough to count as a wait
_REDUCTIONS = (Op.ALL_REDUCE, Op.REDUCE, Op.REDUCE_SCATTER)
_ROOTED = (Op.BROADCAST, Op.REDUCE, Op.GATHER, Op.SCATTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """What is known of ranks besides the operations they recorded."""

    stacks: Mapping[int, StackDump] = field(default_factory=dict)
    endings: Mapping[int, Ending] = field(default_factory=dict)
    rings: Mapping[int, RankView] = field(default_factory=dict)  # of ranks that left one
    shared_devices: tuple[SharedDevice, ...] = ()  # as NCCL said


def snapshot_of(recordings: Mapping[int, Recording], witness: Witness) -> JobSnapshot:
    """Return the job as all files together show it. Of a rank with a recording and a ring, the recording counts."""
    rings = {rank: view for rank, view in witness.rings.items() if rank not in recordings}
    told = {GroupKey(group.name, group.ranks) for view in rings.values() for group in view.groups}
    world = _world(recordings, rings, witness.endings)
    complete = with_members(recordings, world, told)
    names = group_names({*told, *(key for recording in complete.values() for key in _keys_of(recording))})
    context = _Context(
        recordings=complete,
        names=names,
        world=world,
        p2p=frozenset(pair.key for recording in complete.values() for pair in recording.pairs),
        last_ns=max((each.written_ns for each in complete.values()), default=0),
        apart=_counted_apart(complete),
        used=_used(complete),
    )
    views = {rank: _view(recording, context) for rank, recording in complete.items()}
    views |= {rank: _named_apart(view, names) if recordings else view for rank, view in rings.items()}
    views = {rank: _with_thread(view, witness.stacks.get(rank)) for rank, view in views.items()}
    views = _with_endings(views, witness.endings, world)
    return JobSnapshot(
        job="",
        world_size=len(world),
        ranks=dict(sorted(views.items())),
        stacks=witness.stacks,
        silent={},
        shared_devices=witness.shared_devices,
    )


def _world(
    recordings: Mapping[int, Recording], rings: Mapping[int, RankView], endings: Mapping[int, Ending]
) -> tuple[int, ...]:
    told = max((each.world for each in recordings.values()), key=len, default=())
    size = max((view.world_size for view in rings.values()), default=0)
    if len(told) < size:
        return tuple(range(size))
    return told or tuple(range(max((*recordings, *rings, *endings), default=-1) + 1))


def group_names(keys: Iterable[GroupKey]) -> dict[GroupKey, str]:
    """Return a name for each group that no other one has: on other ranks the same name may mean another group."""
    by_name: dict[str, set[GroupKey]] = {}
    for key in keys:
        by_name.setdefault(key.name, set()).add(key)
    return {
        key: name if sum(bool(each.members) for each in found) < 2 else f"{name} ({_members_words(key)})"
        for name, found in by_name.items()
        for key in found
    }


def _members_words(key: GroupKey) -> str:
    return rank_list(key.members) or "members unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """What the view of one rank needs to know of all."""

    recordings: Mapping[int, Recording]
    names: Mapping[GroupKey, str]
    world: tuple[int, ...]
    p2p: frozenset[GroupKey]  # whose counters count sends and receives too
    last_ns: int  # when the last of the files was written
    apart: frozenset[GroupKey]  # whose members count differently: their numbers cannot be compared
    used: Mapping[int, tuple[GroupKey, ...]]  # groups of a rank that any member has recorded


def _keys_of(recording: Recording) -> set[GroupKey]:
    return {*recording.groups, *(pair.key for pair in recording.pairs)}


def _counted_apart(recordings: Mapping[int, Recording]) -> frozenset[GroupKey]:
    instances: dict[GroupKey, set[int]] = {}
    found: set[GroupKey] = set()
    for recording in recordings.values():
        for key, record in recording.groups.items():
            instances.setdefault(key, set()).add(record.instances)
            if not record.aligned:
                found.add(key)
    return frozenset(found.union(key for key, made in instances.items() if len(made) > 1))


def _used(recordings: Mapping[int, Recording]) -> dict[int, tuple[GroupKey, ...]]:
    found: dict[int, list[GroupKey]] = {}
    for key in {key for recording in recordings.values() for key in recording.groups}:
        for rank in key.members:
            found.setdefault(rank, []).append(key)
    return {rank: tuple(sorted(keys)) for rank, keys in found.items()}


def _view(recording: Recording, context: _Context) -> RankView:
    history = _history(recording, context)
    waits = [_pair_wait(recording, pair, context) for pair in recording.pairs if pair.pending is not None]
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
        threads=(
            ThreadView(tid=0, main=True, issued=len(history)),
            # A send or a receive that is not through is told as a wait of its own.
            *(ThreadView(tid=n, main=False, issued=1, wait=wait) for n, wait in enumerate(waits, 1)),
        ),
        groups=_groups(recording, context),
        peers=_peers(recording, context),
        history=history,
        sites=tuple(dict.fromkeys(op.site for op in history if op.site is not None)),
        timeout_s=recording.timeout_s,
        file=FileView(
            source=recording.source,
            path=recording.path,
            timed=is_age_known(recording),
            older_s=(context.last_ns - recording.written_ns) / 1e9 if recording.written_ns else 0.0,
            whole=recording.whole,
            moving=recording.moving,
        ),
    )


def age_s(recording: Recording, issued: Issued) -> float:
    """Return how old an operation was when the file was written or, where that is unknown, at its newest stamp."""
    since_ns = recording.written_ns if is_age_known(recording) else recording.newest_ns
    known_s = max(0.0, (since_ns - issued.created_ns) / 1e9) if issued.created_ns else 0.0
    return known_s if is_age_known(recording) else known_s + AGE_UNKNOWN_S


def is_age_known(recording: Recording) -> bool:
    """Say whether the time of the file can be the time of the dump: a copy has a time of its own."""
    if not recording.written_ns or not recording.newest_ns:
        return False
    since_s = (recording.written_ns - recording.newest_ns) / 1e9
    return 0 <= since_s <= apart_for_s(recording.timeout_s)


def apart_for_s(timeout_s: float) -> float:
    """Return after how long in which nothing was recorded a time is not of the same hang any more."""
    return 2 * timeout_s + 3600


def _history(recording: Recording, context: _Context) -> tuple[OpView, ...]:
    issued = [(each, _name_of(r, recording.rank, context)) for r in recording.groups.values() for each in r.tail]
    issued.sort(key=lambda each: each[0].record)
    return tuple(_op(recording, each, name) for each, name in issued)


def _name_of(record: GroupRecord, rank: int, context: _Context) -> str:
    """Return the name of a group; one whose numbers cannot be compared with those of other ranks is a rank's own."""
    name = context.names[record.key]
    return f"{name}, as counted by rank {rank}" if record.key in context.apart else name


def _groups(recording: Recording, context: _Context) -> tuple[GroupView, ...]:
    found = {record.key: _group(recording, record, context) for record in recording.groups.values()}
    for pair in recording.pairs:
        name = context.names[pair.key]
        empty = GroupView(name=name, desc="", ranks=pair.key.members, enqueued=0, completed=0, prefix_hash=0, late=True)
        found.setdefault(pair.key, empty)
    for key in () if recording.whole else context.used.get(recording.rank, ()):
        if key not in found and key not in context.apart:
            found[key] = _not_listed(recording, key, context)
    return tuple(found.values())


def _group(recording: Recording, record: GroupRecord, context: _Context) -> GroupView:
    name = _name_of(record, recording.rank, context)
    comparable = record.key not in context.apart
    # A list that nobody knows is not that of this rank alone.
    size = len(record.key.members) or (0 if comparable else max(len(context.world), 2))
    return GroupView(
        name=name,
        desc=record.desc,
        ranks=record.key.members if comparable else (recording.rank,),
        size=size,
        enqueued=record.enqueued,
        completed=record.completed,
        prefix_hash=0,
        late=True,
        pending=_op(recording, record.pending, name) if record.pending is not None else None,
        asynchronous=recording.backend == "nccl",
        timeout_s=recording.timeout_s,
    )


def _not_listed(recording: Recording, key: GroupKey, context: _Context) -> GroupView:
    """Return a group of which a rank lists nothing: by its own counters, or as nobody knows what."""
    peers = [context.recordings[rank].groups.get(key) for rank in key.members if rank in context.recordings]
    counts = recording.counted.get(key.name)
    newest = max((peer.enqueued for peer in peers if peer is not None), default=0)
    trusted = counts is not None and key not in context.p2p and counts[1] <= newest
    enqueued, completed = counts if trusted and counts is not None else (0, 0)
    return GroupView(
        name=context.names[key],
        desc=next((peer.desc for peer in peers if peer is not None), ""),
        ranks=key.members,
        enqueued=enqueued,
        completed=enqueued if recording.only_active else completed,
        prefix_hash=0,
        late=True,
        asynchronous=recording.backend == "nccl",
        timeout_s=recording.timeout_s,
        untold=not trusted,
    )


def _op(recording: Recording, issued: Issued, group: str) -> OpView:
    signature = issued.signature
    untold_root = signature.op in _ROOTED and signature.peer < 0
    return OpView(
        group=group,
        seq=issued.seq,
        op=signature.op,
        dtype=signature.dtype or ("" if signature.op is Op.BARRIER else UNTOLD),
        numel=signature.numel,
        peer=recording.rank if signature.root else UNTOLD_RANK if untold_root else signature.peer,
        reduce_op=signature.reduce_op or (UNTOLD if signature.op in _REDUCTIONS else ""),
        site=issued.site,
        completed=issued.done,
        age_s=age_s(recording, issued),
    )


def _pair_wait(recording: Recording, pair: PairRecord, context: _Context) -> WaitView:
    found = _pair(context.recordings.get(pair.peer), pair.key, recording.rank, not pair.sends)
    counted = pair.whole and (found is None or found.whole)
    issued = pair.pending
    return WaitView(
        kind=WaitKind.SEND if pair.sends else WaitKind.RECV,
        age_s=age_s(recording, issued) if issued is not None else AGE_UNKNOWN_S,
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


def _named_apart(view: RankView, names: Mapping[GroupKey, str]) -> RankView:
    """Return the view of a ring with the names that its groups have among those of all ranks."""
    changed = {
        group.name: name
        for group in view.groups
        if (name := names.get(GroupKey(group.name, group.ranks), group.name)) != group.name
    }
    if not changed:
        return view
    return replace(
        view,
        groups=tuple(
            replace(
                group,
                name=changed.get(group.name, group.name),
                pending=replace(group.pending, group=changed.get(group.name, group.name)) if group.pending else None,
            )
            for group in view.groups
        ),
        peers=tuple(replace(peer, group=changed.get(peer.group, peer.group)) for peer in view.peers),
        history=tuple(replace(op, group=changed.get(op.group, op.group)) for op in view.history),
        threads=tuple(
            replace(thread, wait=replace(thread.wait, group=changed.get(thread.wait.group, thread.wait.group)))
            if thread.wait is not None
            else thread
            for thread in view.threads
        ),
    )


def _with_thread(view: RankView, dump: StackDump | None) -> RankView:
    """Return a view with what a stack tells of the main thread, where the file itself saw no thread."""
    main = thread_of(dump) if dump is not None and view.file is not None and not view.file.saw_host else None
    if main is None:
        return view
    threads = tuple(replace(main, issued=each.issued) if each.main else each for each in view.threads)
    return replace(view, threads=threads)


def _with_endings(
    views: Mapping[int, RankView], endings: Mapping[int, Ending], world: tuple[int, ...]
) -> dict[int, RankView]:
    """Return the views with how ranks ended, and bare ones of ranks of which only that is known.

    A rank that still waited for others when it was recorded did not end by itself, unless a signal ended it.
    """
    found = dict(views)
    for rank, ending in endings.items():
        view = found.get(rank) or _bare(rank, world)
        waited = any(group.pending is not None for group in view.groups) or any(t.wait for t in view.threads)
        if ending.signal is not None or not waited:
            found[rank] = replace(view, ending=ending)
    return found


def _bare(rank: int, world: tuple[int, ...]) -> RankView:
    return RankView(
        rank=rank,
        local_rank=0,
        host="",
        pid=0,
        device="",
        world_size=len(world),
        local_world_size=len(world),
        attempt=0,
        process=ProcessView(state=ProcessState.UNKNOWN),
        pulse_age_s=0.0,
        initialised=True,
        file=FileView(source="log", path="", timed=False, whole=False),
    )
