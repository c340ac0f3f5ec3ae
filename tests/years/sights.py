"""Shows a stretch of a job as its agents would: a row of a digest at any moment, and whole views of ranks.

A stretch is a run of `tests.spmd.machine`; what the ranks have counted before it is added.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ncclwatch.contract import digests, wire
from ncclwatch.contract.groups import group_key, name_key, text_key
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
    SaveView,
    ThreadView,
    WaitKind,
    WaitView,
)
from ncclwatch.contract.ring.members import digest_of
from tests.spmd.machine import Call, Run
from tests.spmd.program import FILE, Kind, Step
from tests.years.doing import TRAINS, Doing
from tests.years.plans import INIT, TRAIN, Plan

HISTORY_MAX = 160
SAVE_SHOWN_S = 30.0  # a save that is over is told of for so long
_STATES = {state: code for code, state in enumerate(digests.PROCESS_STATES)}
_KINDS = {kind: code for code, kind in enumerate(digests.WAIT_KINDS)}
_WAITS = {Op.SEND: WaitKind.SEND, Op.RECV: WaitKind.RECV}
_MASK = 0xFFFFFFFFFFFFFFFF
_REDUCES = frozenset((Op.ALL_REDUCE, Op.REDUCE, Op.REDUCE_SCATTER))


@dataclass
class Counts:
    """What the ranks of one attempt have counted so far."""

    steps: int = 0  # training steps
    calls: dict[tuple[int, str], int] = field(default_factory=dict)  # collectives, by rank and group
    messages: dict[tuple[int, str, Op, int], int] = field(default_factory=dict)  # by rank, group, way and peer
    issued: dict[int, int] = field(default_factory=dict)
    prefixes: dict[tuple[int, str], int] = field(default_factory=dict)  # hash over the collectives

    def copied(self) -> "Counts":
        """Return a copy: what was seen of a stretch stays as it was."""
        return Counts(self.steps, dict(self.calls), dict(self.messages), dict(self.issued), dict(self.prefixes))

    def add(self, rank: int, steps: Sequence[Step], times: int = 1) -> None:
        """Count steps of a rank so many times."""
        for step in steps:
            if step.kind is not Kind.CALL or step.group == INIT:
                continue
            self.issued[rank] = self.issued.get(rank, 0) + times
            if step.op.is_p2p:
                key = (rank, step.group, step.op, step.root)
                self.messages[key] = self.messages.get(key, 0) + times
            else:
                self.calls[rank, step.group] = self.calls.get((rank, step.group), 0) + times


@dataclass(frozen=True)
class Background:
    """A save that a thread of a rank writes while training goes on."""

    rank: int
    path: str
    began_s: float
    ended_s: float


class Sights:
    """A stretch of a job, from second 0 on."""

    def __init__(
        self, plan: Plan, run: Run, counts: Counts, doings: Mapping[str, Doing], attempt: int,
        background: Sequence[Background] = (),
    ) -> None:  # fmt: skip
        self.plan, self.run, self.counts, self.doings, self.attempt = plan, run, counts, doings, attempt
        self.background = background
        self.onset_s = 0.0  # since when a rank waits that will do so for ever
        self.own = [[name for name, members in plan.groups.items() if rank in members] for rank in range(plan.world)]
        self.calls: list[list[Call]] = [[c for c in calls if c.group != INIT] for calls in run.calls]
        self.times = [[call.issued_s for call in calls] for calls in self.calls]
        self.done = [sorted(call.done_s for call in calls if call.needs is not None) for calls in self.calls]
        self.by_group: list[dict[str, tuple[list[Call], list[float], list[float]]]] = []
        for rank in range(plan.world):
            found: dict[str, tuple[list[Call], list[float], list[float]]] = {}
            for name in self.own[rank]:
                calls = [c for c in self.calls[rank] if c.group == name and c.needs is not None]
                found[name] = calls, [c.issued_s for c in calls], [c.done_s for c in calls]
            self.by_group.append(found)

    def ended(self, rank: int, at_s: float) -> bool:
        """Whether the process of a rank is gone."""
        return self.run.ended_s[rank] <= at_s

    def doing(self, step: Step | None) -> Doing:
        """Return what is seen of a step."""
        return self.doings.get(step.how, TRAINS) if step is not None else TRAINS

    def at(self, rank: int, at_s: float) -> "At":
        """Return where a rank stands."""
        return At(self, rank, at_s)

    def row(self, rank: int, at_s: float) -> tuple[tuple[float, ...], list[tuple[float, ...]]]:
        """Return what a digest says of a rank, and of its groups."""
        at = self.at(rank, at_s)
        wait = at.peer_wait
        state = ProcessState.GONE if at.ended else at.state
        issued = bisect_right(self.times[rank], at_s)
        waits_in = digests.NO_WAIT
        if wait is not None and not at.ended:
            peer = wait.peer if wait.kind in (WaitKind.SEND, WaitKind.RECV) else -1
            waits_in = (key_of(wait.group, self.plan)[0] if wait.group else 0, peer, _KINDS[wait.kind])
        completed = sum(self.counts.calls.get((rank, name), 0) for name in self.own[rank])
        completed += bisect_right(self.done[rank], at_s)
        row = (
            rank, _STATES[state], int(at.ended), int(at.initialised), 0, at.pulse_age_s,
            wait.age_s if wait is not None and not at.ended else 0.0,
            self.counts.issued.get(rank, 0) + issued, completed, self.counts.steps, *waits_in,
            self._saves_to(rank, at_s), 0, 0, *digests.NO_PACE,
        )  # fmt: skip
        return row, [self._group_row(rank, name, at_s) for name in self.own[rank]] if at.initialised else []

    def _group_row(self, rank: int, name: str, at_s: float) -> tuple[float, ...]:
        _, issued_s, done_s = self.by_group[rank][name]
        issued, done = bisect_right(issued_s, at_s), bisect_right(done_s, at_s)
        key, label = key_of(name, self.plan)
        pending_s = at_s - issued_s[done] if done < issued else 0.0
        enqueued = self.counts.calls.get((rank, name), 0) + issued
        return rank, pending_s, key, enqueued, self.prefix(rank, name, issued), issued - done, label

    def prefix(self, rank: int, name: str, issued: int) -> int:
        """Return the hash over the collectives of a rank when it has issued so many of this stretch."""
        before, calls = self.counts.prefixes.get((rank, name), 1), self.by_group[rank][name][0]
        return (before * 31 + calls[issued - 1].prefix if issued else before) & _MASK

    def _saves(self, rank: int, at_s: float) -> list[tuple[str, float, float | None]]:
        """Return the saves of a rank that are told of: path, since when, and since when over."""
        found = [
            (each.path, at_s - each.began_s, at_s - each.ended_s if each.ended_s <= at_s else None)
            for each in self.background
            if each.rank == rank and each.began_s <= at_s < each.ended_s + SAVE_SHOWN_S
        ]
        at = self.at(rank, at_s)
        if at.doing.saves:
            found.append((at.doing.saves, at.activity_s, None))
        return found

    def _saves_to(self, rank: int, at_s: float) -> int:
        saves = self._saves(rank, at_s)
        return text_key(f"id:{saves[-1][0]}") if saves else 0

    def loop(self, rank: int, at_s: float) -> wire.Loop | None:
        """Return the loop over data that a rank is in."""
        loader = self._loader(rank, at_s)
        if loader is None:
            return None
        return wire.Loop(
            rank=rank, loader=f"{FILE}:{TRAIN}", number=loader.passes, drawn=loader.drawn, length=loader.length,
            ended=loader.exhausted, even=loader.even,
        )  # fmt: skip

    def _loader(self, rank: int, at_s: float) -> LoaderView | None:
        begun = bisect_right(self.run.began_s[rank], at_s)
        draws = (s for s in reversed(self.run.steps[rank][:begun]) if s.kind is Kind.DRAW and s.line == TRAIN)
        newest = next(draws, None)
        if newest is None and not self.counts.steps:
            return None
        plan = self.plan
        turn = newest.turn if newest is not None else self.counts.steps - 1
        drawn = newest.batch if newest is not None else turn % plan.epoch + 1
        exhausted = newest is not None and newest.batch == 0
        before = next(draws, None) if exhausted else None
        return LoaderView(
            site=site_at(TRAIN), passes=turn // plan.epoch + 1,
            drawn=before.batch if before is not None else drawn, exhausted=exhausted,
            last_drawn=plan.epoch if turn >= plan.epoch else 0, length=plan.epoch if plan.says_length else 0,
            even=newest is not None and newest.numel > 0,
        )  # fmt: skip

    def view(self, rank: int, at_s: float) -> RankView:
        """Return the whole view of a rank."""
        plan, at = self.plan, self.at(rank, at_s)
        loader = self._loader(rank, at_s)
        issued = self.calls[rank][: bisect_right(self.times[rank], at_s)]
        return RankView(
            rank=rank, local_rank=rank % plan.per_host, host=f"node{plan.host(rank)}", pid=1000 + rank, device="",
            world_size=plan.world, local_world_size=min(plan.per_host, plan.world), attempt=self.attempt,
            process=ProcessView(
                state=ProcessState.GONE if at.ended else at.state, cpu_still_s=at.still_s("cpu"),
                io_still_s=at.still_s("io"), in_kernel=at.doing.kernel,
            ),
            pulse_age_s=at.pulse_age_s, initialised=at.initialised,
            ending=self._ending(rank, at_s) if at.ended else None,
            threads=(at.thread(self.counts.issued.get(rank, 0) + len(issued)),),
            groups=tuple(self._group(rank, name, at_s) for name in self.own[rank]) if at.initialised else (),
            peers=self._peers(rank, issued, at_s),
            loaders=(loader,) if loader is not None else (),
            history=tuple(self._op(call, at_s) for call in issued[-HISTORY_MAX:]),
            saves=tuple(_save(rank, at_s, at.still_s("io"), *each) for each in self._saves(rank, at_s)),
            steps=self.counts.steps, timeout_s=plan.timeout_s,
        )  # fmt: skip

    def _ending(self, rank: int, at_s: float) -> Ending:
        how, age_s = self.run.how[rank], at_s - self.run.ended_s[rank]
        if how == "crash":
            site = site_at(self.run.steps[rank][len(self.run.began_s[rank]) - 1].line)
            return Ending(kind="crashed", exit_code=1, exception="ValueError: bad label", site=site, age_s=age_s)
        if how in ("kill", "term"):
            return Ending(kind="signalled", signal=9 if how == "kill" else 15, age_s=age_s)
        return Ending(kind="exited", exit_code=0, age_s=age_s)

    def _group(self, rank: int, name: str, at_s: float) -> GroupView:
        calls, issued_s, done_s = self.by_group[rank][name]
        issued, done = bisect_right(issued_s, at_s), bisect_right(done_s, at_s)
        before = self.counts.calls.get((rank, name), 0)
        return GroupView(
            name=name, desc="default_pg" if name == "0" else "undefined", ranks=self.plan.groups[name],
            enqueued=before + issued, completed=before + done, prefix_hash=self.prefix(rank, name, issued),
            pending=self._op(calls[done], at_s) if done < issued else None, timeout_s=self.plan.timeout_s,
        )  # fmt: skip

    def _peers(self, rank: int, issued: Sequence[Call], at_s: float) -> tuple[PeerView, ...]:
        found: dict[tuple[str, int], list[int]] = {}
        for (of, group, op, peer), count in self.counts.messages.items():
            if of == rank:
                counts = found.setdefault((group, peer), [0, 0, 0, 0])
                at = 0 if op is Op.SEND else 2
                counts[at], counts[at + 1] = counts[at] + count, counts[at + 1] + count
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

    def seq(self, call: Call) -> int:
        """Return the number that an operation has in its group."""
        step = call.step
        if call.needs is None:
            return self.counts.messages.get((call.rank, call.group, step.op, step.root), 0) + call.seq
        return self.counts.calls.get((call.rank, call.group), 0) + call.seq

    def _op(self, call: Call, at_s: float) -> OpView:
        step = call.step
        return OpView(
            group=call.group, seq=self.seq(call), op=step.op, dtype="" if step.op is Op.BARRIER else "float32",
            numel=step.numel, peer=step.root, reduce_op="sum" if step.op in _REDUCES else "", site=site_at(step.line),
            thread=1000 + call.rank, batch=step.batch, loader=1 if step.loader else 0, completed=call.done_s <= at_s,
            in_order=True, age_s=at_s - call.issued_s,
        )  # fmt: skip


class At:
    """Where one rank stands at one moment."""

    def __init__(self, sights: Sights, rank: int, at_s: float) -> None:
        run = sights.run
        self.sights, self.rank, self.at_s = sights, rank, at_s
        self.ended = run.ended_s[rank] <= at_s
        self.began = run.began_s[rank]
        self.begun = bisect_right(self.began, at_s)
        self.steps = run.steps[rank]
        self.step = self.steps[self.begun - 1] if 0 < self.begun <= len(self.steps) else None
        self.since_s = at_s - self.began[self.begun - 1] if self.begun else 0.0
        self.doing = sights.doing(self.step)

    @property
    def initialised(self) -> bool:
        """Whether init_process_group has returned."""
        later = self.steps[max(0, self.begun - 1) :]
        return not any(step.group == INIT for step in later[:4])

    @property
    def state(self) -> ProcessState:
        """Return what the kernel says of the process."""
        waits = self.step is not None and self.step.kind is Kind.CALL
        return ProcessState.SLEEPING if waits else self.doing.state

    @property
    def pulse_age_s(self) -> float:
        """Return for how long the interpreter's lock was not free."""
        return 0.2 if self.doing.pulse else 0.2 + self.since_s

    @property
    def activity_s(self) -> float:
        """Return since when the rank is in what it does, all of its pieces counted."""
        place = self.begun - 1
        while place > 0 and self.sights.doing(self.steps[place - 1]).name == self.doing.name:
            place -= 1
        return self.at_s - self.began[place]

    def still_s(self, sign: str) -> float:
        """Return for how long a sign of work has been missing."""
        place = self.begun - 1
        ends_s = self.at_s
        while 0 <= place < len(self.steps):
            step, doing = self.steps[place], self.sights.doing(self.steps[place])
            quiet = step.kind is Kind.CALL or (doing is not TRAINS and not getattr(doing, sign))
            if not quiet:
                break
            ends_s = self.began[place]
            place -= 1
        return self.at_s - ends_s

    @property
    def _site(self) -> CallSite:
        return site_at(self.step.line if self.step is not None else 1, self.doing.function)

    @property
    def peer_wait(self) -> WaitView | None:
        """Return the wait that only peers can end."""
        step = self.step
        if step is None or step.kind is not Kind.CALL:
            return None
        if step.group == INIT:
            return WaitView(kind=WaitKind.INIT, age_s=self.since_s, site=self._site)
        calls, times = self.sights.calls[self.rank], self.sights.times[self.rank]
        issued = bisect_right(times, self.at_s)
        if not issued:
            return None
        call = calls[issued - 1]
        if call.done_s <= self.at_s:
            return None
        return WaitView(
            kind=_WAITS.get(step.op, WaitKind.COLLECTIVE), age_s=self.since_s, group=call.group,
            seq=self.sights.seq(call), op=step.op, peer=step.root, site=self._site,
        )  # fmt: skip

    def thread(self, issued: int) -> ThreadView:
        """Return what its main thread does."""
        tid = 1000 + self.rank
        if self.step is None:
            return ThreadView(tid=tid, main=True, issued=issued)
        wait = self.peer_wait
        if wait is None and self.step.kind is Kind.DRAW:
            wait = WaitView(kind=WaitKind.DATA, age_s=self.since_s, site=self._site)
        elif wait is None and self.doing.wait is not None:
            wait = WaitView(kind=self.doing.wait, age_s=self.activity_s, site=self._site)
        still = self.step.kind is Kind.CALL or not self.doing.moves
        return ThreadView(
            tid=tid, main=True, issued=issued, wait=wait, doing=self._site, frames=(self._site,),
            leaf=f"{self.doing.function} train.py:{self.step.line}", same_s=self.since_s if still else 0.0,
            cpu_still_s=self.still_s("cpu"), in_kernel=self.doing.kernel, work=self.doing.work,
        )  # fmt: skip


def _save(rank: int, at_s: float, still_s: float, path: str, began_s: float, ended_s: float | None) -> SaveView:
    lasts_s = began_s - (ended_s or 0.0)
    written = int((lasts_s - still_s) * 1e8) + 1
    return SaveView(
        call="torch.save", path=path, tid=1000 + rank, began_s=began_s, ended_s=ended_s, site=site_at(60, "save"),
        file=path, identity=f"id:{path}", inode=7, written_bytes=written, filesystem="ext4", free_bytes=1 << 42,
        bytes_per_s=0.0 if still_s or ended_s is not None else 1e8, still_s=still_s,
    )  # fmt: skip


@lru_cache(maxsize=65536)
def key_of(name: str, plan: Plan) -> tuple[int, int]:
    """Return what stands for a group in digests, and for its name alone."""
    return group_key(name, digest_of(plan.groups[name])), name_key(name)


@lru_cache(maxsize=4096)
def site_at(line: int, function: str = "train") -> CallSite:
    """Return a line of the program."""
    return CallSite(file=FILE, line=line, function=function)
