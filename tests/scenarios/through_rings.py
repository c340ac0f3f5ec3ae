"""Writes what a scenario says of a rank into a real ring, with the recorder's own code, and reads it with the agent's.

What the node adds from outside of the ring (the process, the kernel's part of a thread, the file of a save, sources)
is taken over as it was: no ring has it.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

from ncclwatch.contract import config
from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import (
    CallSite,
    GroupView,
    LoaderView,
    OpView,
    PeerView,
    RankView,
    SaveView,
    ThreadView,
    WaitView,
)
from ncclwatch.contract.ring import facts
from ncclwatch.contract.ring import layout as ring_layout
from ncclwatch.contract.ring.call_sites import SiteText, write
from ncclwatch.contract.ring.layout import (
    BATCH_BITS,
    DTYPES,
    OPS,
    REDUCE_OPS,
    Flag,
    LoaderFlag,
    PeerFlag,
    PeerWord,
    Word,
)
from ncclwatch.contract.ring.modules import write as write_module
from ncclwatch.contract.wire import Loop
from ncclwatch.rank.operations import NO_ROW, Group, Issued
from ncclwatch_server.simulation.hearing import arrived
from ncclwatch_server.simulation.rings import NOW_NS, SimulatedRing


def through_rings(snapshot: JobSnapshot) -> JobSnapshot:
    """Return a job with each rank as it is read from a ring of its own and sent to the server."""
    views = arrived(tuple(map(through_ring, snapshot.ranks.values())))
    return dataclasses.replace(snapshot, ranks=dict(zip(snapshot.ranks, views, strict=True)))


def through_ring(view: RankView) -> RankView:
    """Return a rank as it is read from a ring; one that nobody has attached to has none."""
    return read_back(view).view if view.attached else view


class ReadBack(NamedTuple):
    """What the agent reads from the ring of a rank."""

    view: RankView
    row: tuple[float, ...]  # of a digest
    groups: tuple[tuple[float, ...], ...]  # of a digest
    loop: Loop | None


@cache  # several tests ask for each, and a rank that only waits is the same in many scenarios
def read_back(view: RankView) -> ReadBack:
    """Return what is read from the ring of a rank, and what the node adds to its view."""
    with written(view) as ring:
        row, groups = ring.rows()
        return ReadBack(as_the_node_sees(ring.view(), view), row, tuple(groups), ring._read.loop(NOW_NS))


@contextmanager
def written(view: RankView) -> Iterator[SimulatedRing]:
    """Write the ring of a rank, and keep it until it is read."""
    with SimulatedRing(
        rank=view.rank, local_rank=view.local_rank, world=(view.world_size, view.local_world_size),
        attempt=view.attempt,
    ) as ring:  # fmt: skip
        _Writing(ring, view).all()
        yield ring


def as_the_node_sees(read: RankView, given: RankView) -> RankView:
    """Return what was read from a ring, with what the node adds."""
    threads = {thread.tid: thread for thread in given.threads}
    saves = {(save.tid, save.path): save for save in given.saves}
    return dataclasses.replace(
        read,
        pid=given.pid, process=given.process, ending=given.ending, sources=given.sources,
        news_age_s=given.news_age_s, taken_s=given.taken_s,
        threads=tuple(_with_kernel(thread, threads[thread.tid]) for thread in read.threads),
        saves=tuple(_with_file(save, saves[save.tid, save.path]) for save in read.saves),
        cuda=dataclasses.replace(read.cuda, trouble=given.cuda.trouble) if read.cuda and given.cuda else None,
    )  # fmt: skip


def _with_kernel(read: ThreadView, given: ThreadView) -> ThreadView:
    return dataclasses.replace(read, cpu_still_s=given.cpu_still_s, in_kernel=given.in_kernel, alive=given.alive)


def _with_file(read: SaveView, given: SaveView) -> SaveView:
    ring = ("call", "path", "tid", "began_s", "ended_s", "site", "error")
    return dataclasses.replace(given, **{name: getattr(read, name) for name in ring})


class _Writing:
    """One rank on its way into its ring."""

    def __init__(self, ring: SimulatedRing, view: RankView) -> None:
        self.ring, self.view = ring, view
        self.rows: dict[int, int] = {}
        self.groups: dict[str, Group] = {}
        self.issued: dict[tuple[object, ...], Issued] = {}
        self.told: set[int] = set()  # peers whose counts are written

    def all(self) -> None:
        """Write everything that the view says."""
        self._words()
        for loader in self.view.loaders:
            self._loader(loader)
        for thread in self.view.threads:
            self.rows[thread.tid] = self.ring.add_thread(thread.tid, main=thread.main)
        for group in self.view.groups:
            self.groups[group.name] = self.ring.recorder.add_group(
                group.name, group.desc, list(group.ranks), 0, self._site(group.site)
            )
            self._lost_members(group)
        for op in self.view.history:
            self._operation(op)
        for peer in self.view.peers:
            self._peer(peer)
        for group in self.view.groups:
            self._frontier(group)
        for thread in self.view.threads:
            self._thread(thread)
        for save in self.view.saves:
            self._save(save)
        self._exception()

    def _lost_members(self, group: GroupView) -> None:
        """Write the number of a group's members where their list found no room."""
        if group.ranks:
            return
        at = ring_layout.GROUPS_AT + self.groups[group.name].number * ring_layout.GROUP_BYTES
        at += ring_layout.GROUP_SIZE_AT
        data = ring_layout.GROUP_SIZE.pack(group.size, group.members_digest)
        self.ring.file.memory[at : at + len(data)] = data

    def _words(self) -> None:
        ring, view = self.ring, self.view
        ring.say(Word.IDENTITY, json.dumps({"host": view.host}))
        ring.say(Word.DEVICE, view.device)
        ring.say(Word.ENDPOINT, view.endpoint)
        ring.say(Word.PHASE, view.phase)
        ring.file.set_word(Word.PHASE_NS, ring.turn_back(view.phase_s))
        ring.file.set_word(Word.INITIALISED, int(view.initialised))
        ring.file.set_word(Word.STEPS, view.steps)
        ring.file.set_word(Word.FORWARDS, view.forwards)
        ring.file.set_word(Word.TIMEOUT_MS, round(view.timeout_s * 1000))
        ring.file.set_word(Word.GROUPS_HELD, view.groups_held)
        ring.file.set_word(Word.GROUPS_COUNTED, view.groups_counted)
        ring.file.set_word(Word.FREE_THREADS, view.free_threads)
        if view.keys_set:
            ring.recorder.facts.tell(facts.KEYS, set=list(view.keys_set))
        if view.ended_thread is not None:
            said = dataclasses.asdict(view.ended_thread)
            at_ns = ring.turn_back(said.pop("age_s"))
            ring.recorder.facts.tell(facts.THREAD, at_ns=at_ns, **said, **(said.pop("site") or {}))
        if view.cuda is not None:
            ring.recorder.facts.tell(facts.DEVICE, **dataclasses.asdict(view.cuda))
        if view.rng is not None:
            said = dataclasses.asdict(view.rng)
            ring.recorder.facts.tell(facts.RNG, **said, **(said.pop("site") or {}))
        ring.beat(view.pulse_age_s)

    def _site(self, site: CallSite | None, op: OpView | None = None, label: str = "") -> int:
        """Return the id of a line, with what is known of the operation, or of the wait, that was made there."""
        if site is None and not (op and op.label):
            return 0
        route = self.view.routes[op.route - 1][1:] if op and op.route else ()
        text = SiteText(
            *((site.file, site.line, site.function) if site else ("", 0, "")),
            label=op.label if op else label,
            callers=tuple(self._site(caller) for caller in route),
            module=self.view.modules[op.module - 1] if op and op.module else None,
        )
        return self.ring.file.string(write(text))

    def _operation(self, op: OpView) -> None:
        recorder, group = self.ring.recorder, self.groups[op.group]
        group.seqs = itertools.count(op.seq)
        if op.op.is_p2p:
            row, _ = group.peers.get(op.peer) or (self.ring.file.add_peer(group.number, op.peer), [])
            group.peers[op.peer] = (row, [op.seq - 1] * 4)
            self.ring.file.set_peer(row, [op.seq - 1] * 4)
        self.ring.be_thread(self.rows.get(op.thread, NO_ROW), 0)
        recorder.batch_word = op.loader << BATCH_BITS | op.batch
        recorder.forwards = op.forwards
        self.ring.turn_back(op.age_s)
        signature = (op.peer, DTYPES.index(op.dtype), REDUCE_OPS.index(op.reduce_op))
        site = self._site(op.site, op)
        issued = recorder.issue(group, OPS.index(op.op), op.numel, signature, site, op.in_order)
        self.issued[op.group, op.seq, op.op, op.peer] = issued

    def _peer(self, peer: PeerView) -> None:
        group = self.groups[peer.group]
        row, before = group.peers.get(peer.peer) or (self.ring.file.add_peer(group.number, peer.peer), [0, 0, 0, 0])
        if peer.peer not in self.told:  # what its operations counted: the view knows better what is through
            before = [0, 0, 0, 0]
            self.told.add(peer.peer)
        said = (peer.sends, peer.sends_completed, peer.recvs, peer.recvs_completed)
        counts = [max(pair) for pair in zip(before, said, strict=True)]
        group.peers[peer.peer] = (row, counts)
        self.ring.file.set_peer(row, counts)
        if peer.told:
            doing = PeerFlag.SENDING * bool(peer.sending) | PeerFlag.RECEIVING * bool(peer.receiving)
            flags = PeerFlag.TOLD | doing
            self.ring.file.set_peer(row, (group.number | flags << 16,), PeerWord.GROUP_AND_FLAGS)

    def _frontier(self, said: GroupView) -> None:
        group, recorder = self.groups[said.name], self.ring.recorder
        frontier = (said.prefix_hash, said.enqueued, said.completed, group.newest_event + 1)
        self.ring.file.set_group(group.number, frontier)
        self.ring.file.limit_group(group.number, round(said.timeout_s * 1000))
        flags = {
            Flag.DESTROYED: said.destroyed, Flag.ASYNC: said.asynchronous, Flag.BLIND: said.blind,
            Flag.LATE: said.late,
        }  # fmt: skip
        for flag, is_set in flags.items():
            recorder.flag(group, flag, is_set)

    def _thread(self, thread: ThreadView) -> None:
        row = self.rows[thread.tid]
        self.ring.be_thread(row, thread.issued)
        self.ring.file.set_thread_issued(row, thread.issued)
        if thread.wait is not None:
            self.ring.file.set_making(row, thread.wait.members)
            self._wait(thread.wait)
        found = {
            "name": thread.name, "leaf": thread.leaf, "call": thread.calling, "exc": thread.exception,
            "exc_path": thread.exception_path,
            "work": thread.work.value if thread.work else "",
            "frames": [[site.file, site.line, site.function] for site in thread.frames],
            "module": write_module(thread.module) if thread.module else "",
            "modes": [write_module(mode) for mode in self.view.modes] if thread.main else [],
        }  # fmt: skip
        found |= _place(thread.exception_site)
        if any(found.values()) or thread.same_s:
            since_ns = self.ring.turn_back(self.view.pulse_age_s + thread.same_s)
            self.ring.file.set_sample(row, since_ns, {name: each for name, each in found.items() if each})

    def _wait(self, wait: WaitView) -> None:
        self.ring.turn_back(wait.age_s)
        if not wait.group:
            self.ring.recorder.enter(wait.kind, self._site(wait.site, label=wait.label), number=wait.seq)
            return
        issued = self.issued.get((wait.group, wait.seq, wait.op, wait.peer)) or Issued(
            self.groups[wait.group], OPS.index(wait.op), wait.seq, self._site(wait.site), wait.peer, 0, 0, 0
        )
        self.ring.recorder.enter(wait.kind, issued.site, issued)

    def _loader(self, loader: LoaderView) -> None:
        file, site = self.ring.file, self._site(loader.site)
        row = file.add_loader(site)
        ended = loader.passes if loader.exhausted else loader.passes - 1 if loader.last_drawn else 0
        file.set_loader(row, site, loader.passes, loader.length)
        file.set_loader_counts(row, loader.drawn, ended)
        file.set_loader_last(row, loader.last_drawn)
        file.set_loader_flags(row, LoaderFlag.EVEN if loader.even else 0)

    def _save(self, save: SaveView) -> None:
        began_ns = self.ring.turn_back(save.began_s)
        ended_ns = self.ring.turn_back(save.ended_s) if save.ended_s is not None else 0
        said = {"call": save.call, "path": save.path, "error": save.error}
        self.ring.file.set_save(self.rows[save.tid], (began_ns, ended_ns), self._site(save.site), said)

    def _exception(self) -> None:
        if self.view.last_exception:
            since_ns = self.ring.turn_back(self.view.last_exception_s)
            found = {"exc": self.view.last_exception} | _place(self.view.last_exception_site)
            self.ring.file.set_sample(config.THREADS_MAX, since_ns, found)


def _place(site: CallSite | None) -> dict[str, object]:
    return {} if site is None else {"exc_file": site.file, "exc_line": site.line, "exc_function": site.function}
