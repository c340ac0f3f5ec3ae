"""Says what one rank looks like from the node: a row of a digest each second, and a whole view on request.

A digest needs the header of the ring alone (live words, group frontier, waits). Events are
looked at for the age of an unfinished operation only, and then once for each operation.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ncclwatch.contract import config
from ncclwatch.contract.digests import PROCESS_STATES
from ncclwatch.contract.machine.boot import host_name, pid_namespace
from ncclwatch.contract.machine.private_dirs import open_private
from ncclwatch.contract.model.rank import CallSite, Ending, LockFile, ProcessState, RankView, ThreadView, WaitKind
from ncclwatch.contract.on_hang.ways import RAISE
from ncclwatch.contract.ring import views
from ncclwatch.contract.ring.layout import Flag, LoaderFlag, Word
from ncclwatch.contract.ring.reader import Ring, Words
from ncclwatch.contract.ring.rows import GroupRow, ThreadRow, named_apart
from ncclwatch.contract.ring.views import Picture, age_s, parse_note
from ncclwatch.contract.wire import Loop
from ncclwatch_agent.process.file_locks import Polled
from ncclwatch_agent.process.rank_process import ProcessWatch
from ncclwatch_agent.ranks.delays import Delays
from ncclwatch_agent.ranks.device_waits import DeviceHabit, MessageAges
from ncclwatch_agent.ranks.endings import Death, merge
from ncclwatch_agent.ranks.facts import RankFacts
from ncclwatch_agent.ranks.preflight import FactsFile
from ncclwatch_agent.ranks.waits import awaited, keys, wait_age_s
from ncclwatch_agent.saves.lock_files import lock_file
from ncclwatch_agent.saves.progress import SaveWatch

UNTOLD_S = 8.0  # a host that has stood so long may be held up by its device, where nobody tells what that has finished
_OWN_WAITS = (WaitKind.DATA, WaitKind.SAVE)  # in which a rank runs code of its own
_UNTOLD = Flag.ASYNC | Flag.BLIND
STALE_PULSE_S = 5.0  # a process nobody can see, whose pulse is younger, lives in another PID namespace
_STATE_CODE = {state: code for code, state in enumerate(PROCESS_STATES)}
_HOST = host_name()
_U64 = 2**64 - 1
Row = tuple[float, ...]


class LocalRank:
    """One rank of this node: its ring, its process, and what was remembered since the last tick."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.words = ring.words()  # the live ones, as of the last look
        self._words_ns = 0
        self.path = ring.path
        self.header = ring.header
        self.identity = ring.identity()
        self.watch = ProcessWatch(ring.header.pid, ring.header.start_ticks)
        self.ending: Ending | None = None
        self.ended_ns = 0
        self.reported: Ending | None = None  # the ending that views were last sent of
        self.detached = False  # it took its patches off and wants no judgement
        self.gone = False  # no process runs any more
        self.gone_ns = 0  # since when
        self._messages = MessageAges()
        self._pending_since: dict[int, tuple[int, int]] = {}  # group row -> (completed, stamp of the next one)
        self._tids: tuple[int, ...] = ()
        self._completed: dict[int, int] = {}
        self._habit = DeviceHabit()
        self._saves = SaveWatch(ring.header.pid)
        self.facts = RankFacts(ring)
        self.place = open_private(str(Path(ring.path).parent)) if ring.place is None else ring.place.again()
        self.setup = FactsFile(self.place, ring.file_name)
        self._delays = Delays(ring, ring.header.pid)

    @property
    def rank(self) -> int:
        """The global rank."""
        return self.header.rank

    def close(self) -> None:
        """Close the ring and stop watching."""
        self.watch.close()
        self._delays.close()
        self.place.close()
        self.ring.close()

    def has_detached(self) -> bool:
        """Whether it has taken its patches off by now, whatever was seen at the last tick."""
        return self.ring.words()[Word.DETACHED] == 1

    def observe(self, now_ns: int) -> None:
        """Look at the process, and at what the rank said of its own end."""
        if not self.identity:
            self.identity = self.ring.identity()
        words = self.live_words(now_ns)
        self.detached = words[Word.DETACHED] == 1
        if not self.gone:
            used = words[Word.THREADS_USED]
            if len(self._tids) != used or used >= config.THREADS_KEPT:  # rows are taken over
                self._tids = tuple(row.tid for row in self.ring.threads(words))
            state = self.watch.observe(now_ns, self._tids)
            self.gone = state in (ProcessState.GONE, ProcessState.ZOMBIE)
            if self._is_elsewhere(now_ns, words):
                self.gone, self.watch.state = False, ProcessState.UNKNOWN
            self.gone_ns = (self.gone_ns or self._last_seen_ns(now_ns, words)) if self.gone else 0
            self._delays.observe(now_ns, self.watch.state, self.watch.scheduled_ns)
        self._saves.observe(now_ns, self.ring.saves(words), visible=self.is_here)
        status = self.watch.exit_status() if self.gone else None
        note = parse_note(self.ring.string(words[Word.ENDED])) if words[Word.ENDED] else None
        ending = merge(note, Death(gone=self.gone, status=status))
        if ending is None:
            return
        self.ended_ns = self.ended_ns or words[Word.ENDED_NS] or self.gone_ns or now_ns
        self.ending = replace(ending, age_s=age_s(now_ns, self.ended_ns))

    def started_ns(self) -> int:
        """Return when its process was started, in nanoseconds of the monotonic clock."""
        suspended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
        return self.header.start_ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK") - suspended_ns

    def live_words(self, now_ns: int) -> Words:
        """Return the live words as of this look. One look reads them once, however many things it asks of them."""
        if now_ns != self._words_ns:
            self.words, self._words_ns = self.ring.words(), now_ns
        return self.words

    @property
    def is_here(self) -> bool:
        """Whether its process is the one with its pid on this node: else nothing of that one may be read or written."""
        return self.watch.seen_alive and not self.gone

    @property
    def wants_notices(self) -> bool:
        """Whether it has asked for notices of hangs."""
        return self.identity.get("on_hang") == RAISE or self.identity.get("notes") == "1"

    @property
    def lives_on(self) -> bool:
        """Whether it has said that its program ends well, and its process does not end: it may stay for ever."""
        return self.ending is not None and self.ending.kind == "exited" and self.is_here

    def _is_elsewhere(self, now_ns: int, words: tuple[int, ...]) -> bool:
        """Whether the process was never visible here although its pulse goes on."""
        if not self.gone or self.watch.seen_alive or self.watch.state is ProcessState.ZOMBIE:
            return False
        if self.identity.get("pid_namespace", "") == pid_namespace() != "":
            return False
        return age_s(now_ns, words[Word.PULSE_NS] or self.header.created_ns) < STALE_PULSE_S

    def _last_seen_ns(self, now_ns: int, words: Words) -> int:
        """Return when a process that is gone was there last: one that was never seen here has left its pulse."""
        return now_ns if self.watch.seen_alive else words[Word.PULSE_NS] or self.header.created_ns

    def is_leftover(self, now_ns: int, old_s: float) -> bool:
        """Whether this ring belongs to a process that was dead for long when the agent first saw it."""
        pulse_ns = self.ring.words()[Word.PULSE_NS] or self.header.created_ns
        return self.gone and not self.watch.seen_alive and age_s(now_ns, pulse_ns) > old_s

    def rows(self, now_ns: int) -> tuple[Row, list[Row]]:
        """Return the values of digests.RANK_FIELDS, and of digests.GROUP_FIELDS for each group."""
        words = self.live_words(now_ns)
        threads = self.ring.threads(words)
        groups = [(row, self._pending_s(row, now_ns)) for row in named_apart(self.ring.groups(words))]
        pending_s = max((seconds for _, seconds in groups), default=0.0)
        device_s = max((seconds for row, seconds in groups if row.flags & ~Flag.LATE == Flag.ASYNC), default=0.0)
        message = self._messages.oldest(self.ring, [row for row, _ in groups], now_ns)
        if message is not None:
            device_s = max(device_s, message.age_s)
        rank_row = (
            self.rank,
            _STATE_CODE[self.watch.state],
            int(self.ending is not None and not self.lives_on),
            int(words[Word.INITIALISED] == 1),
            int(self.detached),
            age_s(now_ns, words[Word.PULSE_NS] or self.header.created_ns),
            # A device waits, wherever its host stands.
            max(wait_age_s(threads, pending_s, now_ns), self._habit.unusual_s(device_s)),
            sum(row.issued for row in threads) & _U64,
            sum(row.completed for row, _ in groups) & _U64,
            words[Word.STEPS],
            *awaited(threads, groups, now_ns, message),
            self._saves.key(),
            *self._noted(threads, [row for row, _ in groups], now_ns),
            *self._delays.row(words, [row for row, _ in groups], now_ns, self.facts.gpu_slow),
        )
        return rank_row, [group_values(self.rank, row, seconds) for row, seconds in groups]

    def _noted(self, threads: Sequence[ThreadRow], groups: Sequence[GroupRow], now_ns: int) -> tuple[int, int]:
        """Return the values of `device` and `noted`."""
        device, noted = self.facts.row(now_ns, self.words)
        main = next((row for row in threads if row.main), None)
        if noted or main is None or not any(row.flags & _UNTOLD == _UNTOLD for row in groups):
            return device, noted
        sample = self.ring.sample(main.number)
        still = sample is not None and sample[1].get("issued", main.issued) == main.issued
        return device, int(sample is not None and still and age_s(now_ns, sample[0]) >= UNTOLD_S)

    def _pending_s(self, row: GroupRow, now_ns: int) -> float:
        """Return the age of a group's oldest unfinished operation, 0 if there is none.

        While the group makes progress, its newest operation gives a lower bound without a scan;
        the events are scanned once for each operation that outlives a tick.
        """
        if row.completed >= row.enqueued or row.newest_event < 0 or row.flags & Flag.BLIND:
            return 0.0
        known = self._pending_since.get(row.number)
        if known is None or known[0] != row.completed:
            moved = self._completed.get(row.number) != row.completed
            self._completed[row.number] = row.completed
            if moved and row.enqueued - row.completed > 1:
                event = self.ring.event(row.newest_event)
                return age_s(now_ns, event.time_ns) if event else 0.0
            event = views.pending_event(self.ring, row)
            known = (row.completed, event.time_ns if event else now_ns)
            self._pending_since[row.number] = known
        return age_s(now_ns, known[1])

    def loop(self, now_ns: int) -> Loop | None:
        """Return the loop over data that this rank is in, or was in last."""
        row = self.ring.newest_loader(self.live_words(now_ns))
        site = views.parse_site(self.ring.string(row.site)) if row is not None else None
        if row is None or site is None:
            return None
        buckets = self.ring.buckets()
        return Loop(
            rank=self.rank,
            loader=f"{site.file}:{site.line}"[-config.TEXT_CHARS_MAX :],
            number=row.passes,
            drawn=row.drawn,
            length=row.length,
            ended=row.passes > 0 and row.ended_pass == row.passes,
            even=bool(row.flags & LoaderFlag.EVEN),
            buckets=views.bucket_counts(buckets, row.number, row.passes),
            function=site.function[-config.TEXT_CHARS_MAX :],
            costs=views.bucket_costs(buckets, row.number),
        )

    def view(self, now_ns: int) -> RankView:
        """Return everything the ring and /proc say of this rank now; the sources are somebody else's part."""
        picture = Picture.of(self.ring, now_ns)
        view = views.rank_view(picture)
        self.facts.read()
        return replace(
            view,
            host=view.host or _HOST,
            process=replace(self.watch.view(now_ns, _polled(picture, view)), lock_file=self._lock_file(view)),
            ending=self.ending,
            threads=tuple(self._with_kernel(thread, now_ns) for thread in view.threads),
            saves=self._saves.views(picture, visible=self.is_here),
            cuda=self.facts.device,
        )

    def _lock_file(self, view: RankView) -> LockFile | None:
        """Return the file that the main thread cannot make because it is there."""
        path = next((thread.exception_path for thread in view.threads if thread.main), "")
        return lock_file(self.header.pid, path) if path and self.is_here else None

    def _with_kernel(self, thread: ThreadView, now_ns: int) -> ThreadView:
        """Return a thread of the ring with what the kernel says of it."""
        return replace(
            thread,
            cpu_still_s=self.watch.thread_still_s(thread.tid, now_ns),
            in_kernel=self.watch.in_kernel(thread.tid),
            alive=self.watch.thread_alive(thread.tid),
        )


