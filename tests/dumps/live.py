"""Tells the same moment as the agents of a live job would: views of ranks, which the judge of live jobs gets.

What a ring says of a group on a device comes from NCCL's own watchdog; of a group with sends and receives from the
entries of torch's flight recorder, once it issues nothing more (`ncclwatch/rank/device`). Without Python's lock the
ring stays as it was.
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
QUIET_US = 1e6  # without a new operation, after which the entries are asked for: two pulses
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
    quiet = doing is not Doing.RUNS and seen_us - since_us >= QUIET_US
    issued = calls_at(machine, rank, seen_us)
    thread = _thread(machine, rank, action, doing, stands_s, issued)
    return RankView(
        rank=rank, local_rank=rank % RANKS_PER_HOST, host=f"node{rank // RANKS_PER_HOST}", pid=1000 + rank,
        device=f"cuda:{rank % RANKS_PER_HOST}", world_size=len(machine.hosts), local_world_size=RANKS_PER_HOST,
        attempt=0,
        process=ProcessView(
            state=ProcessState.SLEEPING if stopped else ProcessState.RUNNING, cpu_still_s=still_s,
            io_still_s=0.0 if doing is Doing.RUNS else stands_s,
        ),
        pulse_age_s=0.2 + (at_us - seen_us) / 1e6, initialised=True, threads=(thread,),
        groups=tuple(_group(machine, rank, group, seen_us, quiet=quiet) for group in _used(machine, rank)),
        peers=_peers(machine, rank, seen_us, told=quiet),
        history=tuple(_op(machine, call, seen_us, told=quiet) for call in issued[-HISTORY:]),
        steps=1200, forwards=4800, timeout_s=TIMEOUT_MS / 1000,
    )  # fmt: skip


def _thread(
    machine: Machine, rank: int, action: Action, doing: Doing, stands_s: float, issued: list[Call]
) -> ThreadView:
    site = STANDS_AT if doing is Doing.STOPPED else _site(action)
    wait = None
    if doing is Doing.QUEUES:
        wait = _wait(machine, rank, action, stands_s, issued)
    elif doing is Doing.LOADS:
        wait = WaitView(kind=WaitKind.DATA, age_s=stands_s, site=site)
    return ThreadView(
        tid=1000 + rank, main=True, issued=len(issued), wait=wait, doing=site, frames=(site,),
        leaf=f"{site.function} {site.file.rsplit('/', 1)[-1]}:{site.line}",
        calling="item" if doing is Doing.READS else "", same_s=0.0 if doing is Doing.RUNS else stands_s,
        cpu_still_s=stands_s if doing is Doing.STOPPED else 0.0,
    )  # fmt: skip


def _wait(machine: Machine, rank: int, action: Action, age_s: float, issued: list[Call]) -> WaitView:
    """Return the wait of a host that stands in the call that it makes next."""
    kind = {Kind.COLLECTIVE: WaitKind.COLLECTIVE, Kind.SEND: WaitKind.SEND, Kind.RECV: WaitKind.RECV}[action.kind]
    before = machine.hosts[rank].counts.get((action.group, False), 0)
    if kind is not WaitKind.COLLECTIVE:
        before = sum(_is_alike(call.action, action) for call in issued)
    return WaitView(
        kind=kind, age_s=age_s, group=action.group, op=action.op, peer=action.peer, site=_site(action),
        seq=before + 1,
    )  # fmt: skip


def _is_alike(one: Action, other: Action) -> bool:
    """Say whether two messages count together: of one kind, between the same two ranks."""
    return (one.group, one.kind, one.peer) == (other.group, other.kind, other.peer)


def _number(machine: Machine, call: Call) -> int:
    """Return the number of a message among those of its kind between the two ranks."""
    calls = machine.hosts[call.rank].calls
    return sum(_is_alike(each.action, call.action) for each in calls if each.record <= call.record)


def _used(machine: Machine, rank: int) -> list[Group]:
    used = {action.group for action in machine.job.steps[rank] if action.is_call}
    return [group for group in machine.job.groups_of(rank) if group.name in used]


def _group(machine: Machine, rank: int, group: Group, at_us: float, *, quiet: bool) -> GroupView:
    looked_us = watchdog_looked(machine, rank, at_us)
    mine = [call for call in calls_at(machine, rank, at_us) if call.action.group == group.name]
    blind = not quiet and any(call.action.kind is not Kind.COLLECTIVE for call in mine)
    collectives = [call for call in mine if call.action.kind is Kind.COLLECTIVE]
    before = machine.hosts[rank].earlier.get((group.name, False), 0)
    through = [call for call in collectives if call.done_us <= looked_us]
    completed = through[-1].seq if through else before
    pending = next((call for call in collectives if call.seq > completed), None)
    return GroupView(
        name=group.name, desc=group.desc, ranks=group.members, enqueued=collectives[-1].seq if collectives else before,
        completed=completed, prefix_hash=_hash(collectives),
        pending=_op(machine, pending, at_us, told=quiet) if pending is not None and not blind else None, blind=blind,
        asynchronous=True, timeout_s=TIMEOUT_MS / 1000,
    )  # fmt: skip


def _hash(calls: list[Call]) -> int:
    """Mix the signatures of calls, in their order."""
    found = 1
    for call in calls:
        found = zlib.crc32(repr(call.action.signature).encode(), found)
    return found


def _peers(machine: Machine, rank: int, at_us: float, *, told: bool) -> tuple[PeerView, ...]:
    """Return how many sends and receives were issued, and if it is told, what of them is through."""
    found: dict[tuple[str, int], list[Call]] = {}
    for call in calls_at(machine, rank, at_us):
        if call.action.kind is not Kind.COLLECTIVE:
            found.setdefault((call.action.group, call.action.peer), []).append(call)
    looked_us = watchdog_looked(machine, rank, at_us) if told else 0.0
    return tuple(_peer(machine, calls, at_us, looked_us, told=told) for calls in found.values())


def _peer(machine: Machine, calls: list[Call], at_us: float, looked_us: float, *, told: bool) -> PeerView:
    """Return the messages with one peer. They have a stream of their own, and are done in their order."""
    sends = [call for call in calls if call.action.kind is Kind.SEND]
    recvs = [call for call in calls if call.action.kind is Kind.RECV]
    first = next((call for call in calls if call.done_us > looked_us), None) if told else None
    at_it = _op(machine, first, at_us, told=told) if first is not None else None
    return PeerView(
        group=calls[0].action.group, peer=calls[0].action.peer, sends=len(sends), recvs=len(recvs),
        sends_completed=sum(call.done_us <= looked_us for call in sends),
        recvs_completed=sum(call.done_us <= looked_us for call in recvs), told=told,
        sending=at_it if first in sends else None, receiving=at_it if first in recvs else None,
    )  # fmt: skip


def _op(machine: Machine, call: Call, at_us: float, *, told: bool) -> OpView:
    """Return an operation. `told`: it is told of sends and receives whether they are through."""
    action = call.action
    collective = action.kind is Kind.COLLECTIVE
    return OpView(
        group=action.group,
        seq=call.seq if collective else _number(machine, call),
        op=action.op,
        dtype=_DTYPES[action.dtype],
        numel=0 if action.op is Op.ALL_TO_ALL else max(action.sizes),
        peer=action.peer,
        reduce_op="sum" if action.op in (Op.ALL_REDUCE, Op.REDUCE_SCATTER) else "",
        site=_site(action),
        thread=1000 + call.rank,
        completed=(collective or told) and call.done_us <= watchdog_looked(machine, call.rank, at_us),
        in_order=action.blocking,
        age_s=(at_us - call.issued_us) / 1e6,
    )


def _site(action: Action) -> CallSite:
    return CallSite(file=SCRIPT, line=action.line, function=action.function)
