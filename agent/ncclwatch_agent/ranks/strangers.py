"""Finds the ranks of a watched job that run on this node and have not attached.

The launcher that started the ranks we know has started the others too: a child of it whose environment
names another rank of the same world is that rank. What is known of it is what /proc and py-spy tell. Children
of ranks (DataLoader workers) inherit the environment, but are nobody's siblings.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from ncclwatch.contract import job_names
from ncclwatch.contract.machine.boot import host_name
from ncclwatch.contract.model.phases import phase_of_frame
from ncclwatch.contract.model.rank import CallSite, ProcessState, RankView, StackDump, ThreadView
from ncclwatch.contract.stacks.ownership import is_users
from ncclwatch_agent.process.procfs import children, environ_of, parse_stat, read_text
from ncclwatch_agent.process.rank_process import ProcessWatch
from ncclwatch_agent.ranks.endings import Death, merge
from ncclwatch_agent.ranks.jobs import LocalJob

STILL_S_MIN = 3.0  # before its stack is worth a look
SIBLINGS_MAX = 256
LOOKS_MAX = 5
Dump = Callable[[int, int], Awaitable[StackDump]]


class Stranger:
    """One rank that has not attached."""

    def __init__(self, pid: int, start_ticks: int, local_rank: int) -> None:
        self.watch = ProcessWatch(pid, start_ticks)
        self.local_rank = local_rank
        self.thread: ThreadView | None = None
        self.look: asyncio.Task[None] | None = None
        self.looks = 0

    def wants_look(self, now_ns: int) -> bool:
        """Whether its stack is worth a look: it stands still, and no look has succeeded or is under way."""
        busy = self.look is not None and not self.look.done()
        untold = self.thread is None and self.looks < LOOKS_MAX
        return untold and not busy and self.watch.view(now_ns).cpu_still_s >= STILL_S_MIN


class Strangers:
    """The ranks without a ring, by job index and rank."""

    def __init__(self, dump: Dump) -> None:
        self._dump = dump
        self._known: dict[tuple[int, int], Stranger] = {}

    def observe(self, job: LocalJob, now_ns: int) -> None:
        """Look for missing ranks of this node and at their processes; nothing while all have attached."""
        expected = max((rank.header.local_world_size for rank in job.ranks.values()), default=0)
        if len(job.ranks) < expected and not job.over_since_ns:
            self._find(job)
        for key, stranger in list(self._known.items()):
            if key[0] == job.index and key[1] in job.ranks:  # it has attached since
                self._known.pop(key).watch.close()
            elif key[0] == job.index:
                stranger.watch.observe(now_ns)
                if stranger.wants_look(now_ns):
                    stranger.looks += 1
                    stranger.look = asyncio.create_task(self._look(key[1], stranger))

    async def _look(self, rank: int, stranger: Stranger) -> None:
        """Have its stack read; an answer to the server never waits for that."""
        stranger.thread = _main_thread(stranger.watch.pid, await self._dump(rank, stranger.watch.pid))

    def views(self, job: LocalJob) -> tuple[RankView, ...]:
        """Return views of the ranks of this job that run here without a ring."""
        return tuple(_view(job, key[1], stranger) for key, stranger in self._known.items() if key[0] == job.index)

    def _find(self, job: LocalJob) -> None:
        parents = {rank.watch.parent for rank in job.ranks.values() if not rank.gone and rank.watch.parent > 1}
        pids = {rank.header.pid for rank in job.everyone()}
        siblings = [pid for parent in parents for pid in children(parent) if pid not in pids]
        for pid in siblings[:SIBLINGS_MAX]:
            environ = environ_of(pid)
            rank = environ.get("RANK", "")
            same_world = environ.get("WORLD_SIZE") == str(job.key.world_size)
            if not rank.isdigit() or not same_world or job_names.from_environment(environ) != job.key.job:
                continue
            key = (job.index, int(rank))
            stat = parse_stat(read_text(f"/proc/{pid}/stat").encode())
            if key not in self._known and int(rank) not in job.ranks and stat is not None:
                local_rank = environ.get("LOCAL_RANK", "")
                self._known[key] = Stranger(pid, stat.start_ticks, int(local_rank) if local_rank.isdigit() else 0)

    def forget(self, index: int) -> None:
        """Let go of a job's strangers."""
        for key in [key for key in self._known if key[0] == index]:
            stranger = self._known.pop(key)
            stranger.watch.close()
            if stranger.look is not None:
                stranger.look.cancel()


def _view(job: LocalJob, rank: int, stranger: Stranger) -> RankView:
    watch = stranger.watch
    gone = watch.state in (ProcessState.GONE, ProcessState.ZOMBIE)
    process = watch.view(time.monotonic_ns())
    return RankView(
        rank=rank,
        local_rank=stranger.local_rank,
        host=host_name(),
        pid=watch.pid,
        device="",
        world_size=job.key.world_size,
        local_world_size=max(known.header.local_world_size for known in job.ranks.values()),
        attempt=job.key.attempt,
        process=process,
        pulse_age_s=0.0,
        initialised=False,
        attached=False,
        ending=merge(None, Death(gone=gone, status=watch.exit_status() if gone else None)),
        threads=(stranger.thread,) if stranger.thread is not None and process.cpu_still_s > 0 else (),
    )


def _main_thread(pid: int, dump: StackDump) -> ThreadView | None:
    for name, frames in dump.threads:
        if name == "MainThread":
            users = tuple(
                CallSite(file=frame.file, line=frame.line, function=frame.function)
                for frame in frames
                if is_users(frame.file)
            )
            leaf = f"{frames[0].function} {frames[0].file}:{frames[0].line}" if frames else ""
            return ThreadView(
                tid=pid, main=True, issued=0, doing=users[0] if users else None, frames=users[:8], leaf=leaf,
                work=next(filter(None, (phase_of_frame(frame.file, frame.function) for frame in frames)), None),
            )  # fmt: skip
    return None
