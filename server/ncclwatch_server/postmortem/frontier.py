"""Which operations did some ranks enter that are not over, and who has not come to them?

Groups are one and the same where name and members agree. A rank without a file is unknown, never absent; so
is one whose file was written before the others went on, and one whose buffer lost what would tell.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ncclwatch.contract.model.rank import Op
from ncclwatch_server.judge.theory.histories.signatures import SYNCHRONISING
from ncclwatch_server.offline.recording import GroupKey, GroupRecord, Issued, PairRecord, Recording

DEFAULT_GROUP = "default_pg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """One process group and what its members recorded of it."""

    key: GroupKey
    desc: str
    members: tuple[int, ...]
    told: bool  # the recorder tells the members; else they are those that ever used the group
    records: Mapping[int, GroupRecord]
    comparable: bool = True  # False: the running numbers of its members do not belong together


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """An operation that ranks have entered and that is not over for them."""

    roster: Roster
    seq: int
    waiting: Mapping[int, Issued]  # who is in it and not through
    done: tuple[int, ...] = ()  # who is through
    absent: tuple[int, ...] = ()  # who has not entered
    unknown: tuple[int, ...] = ()  # of whom nobody can tell
    source: int = -1  # of a send and its receive
    target: int = -1

    @property
    def issued(self) -> Issued:
        """Return it as the first of those in it recorded it."""
        return self.waiting[min(self.waiting)]

    @property
    def op(self) -> Op:
        """Return what kind of operation it is."""
        return self.issued.signature.op


def with_members(recordings: Mapping[int, Recording]) -> dict[int, Recording]:
    """Return the recordings with the members of every group, where their own recorder does not tell them.

    gloo's does not. Then the members are those another rank tells, else all ranks that ever used the group.
    """
    world = max((recording.world for recording in recordings.values()), key=len, default=())
    everyone = set(world or range(max(recordings, default=-1) + 1))
    untold: dict[str, set[int]] = {}
    told: dict[str, set[GroupKey]] = {}
    for rank, recording in recordings.items():
        for key, record in recording.groups.items():
            if key.members:
                told.setdefault(key.name, set()).add(key)
            elif record.desc == DEFAULT_GROUP:
                untold[key.name] = everyone
            else:
                untold.setdefault(key.name, set()).add(rank)
    if not untold:
        return dict(recordings)
    return {rank: _told(recording, untold, told, bool(world)) for rank, recording in recordings.items()}


def _told(
    recording: Recording, untold: Mapping[str, set[int]], told: Mapping[str, set[GroupKey]], world_told: bool
) -> Recording:
    groups = {}
    for key, record in recording.groups.items():
        if not key.members:
            others = [other for other in told.get(key.name, ()) if recording.rank in other.members]
            key = others[0] if len(others) == 1 else GroupKey(key.name, tuple(sorted(untold[key.name])))
            record = replace(record, key=key, told=len(others) == 1 or (world_told and record.desc == DEFAULT_GROUP))
        groups[key] = record
    return replace(recording, groups=groups)


def rosters(recordings: Mapping[int, Recording]) -> tuple[Roster, ...]:
    """Return all groups, each with the records of its members."""
    found: dict[GroupKey, dict[int, GroupRecord]] = {}
    for rank, recording in recordings.items():
        for key, record in recording.groups.items():
            found.setdefault(key, {})[rank] = record
    return tuple(
        Roster(
            key=key,
            desc=next(iter(records.values())).desc,
            members=key.members,
            told=all(record.told for record in records.values()),
            records=records,
            comparable=all(r.aligned for r in records.values()) and len({r.instances for r in records.values()}) == 1,
        )
        for key, records in found.items()
    )


def stuck_operations(recordings: Mapping[int, Recording]) -> tuple[Stuck, ...]:
    """Return all operations that are not over, collectives and pairs of send and receive."""
    all_rosters = rosters(recordings)
    collectives = (stuck for roster in all_rosters if roster.comparable for stuck in _stuck_in(roster, recordings))
    return (*collectives, *_stuck_pairs(all_rosters, recordings))


def _stuck_in(roster: Roster, recordings: Mapping[int, Recording]) -> Iterator[Stuck]:
    pending = {rank: record.pending for rank, record in roster.records.items() if record.pending is not None}
    for seq in sorted({issued.seq for issued in pending.values()}):
        waiting = {rank: issued for rank, issued in pending.items() if issued.seq == seq}
        newest = through(roster)
        done: list[int] = []
        absent: list[int] = []
        unknown: list[int] = []
        for member in roster.members:
            record = roster.records.get(member)
            if record is None:
                (absent if _never_came(recordings.get(member), seq) else unknown).append(member)
            elif record.completed >= seq:
                done.append(member)
            elif record.enqueued < seq:
                (unknown if record.enqueued < newest else absent).append(member)
        yield Stuck(
            roster=roster, seq=seq, waiting=waiting, done=tuple(done), absent=tuple(absent), unknown=tuple(unknown)
        )  # fmt: skip


def through(roster: Roster) -> int:
    """Return the newest collective that every member must have entered, because one is through with it.

    A file that does not know of it was written before the others went on: nothing newer can be told from it.
    """
    newest = 0
    for record in roster.records.values():
        ops = {issued.seq: issued.signature.op for issued in record.tail}
        if record.completed > newest and ops.get(record.completed, Op.ALL_REDUCE) in SYNCHRONISING:
            newest = record.completed
    return newest


def _never_came(recording: Recording | None, seq: int) -> bool:
    """Say whether a member that recorded nothing of a group cannot have entered its operation `seq`."""
    if recording is None:
        return False
    if recording.whole:
        return True
    return recording.unnamed is not None and all(enqueued < seq for enqueued, _ in recording.unnamed)


def _stuck_pairs(all_rosters: Iterable[Roster], recordings: Mapping[int, Recording]) -> Iterator[Stuck]:
    known = {roster.key: roster for roster in all_rosters}
    by_rank = {
        rank: {(pair.key, pair.peer, pair.sends): pair for pair in recording.pairs}
        for rank, recording in recordings.items()
        if recording.pairs
    }
    for rank, pairs in by_rank.items():
        for pair in pairs.values():
            if pair.pending is None:
                continue
            roster = known.get(pair.key) or Roster(
                key=pair.key, desc="", members=pair.key.members, told=True, records={}
            )  # fmt: skip
            other = by_rank.get(pair.peer, {}).get((pair.key, rank, not pair.sends))
            yield Stuck(
                roster=roster,
                seq=pair.completed + 1,
                waiting={rank: pair.pending},
                absent=(pair.peer,) if pair.peer in recordings and not has_matched(pair, other) else (),
                unknown=() if pair.peer in recordings else (pair.peer,),
                source=rank if pair.sends else pair.peer,
                target=pair.peer if pair.sends else rank,
            )


def has_matched(pair: PairRecord, other: PairRecord | None) -> bool:
    """Say whether the peer has posted the other half of a rank's oldest unfinished send or receive."""
    if other is None:
        return False
    if pair.whole and other.whole:
        return other.issued > pair.completed
    return other.pending is not None  # what was overwritten was through, so the unfinished ones face each other
