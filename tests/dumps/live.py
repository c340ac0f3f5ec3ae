"""Tells the same moment as the agents of a live job would: views of ranks, which the judge of live jobs gets.

What a ring says of a group on a device comes from NCCL's own watchdog, of a group with sends and receives nothing does
(`ncclwatch/rank/device/progress.py`), and without Python's lock the ring stays as it was.
"""

import zlib

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import (
    CallSite,
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
from tests.dumps.faults import Case, What, calls_at
from tests.dumps.flight_recorder import TIMEOUT_MS, watchdog_looked
from tests.dumps.machine import Call, Doing, Machine
from tests.dumps.program import SCRIPT, Action, Group, Kind

LOOK_US = 400e6  # after the job has come to rest; its files are written when NCCL gives up
HISTORY = 64
RANKS_PER_HOST = 8
STANDS_AT = CallSite(file=SCRIPT, line=800, function="wait_for_data")
_DTYPES = {"BFloat16": "bfloat16", "Float": "float32", "Long": "int64"}


def snapshot(case: Case) -> JobSnapshot:
    """Return what the judge of live jobs gets."""
    machine = case.machine
    at_us = min(case.at_us, machine.now_us + LOOK_US)
    gil = {rank for blame in case.blames if blame.what is What.GIL_HELD for rank in blame.ranks}
    views = {
        rank: _view(machine, rank, case.early.get(rank, at_us), rank in gil)
        for rank in machine.hosts
    }  # fmt: skip
    silent = {rank: (at_us - early_us) / 1e6 for rank, early_us in case.early.items()}
    return JobSnapshot(job="job", world_size=len(views), ranks=views, stacks={}, silent=silent, absent_s=3600.0)


def _view(machine: Machine, rank: int, at_us: float, holds_gil: bool) -> RankView:
    host = machine.hosts[rank]
    since_us, pc, doing = next((each for each in reversed(host.story) if each[0] <= at_us), (0.0, 0, Doing.RUNS))
    stands_s = (at_us - since_us) / 1e6
    stopped = doing is Doing.STOPPED
    seen_us = since_us if stopped and holds_gil else at_us  # when the pulse last looked
    action = host.actions[min(pc, len(host.actions) - 1)]
    still_s = stands_s if stopped else 0.0  # a host that waits for CUDA spins
    issued = calls_at(machine, rank, seen_us)
    thread = _thread(machine, rank, action, doing, stands_s, len(issued))
    return RankView(
        rank=rank, local_rank=rank % RANKS_PER_HOST, host=f"node{rank // RANKS_PER_HOST}", pid=1000 + rank,
        device=f"cuda:{rank % RANKS_PER_HOST}", world_size=len(machine.hosts), local_world_size=RANKS_PER_HOST,
        attempt=0,
        process=ProcessView(
            state=ProcessState.SLEEPING if stopped else ProcessState.RUNNING, cpu_still_s=still_s,
            io_still_s=0.0 if doing is Doing.RUNS else stands_s,
        ),
        pulse_age_s=0.2 + (at_us - seen_us) / 1e6, initialised=True, threads=(thread,),
        groups=tuple(_group(machine, rank, group, seen_us) for group in _used(machine, rank)),
        peers=_peers(machine, rank, seen_us),
        history=tuple(_op(machine, call, seen_us) for call in issued[-HISTORY:]),
        steps=1200, forwards=4800, timeout_s=TIMEOUT_MS / 1000,
    )  # fmt: skip


def _thread(machine: Machine, rank: int, action: Action, doing: Doing, stands_s: float, issued: int) -> ThreadView:
    site = STANDS_AT if doing is Doing.STOPPED else _site(action)
    wait = None
    if doing is Doing.QUEUES:
        wait = _wait(machine, rank, action, stands_s)
    elif doing is Doing.LOADS:
        wait = WaitView(kind=WaitKind.DATA, age_s=stands_s, site=site)
    return ThreadView(
        tid=1000 + rank, main=True, issued=issued, wait=wait, doing=site, frames=(site,),
        leaf=f"{site.function} {site.file.rsplit('/', 1)[-1]}:{site.line}",
        calling="item" if doing is Doing.READS else "", same_s=0.0 if doing is Doing.RUNS else stands_s,
        cpu_still_s=stands_s if doing is Doing.STOPPED else 0.0,
    )  # fmt: skip


def _wait(machine: Machine, rank: int, action: Action, age_s: float) -> WaitView:
    """Return the wait of a host that stands in the call that it makes next."""
    kind = {Kind.COLLECTIVE: WaitKind.COLLECTIVE, Kind.SEND: WaitKind.SEND, Kind.RECV: WaitKind.RECV}[action.kind]
    counts = machine.hosts[rank].counts
    return WaitView(
        kind=kind, age_s=age_s, group=action.group, op=action.op, peer=action.peer, site=_site(action),
        seq=counts.get((action.group, kind is not WaitKind.COLLECTIVE), 0) + 1,
    )  # fmt: skip


def _used(machine: Machine, rank: int) -> list[Group]:
    used = {action.group for action in machine.job.steps[rank] if action.is_call}
    return [group for group in machine.job.groups_of(rank) if group.name in used]


def _group(machine: Machine, rank: int, group: Group, at_us: float) -> GroupView:
    looked_us = watchdog_looked(machine, rank, at_us)
    mine = [call for call in calls_at(machine, rank, at_us) if call.action.group == group.name]
    blind = any(call.action.kind is not Kind.COLLECTIVE for call in mine)
    collectives = [call for call in mine if call.action.kind is Kind.COLLECTIVE]
    before = machine.hosts[rank].earlier.get((group.name, False), 0)
    through = [call for call in collectives if call.done_us <= looked_us]
    completed = through[-1].seq if through else before
    pending = next((call for call in collectives if call.seq > completed), None)
    return GroupView(
        name=group.name, desc=group.desc, ranks=group.members, enqueued=collectives[-1].seq if collectives else before,
        completed=completed, prefix_hash=_hash(collectives),
        pending=_op(machine, pending, at_us) if pending is not None and not blind else None, blind=blind,
        asynchronous=True, timeout_s=TIMEOUT_MS / 1000,
    )  # fmt: skip


def _hash(calls: list[Call]) -> int:
    """Mix the signatures of calls, in their order."""
    found = 1
    for call in calls:
        found = zlib.crc32(repr(call.action.signature).encode(), found)
    return found


def _peers(machine: Machine, rank: int, at_us: float) -> tuple[PeerView, ...]:
    """Return how many sends and receives were issued; what of them is through, nobody knows on a device."""
    found: dict[tuple[str, int], list[int]] = {}
    for call in calls_at(machine, rank, at_us):
        if call.action.kind is not Kind.COLLECTIVE:
            counts = found.setdefault((call.action.group, call.action.peer), [0, 0])
            counts[call.action.kind is Kind.RECV] += 1
    return tuple(
        PeerView(group=group, peer=peer, sends=sends, recvs=recvs) for (group, peer), (sends, recvs) in found.items()
    )


def _op(machine: Machine, call: Call, at_us: float) -> OpView:
    action = call.action
    collective = action.kind is Kind.COLLECTIVE
    return OpView(
        group=action.group,
        seq=call.seq if collective else call.p2p,
        op=action.op,
        dtype=_DTYPES[action.dtype],
        numel=0 if action.op is Op.ALL_TO_ALL else max(action.sizes),
        peer=action.peer,
        reduce_op="sum" if action.op in (Op.ALL_REDUCE, Op.REDUCE_SCATTER) else "",
        site=_site(action),
        thread=1000 + call.rank,
        completed=collective and call.done_us <= watchdog_looked(machine, call.rank, at_us),
        in_order=action.blocking,
        age_s=(at_us - call.issued_us) / 1e6,
    )


def _site(action: Action) -> CallSite:
    return CallSite(file=SCRIPT, line=action.line, function=action.function)