def group_values(rank: int, row: GroupRow, pending_s: float) -> Row:
    """Return the values of digests.GROUP_FIELDS."""
    key, name = keys(row.name, row.roster.digest)
    return rank, pending_s, key, row.enqueued, _hash(row), row.enqueued - row.completed & 0xFFFFFFFF, name


def _hash(row: GroupRow) -> int:
    return 0 if row.flags & Flag.LATE else row.prefix_hash


def _route(view: RankView, number: int) -> tuple[CallSite, ...]:
    return view.routes[number - 1] if 0 < number <= len(view.routes) else ()


def sites_to_read(view: RankView) -> tuple[CallSite, ...]:
    """Return the call sites whose source is worth reading: waits first, then what was issued last."""
    found: list[CallSite | None] = []
    for thread in view.threads:
        found += [thread.wait.site if thread.wait else None, thread.doing, thread.exception_site]
    found += [site for thread in view.threads for site in thread.frames]
    found += [group.pending.site for group in view.groups if group.pending]
    found += [group.site for group in view.groups[: config.SOURCES_MAX // 4]]
    found += [site for op in view.history[:-3:-1] for site in _route(view, op.route)]
    found += [view.ending.site if view.ending else None, view.last_exception_site]
    found += [site for op in reversed(view.history) for site in _route(view, op.route) or (op.site,)]
    distinct = dict.fromkeys(site for site in found if site is not None)
    return tuple(distinct)[: config.SOURCES_MAX]


def _polled(picture: Picture, view: RankView) -> Polled | None:
    """Return the file lock that a rank says it polls for, None if it has got it or has gone on to an operation."""
    words = picture.words
    inode = words[Word.LOCK_POLLED]
    inside = any(each.wait is not None and each.wait.kind not in _OWN_WAITS for each in view.threads if each.main)
    if not inode or inside:
        return None
    for_s, tried_s = (picture.age_s(words[word]) for word in (Word.LOCK_SINCE_NS, Word.LOCK_TRIED_NS))
    return Polled(inode=inode, for_s=for_s, tried_s=tried_s)
