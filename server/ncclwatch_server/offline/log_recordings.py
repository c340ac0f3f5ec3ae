"""Turns a log into a recording of operations: a frontier without a history."""

from collections.abc import Mapping

from ncclwatch.contract.model.rank import Op
from ncclwatch_server.judge.theory.histories.signatures import Signature
from ncclwatch_server.offline.logs import OPS, GroupLines, Logs, RankLines, Work
from ncclwatch_server.offline.members import DEFAULT_GROUP
from ncclwatch_server.offline.recording import GroupKey, GroupRecord, Issued, Recording

_INPUTS_AGREE = (Op.ALL_REDUCE, Op.BROADCAST, Op.REDUCE)
UNNAMED = "unnamed"  # old logs do not tell the group


def recordings_of(logs: Logs) -> Mapping[int, Recording]:
    """Return a recording for each rank whose watchdog said something."""
    world = tuple(range(logs.world_size))
    found = {}
    for rank, lines in logs.ranks.items():
        groups = {}
        for name, group in lines.groups.items():
            record = _group(name, group, bool(world))
            groups[record.key] = record
        if groups:
            found[rank] = _recording(rank, lines, groups, world)
    return found


def _recording(
    rank: int, lines: RankLines, groups: Mapping[GroupKey, GroupRecord], world: tuple[int, ...]
) -> Recording:
    works = [group.work for group in lines.groups.values() if group.work is not None]
    ran_s = max((work.ran_s for work in works), default=0.0)
    return Recording(
        rank=rank,
        path=lines.path,
        source="log",
        version="",
        backend="nccl",
        groups=groups,
        world=world,
        whole=False,
        timeout_s=max((work.timeout_s for work in works), default=0.0),
        # Logs tell how long a work ran, not when it began: a clock of their own that stops at the timeout.
        newest_ns=1 if works else 0,
        written_ns=1 + int(ran_s * 1e9) if works else 0,
        host=lines.host,
    )


def _group(name: str, lines: GroupLines, world_known: bool) -> GroupRecord:
    desc = lines.desc or (DEFAULT_GROUP if name == "0" else "")
    work = lines.work
    completed = lines.completed if lines.completed >= 0 else work.seq - 1 if work is not None else 0
    enqueued = max(lines.enqueued, completed, work.seq if work is not None else 0)
    pending = _issued(work) if work is not None and work.op not in ("SEND", "RECV", "COALESCED") else None
    return GroupRecord(
        key=GroupKey(name or UNNAMED, ()),
        desc=desc,
        enqueued=enqueued,
        completed=min(completed, pending.seq - 1) if pending is not None else completed,
        pending=pending,
        tail=(pending,) if pending is not None else (),
        whole=False,
        told=False if desc != DEFAULT_GROUP else world_known,
        aligned=pending is not None or work is None,
    )


def _issued(work: Work) -> Issued:
    op = OPS.get(work.op, Op.UNKNOWN)
    numel = work.numel_in if op in _INPUTS_AGREE else -1
    return Issued(
        seq=work.seq,
        signature=Signature(op=op, name=work.op, dtype="", numel=numel),
        site=None,
        created_ns=1,
        started=False,
        done=False,
        record=0,
    )
