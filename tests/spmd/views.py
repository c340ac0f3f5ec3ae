"""Shows a run as the agents would at one moment: a view of each rank, not all taken at once, some missing, some short.

A rank that computes uses CPU. One that waits, or stands still for ever, uses none, and its stack stays the same.
"""

import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import (
    CallSite,
    Ending,
    GroupView,
    LoaderView,
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
from tests.spmd.machine import Call, Run, lock_of
from tests.spmd.program import FILE, RANKS_PER_HOST, Kind, Ranks, Step

KNOWN_S = 3600.0
TIMEOUT_S = 1800.0  # of gloo
DEVICE_TIMEOUT_S = 600.0  # of NCCL
HISTORY_MAX = 400
FIRST_PID = 1000


class Sight(NamedTuple):
    """How much of a job is seen at a moment."""

    at_s: float
    late_s: tuple[float, ...] = ()  # how long before the moment the view of each rank was taken; (): all just now
    history: tuple[int, ...] = ()  # how many operations each ring still has; (): all
    silent: tuple[int, ...] = ()  # ranks whose node tells nothing
    unasked: tuple[int, ...] = ()  # ranks that exist, and whose views nobody asked for


def draw(rng: random.Random, run: Run, at_s: float) -> Sight:
    """Return how much is seen at a moment: mostly all, sometimes less."""
    ranks = range(run.program.world)
    late_s = tuple(rng.uniform(0.0, rng.choice((0.1, 0.4, 1.5))) for _ in ranks) if rng.random() < 0.5 else ()
    history = tuple(rng.choice((3, 10, 30, HISTORY_MAX)) for _ in ranks) if rng.random() < 0.25 else ()
    lost = (rng.choice(ranks),) if rng.random() < 0.06 else ()
    lost = () if run.holders else lost  # who says that a lock is held sees the process that holds it
    asked = rng.random() < 0.5
    return Sight(at_s, late_s, history, lost if asked else (), () if asked else lost)


def snapshot(run: Run, sight: Sight) -> JobSnapshot:
    """Return what the judge gets."""
    unseen = {*sight.silent, *sight.unasked}
    views = {rank: _view(run, rank, sight) for rank in range(run.program.world) if rank not in unseen}
    return JobSnapshot(
        job="job", world_size=run.program.world, ranks=views, stacks={},
        silent=dict.fromkeys(sight.silent, 5.0), unasked=frozenset(sight.unasked), absent_s=KNOWN_S,
    )  # fmt: skip


def seen_s(sight: Sight, rank: int) -> float:
    """Return the moment at which the view of a rank was taken."""
    return sight.at_s - (sight.late_s[rank] if sight.late_s else 0.0)


def _view(run: Run, rank: int, sight: Sight) -> RankView:
    at_s = seen_s(sight, rank)
    late_s = sight.at_s - at_s
    world = run.program.world
    local = min(world, RANKS_PER_HOST)
    ended = run.ended_s[rank] <= at_s
    calls = run.calls[rank]
    issued = calls[: bisect_right(calls, at_s, key=_issued_s)]
    begun = bisect_right(run.began_s[rank], at_s)
    step = run.steps[rank][begun - 1] if 0 < begun <= len(run.steps[rank]) else None
    since_s = at_s - run.began_s[rank][begun - 1] if begun else 0.0
    through = run.steps[rank][: max(begun - 1, 0)]
    made = [each.group for each in through if each.kind is Kind.MAKE]
    calls_awaited = run.awaits[rank].get(begun - 1, ())
    awaited = next((call for call in calls_awaited if at_s < call.done_s), None)
    standing = _Standing(
        rank, step, since_s, issued, at_s, run.groups, run.program.begun_with + len(made), awaited, run.program.spins
    )
    stopped = step is not None and step.how == "stopped"
    return RankView(
        rank=rank, local_rank=rank % local, host=f"node{rank // local}", pid=FIRST_PID + rank, device="",
        world_size=world, local_world_size=local, attempt=0,
        process=standing.process(ended=ended, holder=_holder(run, rank, step, at_s)),
        pulse_age_s=since_s if stopped else 0.2, initialised=True,
        ending=_ending(run, rank, at_s) if ended else None,
        threads=(standing.thread(),),
        groups=_groups(run, rank, issued, made, at_s),
        keys_set=tuple({_name_of_key(each): None for each in through if each.kind is Kind.KEY and each.root == rank}),
        groups_counted=run.program.begun_with + len(made) if run.program.late else 0,
        groups_held=len(_held(run, rank, made)) if run.program.late else 0,
        peers=_peers(issued, at_s),
        loaders=_loaders(run.steps[rank][:begun]),
        history=_history(issued, at_s, sight.history[rank] if sight.history else HISTORY_MAX),
        timeout_s=_timeout_s(run), news_age_s=late_s * 0.5, taken_s=late_s * 0.5,
    )  # fmt: skip


def _timeout_s(run: Run) -> float:
    return DEVICE_TIMEOUT_S if run.program.device else TIMEOUT_S


def _holder(run: Run, rank: int, step: Step | None, at_s: float) -> int:
    """Return who holds the lock that a rank waits for; -1: it waits for none."""
    if step is None or step.kind is not Kind.TAKE:
        return -1
    held = run.holders.get(lock_of(rank, step), [])
    holder = next((each for since_s, each in reversed(held) if since_s <= at_s), -1)
    return -1 if holder == rank else holder


def _issued_s(call: Call) -> float:
    return call.issued_s


class _Standing(NamedTuple):
    """Where one rank stands."""

    rank: int
    step: Step | None  # None: it has not begun, or is through
    since_s: float
    issued: Sequence[Call]
    at_s: float
    groups: Mapping[str, Ranks]
    made: int  # groups that it has made before
    awaited: Call | None  # what its host waits for
    spins: bool  # where it reads a value from its device

    @property
    def still_s(self) -> float:
        """Return for how long it has shown no work."""
        if self.step is None or (self.step.kind is Kind.COMPUTE and not self.step.how):
            return 0.0
        return self.since_s

    @property
    def _without_cpu_s(self) -> float:
        reads = self.step is not None and self.step.kind is Kind.READ
        return 0.0 if reads and self.spins else self.still_s

    def process(self, *, ended: bool, holder: int) -> ProcessView:
        """Return what is seen of it from outside."""
        still_s = self._without_cpu_s
        state = ProcessState.SLEEPING if still_s else ProcessState.RUNNING
        if self.step is not None and self.step.how == "stopped":
            state = ProcessState.STOPPED
        return ProcessView(
            state=ProcessState.GONE if ended else state, cpu_still_s=still_s, io_still_s=still_s,
            lock_holder=FIRST_PID + holder if holder >= 0 else 0, lock_path="/tmp/lock" if holder >= 0 else "",
        )  # fmt: skip

    def thread(self) -> ThreadView:
        """Return what its main thread does."""
        step, still_s = self.step, self.still_s
        if step is None:
            return ThreadView(tid=1000 + self.rank, main=True, issued=len(self.issued))
        site = site_at(step.line)
        wait = self._wait(step, site)
        return ThreadView(
            tid=1000 + self.rank, main=True, issued=len(self.issued), wait=wait, doing=site, frames=(site,),
            leaf=f"train train.py:{step.line}", same_s=still_s, cpu_still_s=self._without_cpu_s,
            calling="item" if step.kind is Kind.READ else "",
        )  # fmt: skip

    def _wait(self, step: Step, site: CallSite) -> WaitView | None:
        if step.kind is Kind.DRAW:
            return WaitView(kind=WaitKind.DATA, age_s=self.since_s, site=site)
        if step.kind is Kind.MAKE:
            members = self.groups[step.group]
            if self.rank not in members:
                return None
            return WaitView(
                kind=WaitKind.NEW_GROUP, age_s=self.since_s, site=site, seq=self.made, members=tuple(sorted(members))
            )
        if step.kind is Kind.KEY:
            waits = step.root != self.rank
            if not waits:
                return None
            return WaitView(kind=WaitKind.STORE, age_s=self.since_s, site=site, label=_name_of_key(step))
        call = self.awaited
        if call is None or step.kind is Kind.READ:
            return None
        return WaitView(
            kind=_WAITS.get(call.step.op, WaitKind.COLLECTIVE), age_s=self.since_s, group=call.group, seq=call.seq,
            op=call.step.op, peer=call.step.root, site=site,
        )  # fmt: skip


def _name_of_key(step: Step) -> str:
    """Return the name of a key, with # for its number."""
    return f"line-{step.line}-#"


def _ending(run: Run, rank: int, at_s: float) -> Ending:
    how, age_s = run.how[rank], at_s - run.ended_s[rank]
    if how == "crash":
        site = site_at(run.steps[rank][-1].line)
        return Ending(kind="crashed", exit_code=1, exception="ValueError: bad label", site=site, age_s=age_s)
    if how == "kill":
        return Ending(kind="signalled", signal=9, age_s=age_s)
    return Ending(kind="exited", exit_code=0, age_s=age_s)


def _held(run: Run, rank: int, made: Sequence[str]) -> list[str]:
    """Return the groups that a rank is in, and has."""
    names = [*map(str, range(run.program.begun_with)), *dict.fromkeys(made)]
    return [name for name in names if rank in run.groups[name]]


def _groups(run: Run, rank: int, issued: Sequence[Call], made: Sequence[str], at_s: float) -> tuple[GroupView, ...]:
    """Return the groups that a rank has used, or has, where some are made later than others."""
    by_group: dict[str, list[Call]] = {name: [] for name in _held(run, rank, made)} if run.program.late else {}
    for call in issued:
        by_group.setdefault(call.group, []).append(call)
    return tuple(_group(run, name, calls, at_s) for name, calls in by_group.items())


def _group(run: Run, name: str, issued: Sequence[Call], at_s: float) -> GroupView:
    calls = [call for call in issued if call.needs is not None]
    pending = next((call for call in calls if call.done_s > at_s), None)
    return GroupView(
        name=name, desc="default_pg" if name == "0" else "undefined", ranks=run.groups[name], enqueued=len(calls),
        completed=pending.seq - 1 if pending is not None else len(calls),
        prefix_hash=calls[-1].prefix if calls else 0, asynchronous=run.program.device,
        pending=_op(pending, at_s, completed=False) if pending is not None else None, timeout_s=_timeout_s(run),
        site=_made_at(run, name),
    )  # fmt: skip


def _made_at(run: Run, name: str) -> CallSite | None:
    axis = next(at for at in range(len(run.program.axes)) if name in run.program.names_of(at))
    return site_at(run.program.axes[axis].line) if axis and run.program.late else None


def _peers(issued: Sequence[Call], at_s: float) -> tuple[PeerView, ...]:
    found: dict[tuple[str, int], list[int]] = {}
    for call in issued:
        if call.needs is None:
            counts = found.setdefault((call.group, call.step.root), [0, 0, 0, 0])
            at = 0 if call.step.op is Op.SEND else 2
            counts[at] += 1
            counts[at + 1] += call.done_s <= at_s
    return tuple(
        PeerView(group=group, peer=peer, sends=sends, sends_completed=sent, recvs=recvs, recvs_completed=got)
        for (group, peer), (sends, sent, recvs, got) in found.items()
    )


def _history(issued: Sequence[Call], at_s: float, most: int) -> tuple[OpView, ...]:
    """Return the newest operations. Of a group only the oldest unfinished collective is recorded as such."""
    through: dict[str, int] = {}
    for call in issued:
        if call.needs is not None and call.done_s > at_s:
            through.setdefault(call.group, call.seq - 1)

    def is_told(call: Call) -> bool:
        return call.done_s <= at_s and (call.needs is None or call.seq <= through.get(call.group, call.seq))

    return tuple(_op(call, at_s, completed=is_told(call)) for call in issued[-most:])


def _op(call: Call, at_s: float, *, completed: bool) -> OpView:
    step = call.step
    barrier = step.op is Op.BARRIER
    return OpView(
        group=call.group, seq=call.seq, op=step.op, dtype="" if barrier else "float32", numel=step.numel,
        peer=step.root, reduce_op="sum" if step.op in _REDUCES else "", site=site_at(step.line),
        thread=1000 + call.rank, batch=step.batch, loader=1 if step.loader else 0, completed=completed,
        in_order=not step.is_async, age_s=at_s - call.issued_s,
    )  # fmt: skip


_WAITS = {Op.SEND: WaitKind.SEND, Op.RECV: WaitKind.RECV}
_REDUCES = frozenset((Op.ALL_REDUCE, Op.REDUCE, Op.REDUCE_SCATTER))


def _loaders(begun: Sequence[Step]) -> tuple[LoaderView, ...]:
    found: dict[int, LoaderView] = {}
    for step in begun:
        if step.kind is Kind.DRAW:
            found[step.line] = _drawn(found.get(step.line), step)
    return tuple(found.values())


def _drawn(before: LoaderView | None, step: Step) -> LoaderView:
    passes = before.passes if before is not None else 0
    drawn, last = (before.drawn, before.last_drawn) if before is not None else (0, 0)
    if step.batch:
        began = step.batch == 1
        return LoaderView(site=site_at(step.line), passes=passes + began, drawn=step.batch, exhausted=False,
                          last_drawn=last)  # fmt: skip
    return LoaderView(site=site_at(step.line), passes=max(passes, 1), drawn=drawn, exhausted=True, last_drawn=drawn)


@lru_cache(maxsize=4096)
def site_at(line: int) -> CallSite:
    """Return a line of the program."""
    return CallSite(file=FILE, line=line, function="train")
