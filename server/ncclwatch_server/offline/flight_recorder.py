"""Reads one Flight Recorder dump: any version of the recorder, pickle or JSON, any backend.

Three things make its entries lie to a careless reader. Operations inside a coalescing block never
complete by themselves: their block does. A batch of sends and receives uses up a collective's number
on the ranks that take part. And a group's name is a counter of one process: another rank may have
another group under it, so the members belong to the name.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ncclwatch.contract.ring.shortening import short_name
from ncclwatch_server.offline import counters
from ncclwatch_server.offline.entries import (
    Entry,
    Names,
    collective_seq,
    is_done,
    issued,
    name_of,
    newest_stamp,
    number,
    p2p_seq,
)
from ncclwatch_server.offline.errors import Unreadable
from ncclwatch_server.offline.members import DEFAULT_GROUP
from ncclwatch_server.offline.pairs import is_batch_end, pair_records, split
from ncclwatch_server.offline.recording import TAIL, GroupKey, GroupRecord, PairRecord, Recording

ENTRIES_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dump:
    """The parts of a dump, of the types they should have."""

    entries: list[Entry]
    config: Mapping[str, tuple[str, tuple[int, ...]]]  # name: (description, members)
    status: Mapping[str, tuple[int, int]]  # pg_id: (last enqueued, last completed)
    whole: bool
    tail: int  # newest collectives kept of each group


def is_dump(value: object) -> bool:
    """Say whether a value looks like what a Flight Recorder writes."""
    return isinstance(value, dict) and "version" in value and ("entries" in value or "pg_config" in value)


def read(value: object, rank: int, path: str, written_ns: int, names: Names, tail: int = TAIL) -> Recording:
    """Return what is kept of a dump. Raises `Unreadable`."""
    if not isinstance(value, dict) or not is_dump(value):
        raise Unreadable("it is no Flight Recorder dump: it has no entries and no version")
    entries = value.get("entries", [])
    if not isinstance(entries, list) or len(entries) > ENTRIES_MAX:
        raise Unreadable("its entries are no list, or too long a one")
    try:
        status = _status(value.get("pg_status"))
        # Without any entry: nothing was ever recorded, or completed ones were left out, as the status tells then. The
        # writer of JSON leaves the key out where nothing is listed.
        idle = not any(enqueued > 0 for enqueued, _ in status.values()) and bool(status or "entries" in value)
        dump = _Dump(
            entries=entries,
            config=_config(value.get("pg_config")),
            status=status,
            whole=number(entries[0].get("record_id")) == 0 if entries else idle,
            tail=tail,
        )
        return _recording(dump, rank, path, written_ns, names, str(value.get("version", ""))[:20])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise Unreadable(f"an entry of it has not the form of a dump ({type(error).__name__}: {error})") from error


def _recording(dump: _Dump, rank: int, path: str, written_ns: int, names: Names, version: str) -> Recording:
    groups: dict[GroupKey, GroupRecord] = {}
    pairs: list[PairRecord] = []
    seen: dict[str, str] = {}
    ended: dict[str, int | None] = {}
    by_group = _by_group(dump.entries)
    only_active = not dump.whole and not any(map(is_done, dump.entries))
    for (name, desc), found in by_group.items():
        key = GroupKey(name, dump.config.get(name, ("", ()))[1])
        newest, instances = _newest_instance(found)
        seen |= {str(found[0]["pg_id"]): name, str(found[-1]["pg_id"]): name}
        # The number of sends and receives runs on with every entry of the group.
        alone = not p2p_seq(newest[-1])
        collectives, p2p = (newest, []) if alone else split(newest)
        pairs += pair_records(rank, key, p2p, dump.whole, names)
        ended[str(newest[-1]["pg_id"])] = _ended(collectives, dump.whole) if alone else None
        if collectives:
            groups[key] = _group(dump, key, desc, (collectives, p2p), (instances, names))
    last = dump.entries[-1] if dump.entries else {}
    return Recording(
        rank=rank,
        path=path,
        source="flight recorder",
        version=version,
        backend=name_of(last)[0] if last else "",
        groups=groups,
        pairs=tuple(pairs),
        counted=counters.paired(dump.config, dump.status, seen),
        members={name: ranks for name, (_, ranks) in dump.config.items() if ranks},
        world=next((ranks for desc, ranks in dump.config.values() if desc == DEFAULT_GROUP), ()),
        whole=dump.whole,
        only_active=only_active,
        moving=counters.lag_behind(dump.status, ended, unlisted_ended=only_active),
        timeout_s=number(last.get("timeout_ms")) / 1000,
        newest_ns=max((newest_stamp(found[-1]) for found in by_group.values()), default=0),
        written_ns=written_ns,
    )


def _newest_instance(found: list[Entry]) -> tuple[list[Entry], int]:
    """Return the entries of the group that was made last under one name, and how many were made."""
    newest = found[-1]["pg_id"]
    if found[0]["pg_id"] == newest:
        return found, 1
    return [entry for entry in found if entry["pg_id"] == newest], len({str(entry["pg_id"]) for entry in found})


def _by_group(entries: list[Entry]) -> dict[tuple[str, str], list[Entry]]:
    found: dict[object, list[Entry]] = {}
    for entry in entries:
        group = entry["process_group"]
        if type(group) is list:
            group = tuple(group)
        known = found.get(group)
        if known is None:
            found[group] = [entry]
        else:
            known.append(entry)
    return {_pair_of_names(group): each for group, each in found.items()}


def _pair_of_names(group: object) -> tuple[str, str]:
    if isinstance(group, tuple) and len(group) == 2 and all(isinstance(each, str) for each in group):
        return short_name(group[0]), short_name(group[1])
    raise ValueError("process_group is not a pair of name and description")


def _group(
    dump: _Dump, key: GroupKey, desc: str, entries: tuple[Sequence[Entry], Sequence[Entry]], more: tuple[int, Names]
) -> GroupRecord:
    """Walk back from a group's newest collective to the last one that is through."""
    (collectives, p2p), (instances, names) = entries, more
    whole = dump.whole and collective_seq(collectives[0]) <= 1 + sum(map(is_batch_end, p2p))
    batches = any(map(is_batch_end, p2p))
    numbers: dict[int, int] = {}
    if batches and whole:
        distinct = dict.fromkeys(collective_seq(entry) for entry in collectives)
        numbers = {seq: ordinal for ordinal, seq in enumerate(distinct, 1)}
    completed, after = _newest_done(collectives)
    newest = collective_seq(collectives[-1])
    told = dump.status.get(str(collectives[-1].get("pg_id"))) if not p2p else None
    if told is not None:
        completed = max(completed, min(told[1], newest))
    first = next((entry for entry in collectives[after:] if collective_seq(entry) > completed), None)
    if not completed and first is not None:
        completed = max(0, collective_seq(first) - 1)  # everything older was overwritten, or left out
    return GroupRecord(
        key=key,
        desc=desc,
        enqueued=numbers.get(newest, newest),
        completed=numbers.get(completed, completed) if completed else 0,
        pending=issued(first, numbers.get(s := collective_seq(first), s), False, names) if first is not None else None,
        tail=tuple(
            issued(entry, numbers.get(s := collective_seq(entry), s), s <= completed, names)
            for entry in _newest_of_each(collectives, dump.tail)
        ),
        whole=whole,
        aligned=whole or not batches,
        told=bool(key.members),
        instances=instances,
    )


