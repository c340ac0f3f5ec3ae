"""Watches a rank's process by what the kernel says: its state, whether it works, and how it ended.

Progress is measured over MEASURE_S at least, because the kernel counts CPU time in ticks of 10 ms.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ncclwatch.contract.model.rank import ProcessState, ProcessView, TimedWait
from ncclwatch_agent.process.answers import Pauses, awaits_answer, awaits_children
from ncclwatch_agent.process.births import Births
from ncclwatch_agent.process.connections.traffic import Traffic
from ncclwatch_agent.process.file_locks import Polled, lock_path, lock_wait, may_be_in_lock, polled_lock
from ncclwatch_agent.process.halted import is_halted
from ncclwatch_agent.process.pidfd import PidFd
from ncclwatch_agent.process.procfs import ProcFile, Stat, descendants, kernel_place, parse_io, parse_stat, read_text
from ncclwatch_agent.process.timed_waits import timed_wait

MEASURE_S = 0.9  # shortest interval over which progress is judged
CPU_STILL_SHARE = 0.02  # of a core; a rank's own pulse thread uses about 0.001
IO_STILL_BYTES = 4096  # per second; less is somebody's log line, not work
CPU_BURST_S, IO_BURST_BYTES = 0.1, 65_536  # what somebody else in the process may do at once, now and then
QUIET_S = 2.0  # without CPU, before anybody asks what it moves by recv() and send()
CHILDREN_MAX = 64  # per rank, watched closely; DataLoader workers and what they started
DESCENDANTS_MAX = 512  # per rank; of the others the CPU time alone is read, as of a pool that maps a dataset
FROZEN = (ProcessState.STOPPED, ProcessState.TRACED, ProcessState.DISK_WAIT)  # and cannot answer anything
CHILDREN_EVERY = 3  # observations between two looks for new children
SPARED_MAX = 9  # looks in a row that are left out because nothing was born on this node

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class Meter:
    """For how long a running total has grown by less than a rate. Time is an argument.

    While it grows by less, what is left of the rate is saved, up to a `burst`, and a little work that comes at once may
    use it up: the line that a logging thread writes every ten seconds is no sign that a rank goes on.
    """

    __slots__ = ("_burst", "_grown", "_measured_ns", "_moved_ns", "_rate", "_saved", "_still")

    def __init__(self, rate_per_s: float, burst: float = 0.0) -> None:
        self._rate, self._burst = rate_per_s, burst
        self._saved = 0.0
        self._grown = 0.0
        self._measured_ns = 0
        self._moved_ns = 0
        self._still = False

    def add(self, grown: float, now_ns: int) -> None:
        """Take what the total grew by since the last call; the first call only sets the beginning."""
        if self._measured_ns == 0:
            self._measured_ns = self._moved_ns = now_ns
            return
        self._grown += grown
        interval_s = (now_ns - self._measured_ns) / 1e9
        if interval_s < MEASURE_S:
            return
        left = self._rate * interval_s - self._grown
        self._still = left > 0 or (self._still and self._saved + left > 0)
        self._saved = min(self._burst, self._saved + left) if self._still else 0.0
        if not self._still:
            self._moved_ns = now_ns
        self._grown, self._measured_ns = 0.0, now_ns

    def still_s(self, now_ns: int) -> float:
        """Return for how long it has been still; 0 while it moves or nothing is known yet."""
        return (now_ns - self._moved_ns) / 1e9 if self._still else 0.0


class _Counters:
    """CPU time (also of children that were waited for) and I/O of one process, as growth since the last look."""

    __slots__ = ("_cpu_ticks", "_io", "_io_bytes", "_stat", "io_unknown", "pid")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._stat = ProcFile(f"/proc/{pid}/stat")
        self._io = ProcFile(f"/proc/{pid}/io")
        self._cpu_ticks = self._io_bytes = -1
        self.io_unknown = False

    def look(self) -> tuple[Stat | None, float, int]:
        """Return (stat, CPU seconds since the last look, bytes since the last look)."""
        stat = parse_stat(self._stat.read())
        if stat is None:
            return None, 0.0, 0
        ticks = stat.cpu_ticks + stat.reaped_ticks  # a child may come and go between two looks
        cpu_s = (ticks - self._cpu_ticks) * _TICK_S if self._cpu_ticks >= 0 else 0.0
        self._cpu_ticks = ticks
        total = parse_io(self._io.read())
        self.io_unknown = total is None and stat.state is not ProcessState.ZOMBIE
        grown = total - self._io_bytes if total is not None and self._io_bytes >= 0 else 0
        self._io_bytes = self._io_bytes if total is None else total
        return stat, max(0.0, cpu_s), max(0, grown)

    def close(self) -> None:
        self._stat.close()
        self._io.close()


class _ThreadCounter:
    """CPU time of one thread."""

    __slots__ = ("_file", "_ran_ns", "_turns", "alive", "meter", "ran_at_ns", "scheduled_ns")

    def __init__(self, pid: int, tid: int) -> None:
        self._file = ProcFile(f"/proc/{pid}/task/{tid}/schedstat")
        self._ran_ns = self._turns = -1
        self.ran_at_ns = 0  # the look at which it had last had a core since the one before
        self.scheduled_ns = 0, 0  # on a core; ready to run, and without one
        self.meter = Meter(CPU_STILL_SHARE, CPU_BURST_S)
        self.alive = True

    def look(self, now_ns: int) -> None:
        fields = self._file.read().split()
        self.alive = bool(fields) or self._file.refused
        if not fields:
            return
        ran_ns = int(fields[0])
        self.scheduled_ns = ran_ns, int(fields[1]) if len(fields) > 1 else 0
        turns = int(fields[2]) if len(fields) > 2 else -1
        if turns != self._turns or turns < 0:
            self._turns, self.ran_at_ns = turns, now_ns
        self.meter.add((ran_ns - self._ran_ns) / 1e9 if self._ran_ns >= 0 else 0.0, now_ns)
        self._ran_ns = ran_ns

    def close(self) -> None:
        self._file.close()


class ProcessWatch:
    """Watches one process from outside. Never disturbs it, never waits for it, never raises.

    `start_ticks` is when the process that we mean was started: if the pid belongs to another
    one by now, ours is gone.
    """

    def __init__(self, pid: int, start_ticks: int) -> None:
        self.pid = pid
        self.pidfd = PidFd(pid)
        self.state = ProcessState.UNKNOWN
        self.parent = 0
        self.seen_alive = False
        self._counters = _Counters(pid)
        self._start_ticks = start_ticks
        self._children: dict[int, _Counters] = {}
        self._others: dict[int, int] = {}  # ticks of the descendants beyond those
        self._threads: dict[int, _ThreadCounter] = {}
        self._holder: _Counters | None = None  # of the file lock that it waits for
        self._resting: dict[int, _ThreadCounter] = {}  # main threads of children, while all of them show no work
        self._cpu = Meter(CPU_STILL_SHARE, CPU_BURST_S)
        self._io = Meter(IO_STILL_BYTES, IO_BURST_BYTES)
        self._answering = 0  # questions of ours that it is answering
        self._owed = (0.0, 0)  # CPU seconds and bytes of its own since the last look, read before we asked
        self._looks = 0
        self._pauses = Pauses(pid)
        self._traffic = Traffic()
        self._births = Births.of_this_node()
        self._newest = self._spared = 0  # as of the last look for children; looks since then that were left out
        self._exit_status: int | None = None
        self._stopped_child = self._killed_child = self._killed_by = 0

    def observe(self, now_ns: int, tids: Iterable[int] = ()) -> ProcessState:
        """Look once: state, progress of the process with its live children, and of these threads."""
        stat, cpu_s, io_bytes = self._counters.look()
        if stat is None or stat.start_ticks != self._start_ticks or stat.state is ProcessState.GONE:
            self.state = ProcessState.GONE
            return self.state
        self.state, self.parent = stat.state, stat.parent
        if stat.state in (ProcessState.STOPPED, ProcessState.TRACED) and is_halted(self.pid):
            self.state = ProcessState.SLEEPING  # it was, or it ran, when the agent halted it
        if stat.state is ProcessState.ZOMBIE:
            self._exit_status = stat.exit_status
            return self.state
        self.seen_alive = True
        cpu_s, io_bytes = self._own(cpu_s, io_bytes)
        self._stopped_child = self._killed_child = self._killed_by = 0
        for child in self._live_children():
            found, child_cpu_s, child_bytes = child.look()
            if found is not None:
                self._note_trouble(child.pid, found)
                cpu_s, io_bytes = cpu_s + child_cpu_s, io_bytes + child_bytes
        cpu_s += self._cpu_of_others()
        if self._holder is not None:
            _, holder_cpu_s, holder_bytes = self._holder.look()
            cpu_s, io_bytes = cpu_s + holder_cpu_s, io_bytes + holder_bytes
        self._cpu.add(cpu_s, now_ns)
        if self._cpu.still_s(now_ns) >= QUIET_S:
            io_bytes += self._traffic.look((self.pid, *self._children), now_ns)
        self._io.add(io_bytes, now_ns)
        self._look_at_rest(now_ns)
        self._look_at_threads(now_ns, frozenset(tids))
        self._looks += 1
        return self.state

    def _look_at_threads(self, now_ns: int, tids: frozenset[int]) -> None:
        """See what each of these threads does. One that is asked for no longer costs no descriptor."""
        for tid in self._threads.keys() - tids:
            self._threads.pop(tid).close()
        for tid in tids:
            thread = self._threads.get(tid)
            if thread is not None and not thread.alive:  # another thread may have its number by now
                thread.close()
                thread = None
            if thread is None:
                thread = self._threads[tid] = _ThreadCounter(self.pid, tid)
            thread.look(now_ns)

    def _look_at_rest(self, now_ns: int) -> None:
        """See which children go on resting, once neither the process nor any of them has used a core for a while."""
        resting = self._children.keys() if self._cpu.still_s(now_ns) > 0 else ()
        for pid in self._resting.keys() - resting:
            self._resting.pop(pid).close()
        for pid in resting:
            if pid not in self._resting:
                self._resting[pid] = _ThreadCounter(pid, pid)
            self._resting[pid].look(now_ns)

    def _watch_holder(self, pid: int) -> None:
        """Take the work of who holds a lock for work of this process, which waits for it; a rank is judged itself."""
        if self._holder is not None and self._holder.pid != pid:
            self._holder.close()
            self._holder = None
        if pid and self._holder is None and pid not in self._children:
            holder = _Counters(pid)
            stat, _, _ = holder.look()
            if stat is None or stat.parent == self.parent:  # the ranks of a node have one parent
                holder.close()
            else:
                self._holder = holder

    def _note_trouble(self, pid: int, child: Stat) -> None:
        if child.state in (ProcessState.STOPPED, ProcessState.TRACED):
            self._stopped_child = self._stopped_child or pid
        killed = child.state is ProcessState.ZOMBIE and os.WIFSIGNALED(child.exit_status)
        if killed and not self._killed_child:
            self._killed_child, self._killed_by = pid, os.WTERMSIG(child.exit_status)

    @contextlib.contextmanager
    def overlooking(self) -> Iterator[None]:
        """Take nothing that the process does meanwhile for a sign of work: it answers us.

        Writing down 2,000 operations takes tens of milliseconds of CPU, and a rank that stands still would seem to
        have gone on.
        """
        _, cpu_s, io_bytes = self._counters.look()
        cpu_s, io_bytes = self._own(cpu_s, io_bytes)
        self._owed = (cpu_s, io_bytes)
        self._answering += 1
        try:
            yield
        finally:
            self._counters.look()
            self._answering -= 1

    def _own(self, cpu_s: float, io_bytes: int) -> tuple[float, int]:
        """Return what of a growth is the process's own, with what is owed from before."""
        owed_cpu_s, owed_bytes = self._owed
        self._owed = (0.0, 0)
        if self._answering:
            return owed_cpu_s, owed_bytes
        return owed_cpu_s + cpu_s, owed_bytes + io_bytes

    def _live_children(self) -> list[_Counters]:
        """Return the counters of the children, of theirs, and so on; new ones are looked for now and then."""
        if self._looks % CHILDREN_EVERY or not self._may_have_more():
            return list(self._children.values())
        found = descendants(self.pid, DESCENDANTS_MAX)
        keep = set(found[:CHILDREN_MAX])
        self._others = {pid: self._others.get(pid, -1) for pid in found[CHILDREN_MAX:]}
        for pid in self._children.keys() - keep:
            self._children.pop(pid).close()
        for pid in keep - self._children.keys():
            self._children[pid] = _Counters(pid)
        return list(self._children.values())

    def _cpu_of_others(self) -> float:
        """Return the CPU seconds since the last look of the descendants that are not watched closely."""
        spent = 0
        for pid, before in self._others.items():
            stat = parse_stat(read_text(f"/proc/{pid}/stat").encode())
            if stat is not None:
                ticks = self._others[pid] = stat.cpu_ticks + stat.reaped_ticks
                spent += ticks - before if before >= 0 else 0
        return max(0, spent) * _TICK_S

    def _may_have_more(self) -> bool:
        """Whether any process was born since its children were looked for: of 150 threads each is asked for its own."""
        newest = self._births.newest()
        self._spared = self._spared + 1 if newest and newest == self._newest else 0
        self._newest = newest
        if self._spared > SPARED_MAX:
            self._spared = 0
        return self._spared == 0

    def exit_status(self) -> int | None:
        """Return with which status the process ended, as waitpid() gives it; None if that is not known."""
        if self._exit_status is None:
            stat, _, _ = self._counters.look()
            if stat is not None and stat.start_ticks == self._start_ticks and stat.state is ProcessState.ZOMBIE:
                self._exit_status = stat.exit_status
            elif self.seen_alive:  # or the pidfd may be that of another process with the same pid
                self._exit_status = self.pidfd.exit_status()
        return self._exit_status

    def view(self, now_ns: int, polled: Polled | None = None) -> ProcessView:
        """Return what is known of the process now. `polled` is what it says itself of a lock."""
        asleep = self.state is ProcessState.SLEEPING
        place = self.in_kernel(self.pid)
        lock = lock_wait(self.pid) if asleep and may_be_in_lock(place) else None
        lock = lock or (polled_lock(polled) if asleep else None)
        self._watch_holder(lock.holder if lock else 0)
        pauses = asleep and self._pauses.look(now_ns / 1e9)
        return ProcessView(
            lock_holder=lock.holder if lock else 0,
            lock_path=lock_path(lock.holder if lock.polled_s else self.pid, lock.inode) if lock else "",
            lock_polled_s=lock.polled_s if lock else 0.0,
            state=self.state,
            cpu_still_s=self._cpu.still_s(now_ns),
            io_still_s=0.0 if self._counters.io_unknown else self._io.still_s(now_ns),
            io_unknown=self._counters.io_unknown,
            in_kernel=place,
            stopped_child=self._stopped_child,
            killed_child=self._killed_child,
            killed_by=self._killed_by,
            timed=self._timed(now_ns) if asleep else None,
            awaits_answer=asleep and (pauses or awaits_answer(self.pid, self._children)),
        )

    def _timed(self, now_ns: int) -> TimedWait | None:
        """Return the wait of the main thread that ends by itself, or the longest sleep of a process that it started."""
        own = timed_wait(self.pid, _rested_s(self._threads.get(self.pid), now_ns))
        if own is not None and own.asleep:
            return own
        started = ((pid, timed_wait(pid, _rested_s(self._resting.get(pid), now_ns))) for pid in self._children)
        sleeps = [replace(each, child=pid) for pid, each in started if each is not None and each.asleep]
        if not sleeps:
            return own
        return replace(max(sleeps, key=lambda each: each.whole_s), awaited=awaits_children(self.pid))

    def in_kernel(self, tid: int) -> str:
        """Return where a thread sits in the kernel, "" if it runs, is gone, or nobody may look."""
        if self.state in (ProcessState.GONE, ProcessState.ZOMBIE):
            return ""
        task = f"/proc/{self.pid}/task/{tid}"
        return kernel_place(read_text(f"{task}/syscall"), read_text(f"{task}/wchan"))

    def thread_still_s(self, tid: int, now_ns: int) -> float:
        """Return for how long a thread has used next to no CPU; 0: it works, or nothing is known."""
        thread = self._threads.get(tid)
        return thread.meter.still_s(now_ns) if thread else 0.0

    @property
    def scheduled_ns(self) -> tuple[int, int]:
        """For how long in all the main thread had a core, and was ready to run without one; (0, 0): nobody knows."""
        main = self._threads.get(self.pid)
        return main.scheduled_ns if main is not None else (0, 0)

    def thread_alive(self, tid: int) -> bool:
        """Return whether a thread still exists, as of the last observation."""
        thread = self._threads.get(tid)
        return thread.alive if thread else self.state not in (ProcessState.GONE, ProcessState.ZOMBIE)

    def close(self) -> None:
        """Give all descriptors back."""
        self.pidfd.close()
        self._watch_holder(0)
        for counters in (self._counters, *self._children.values()):
            counters.close()
        for thread in (*self._threads.values(), *self._resting.values()):
            thread.close()


def _rested_s(thread: _ThreadCounter | None, now_ns: int) -> float:
    """Return for how long a thread has not had a core, as far as anybody has looked."""
    return (now_ns - thread.ran_at_ns) / 1e9 if thread is not None and thread.ran_at_ns else 0.0