def _newest_done(collectives: Sequence[Entry]) -> tuple[int, int]:
    """Return (number of the newest collective that is through by itself, index behind it); (0, 0): none is."""
    for index in range(len(collectives), 0, -1):
        if is_done(collectives[index - 1]):
            return collective_seq(collectives[index - 1]), index
    return 0, 0


def _ended(collectives: Sequence[Entry], whole: bool) -> int:
    """Return the newest collective of a group that had ended when the dump was written."""
    completed, _ = _newest_done(collectives)
    if completed or whole:
        return completed
    return max(0, collective_seq(collectives[0]) - 1)  # what is through was left out, or overwritten


def _newest_of_each(collectives: Sequence[Entry], tail: int) -> list[Entry]:
    """Return the newest collectives, one entry of each: the first of a coalescing block says what it is."""
    found: dict[int, Entry] = {}
    for entry in reversed(collectives):
        if collective_seq(entry) not in found and len(found) == tail:
            break
        found[collective_seq(entry)] = entry
    return list(reversed(found.values()))


def _config(value: object) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return (description, members) by name. The members are text in all dumps so far."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, each in value.items() if isinstance(value, dict) else ():
        if isinstance(name, str) and isinstance(each, dict):
            ranks = each.get("ranks")
            members = _members(ranks) if isinstance(ranks, str) else _members(json.dumps(ranks))
            found[short_name(name)] = (short_name(str(each.get("desc", ""))), members)
    return found


@functools.lru_cache(maxsize=4096)
def _members(text: str) -> tuple[int, ...]:
    """Return the ranks in "[0, 1, 2]"; () for anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if isinstance(found, list) and all(type(rank) is int and 0 <= rank < 1 << 31 for rank in found):
        return tuple(found)
    return ()


def _status(value: object) -> dict[str, tuple[int, int]]:
    """Return (last enqueued, last completed) by the rank's own number of the group."""
    found = {}
    for pg_id, each in value.items() if isinstance(value, dict) else ():
        if isinstance(each, dict):
            counts = number(each.get("last_enqueued_collective")), number(each.get("last_completed_collective"))
            found[str(pg_id)] = counts
    return found
