"""Lives the life of an agent, from its first tick to its last.

Each second it looks for rings, at processes, and sends a digest for each job. When a watched
process ends it looks at once: its parent reaps it within a tenth of a second, and then nobody
knows any more how it ended.
"""

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import time
from dataclasses import dataclass

from ncclwatch.contract import config, wire
from ncclwatch.contract.private_dirs import PrivateDir
from ncclwatch.contract.ring import Ring
from ncclwatch_agent import jobs
from ncclwatch_agent.commands import CommandDesk
from ncclwatch_agent.endings import describe, is_abnormal
from ncclwatch_agent.gpus import GpuDesk
from ncclwatch_agent.jobs import JobKey, LocalJob
from ncclwatch_agent.kernel_log import KernelLog
from ncclwatch_agent.local_server import LocalServer
from ncclwatch_agent.log import log
from ncclwatch_agent.ranks import LocalRank
from ncclwatch_agent.rings import RingDirectory
from ncclwatch_agent.servers import Servers
from ncclwatch_agent.spool import SpooledViews

IDLE_S = 3.0  # without a living rank; a restart by the launcher takes less
UNHEARD_S = 2.0  # more, for last views that no server was ever there to hear
UNDELIVERED_S = 10.0  # more, for those that a server was there to hear
TICK_S_MIN = 0.05
FILES_MAX = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line decided."""

    runtime: PrivateDir
    spawned: bool  # a rank started it: it ends when it is not needed any more
    version: str
    kernel_log: int  # descriptor, -1: nobody lets us read it


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """A job whose processes on this node are all gone."""

    over_s: float
    delivered_s: float  # since the last views of an ended rank got through
    undelivered: bool
    reachable: bool  # a server was there before, or is being started


def may_be_buried(remains: Remains) -> bool:
    """Whether a job needs nothing more: its end was told and judged, or nobody will hear of it."""
    quiet_s = min(remains.over_s, remains.delivered_s)
    if not remains.undelivered:
        return quiet_s >= IDLE_S
    return remains.over_s >= IDLE_S + (UNDELIVERED_S if remains.reachable else UNHEARD_S)


class Agent:
    """One agent. `run` is its life."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._rings = RingDirectory(settings.runtime)
        self._jobs: dict[JobKey, LocalJob] = {}
        self._indexes = 0
        self._desk = CommandDesk(self._jobs.values)
        self._hello = wire.Hello(
            protocol=config.PROTOCOL,
            agent=os.urandom(8).hex(),
            host=socket.gethostname(),
            version=settings.version,
        )
        self._gpus = GpuDesk()
        self._kernel_log = KernelLog(settings.kernel_log)
        self._servers = self._dial()
        self._reports: dict[int, set[asyncio.Task[None]]] = {}  # by number of the job
        self._wake = asyncio.Event()
        self._stopping = False
        self._alive_ns = time.monotonic_ns()

    async def run(self) -> None:
        """Watch until told to stop or, if a rank started us, until no rank needs us."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        _allow_many_files()
        gc.collect()
        gc.freeze()  # what is imported stays: no collection needs to look at it again
        log.info("watching %s as pid %d", self._settings.runtime.path, os.getpid())
        while True:
            await self._watch()
            for job in list(self._jobs.values()):
                if job.over_since_ns and not self._is_unheard(job):
                    self._let_go(job)
            await self._servers.close()
            # Closing takes its time. A job that has begun meanwhile sees the lock held and counts on us.
            self._servers = self._dial()
            self._find_ranks(time.monotonic_ns())
            if self._stopping or not self._jobs:
                break
        await self._servers.close()
        await self._desk.close()
        await self._gpus.close()
        self._kernel_log.close()
        for job in list(self._jobs.values()):
            self._close(job)
        log.info("ended")

    def _dial(self) -> Servers:
        return Servers(self._hello, self._desk, self._jobs.values, LocalServer())

    async def _watch(self) -> None:
        while not self._stopping:
            began = time.monotonic()
            self._tick(time.monotonic_ns())
            if self._is_unneeded():
                return
            left_s = config.DIGEST_S - (time.monotonic() - began)
            timer = asyncio.get_running_loop().call_later(max(TICK_S_MIN, left_s), self._wake.set)
            await self._wake.wait()
            timer.cancel()
            self._wake.clear()
            await asyncio.sleep(max(0.0, began + TICK_S_MIN - time.monotonic()))

    def _stop(self) -> None:
        self._stopping = True
        self._wake.set()

    def _is_unneeded(self) -> bool:
        idle_s = (time.monotonic_ns() - self._alive_ns) / 1e9
        return self._settings.spawned and not self._jobs and idle_s >= IDLE_S

    def _tick(self, now_ns: int) -> None:
        """Look at everything once and send what is new."""
        self._find_ranks(now_ns)
        pids = {rank.header.pid for job in self._jobs.values() for rank in job.everyone()}
        self._read_kernel_log()
        for job in list(self._jobs.values()):
            for rank in job.everyone():
                if rank.ring.is_whole():
                    rank.observe(now_ns)
                else:
                    self._drop(job, rank)
            if not job.note_over(now_ns):
                self._alive_ns = now_ns
            self._look_at_gpus(job)
            self._desk.strangers.observe(job, now_ns)
            if job.wants_terminal:
                job.terminal.prepare(job.candidates())
            self._report_ends(job)
            self._servers.ask_again(job, now_ns / 1e9)
            digest = job.digest(now_ns)
            if all(rank.ring.is_whole() for rank in job.everyone()):  # else it tells of zeros
                self._servers.of(job).send_digest(job.index, digest)
            loops = job.loops(now_ns)
            if loops is not None:
                self._servers.of(job).send(loops)
            facts = job.facts(now_ns, pids)
            if facts is not None:
                self._servers.of(job).send(facts)
            self._bury(job, now_ns)
        self._servers.drop_unused(now_ns / 1e9)

    def _read_kernel_log(self) -> None:
        notes = self._kernel_log.look() if self._jobs else ()
        for note in notes:
            log.warning("the kernel says: %s", note.text)
        if notes:
            self._gpus.hear(self._kernel_log.gpu_errors)

    def _look_at_gpus(self, job: LocalJob) -> None:
        for rank in job.everyone():
            rank.facts.read(self._gpus.seen)
        self._gpus.look_for(rank.facts.device for rank in job.everyone())

    def _find_ranks(self, now_ns: int) -> None:
        """Adopt the rings that are new."""
        found = [LocalRank(ring) for ring in self._open_rings(now_ns)]
        for rank in found:
            rank.observe(now_ns)
        old = jobs.leftovers(found, self._jobs, now_ns)
        for rank in found:
            if rank in old:
                log.info("removed %s: its process ended before this agent began", rank.path)
                rank.close()
                self._rings.remove(rank.path, rank.header)
            else:
                self._adopt(rank)

    def _open_rings(self, now_ns: int) -> list[Ring]:
        return self._rings.new_rings(now_ns / 1e9)

    def _adopt(self, rank: LocalRank) -> None:
        key = JobKey.of(rank)
        job = self._jobs.get(key)
        if job is None:
            self._indexes += 1
            job = self._jobs[key] = LocalJob(key, self._indexes, rank)
            log.info("job %s, attempt %d, of %d ranks", key.job, key.attempt, key.world_size)
        job.add(rank)
        fd = rank.watch.pidfd.fd
        if fd >= 0 and not rank.gone:
            asyncio.get_running_loop().add_reader(fd, self._note_end, rank)
        self._servers.of(job).send(job.announce())

    def _note_end(self, rank: LocalRank) -> None:
        """Take down how a process ended before its parent reaps it, and look at everything soon."""
        asyncio.get_running_loop().remove_reader(rank.watch.pidfd.fd)
        rank.watch.exit_status()
        self._wake.set()

    def _report_ends(self, job: LocalJob) -> None:
        """Send the last views of ranks that have ended since the last tick."""
        ended = job.newly_ended()
        if not ended:
            return
        for rank in ended:
            rank.reported = rank.ending
            if rank.ending is not None:
                how = describe(rank.ending)
                log.info("job %s: rank %d (pid %d) %s", job.key.job, rank.rank, rank.header.pid, how)
        task = asyncio.create_task(self._report(job, ended))
        pending = self._reports.setdefault(job.index, set())
        pending.add(task)
        task.add_done_callback(pending.discard)

    async def _report(self, job: LocalJob, ended: list[LocalRank]) -> None:
        uplink = self._servers.of(job)
        taken_ns = time.monotonic_ns()
        views = await self._desk.views(ended)
        uplink.keep(SpooledViews(job.index, views, taken_ns))
        if any(rank.ending is not None and is_abnormal(rank.ending) for rank in ended):
            others = [rank for rank in job.ranks.values() if rank.ending is None]
            if others:
                uplink.send(wire.Views(index=job.index, ranks=await self._desk.views(others)))

    def _bury(self, job: LocalJob, now_ns: int) -> None:
        """Let go of a job that is over, once its end was told or nobody will hear of it."""
        if not job.over_since_ns:
            return
        uplink = self._servers.of(job)
        undelivered = self._is_unheard(job)
        remains = Remains(
            over_s=(now_ns - job.over_since_ns) / 1e9,
            delivered_s=now_ns / 1e9 - uplink.delivered_at,
            undelivered=undelivered,
            reachable=self._servers.may_be_reached(uplink),
        )
        if not may_be_buried(remains):
            return
        if undelivered:
            log.warning("job %s: no server heard how its ranks ended", job.key.job)
        self._let_go(job)

    def _is_unheard(self, job: LocalJob) -> bool:
        """Whether no server has heard yet how some rank of a job ended."""
        return bool(self._reports.get(job.index)) or self._servers.of(job).spool.undelivered(job.index)

    def _let_go(self, job: LocalJob) -> None:
        """Say that a job is over, and remove what is left of it."""
        self._servers.of(job).gone(job.index)
        self._reports.pop(job.index, None)
        for rank in job.everyone():
            self._rings.remove(rank.path, rank.header)
        self._close(job)
        log.info("job %s is over", job.key.job)

    def _drop(self, job: LocalJob, rank: LocalRank) -> None:
        """Stop reading a file that is no ring any more."""
        self._forget_reader(rank)
        rank.close()
        self._rings.forget(rank.path)
        job.extras = [extra for extra in job.extras if extra is not rank]
        if job.ranks.get(rank.rank) is rank:
            del job.ranks[rank.rank]
        if not job.everyone():
            self._servers.of(job).gone(job.index)
            self._close(job)

    def _close(self, job: LocalJob) -> None:
        for rank in job.everyone():
            self._forget_reader(rank)
        job.close()
        self._desk.forget(job)
        self._jobs.pop(job.key, None)

    def _forget_reader(self, rank: LocalRank) -> None:
        if rank.watch.pidfd.fd >= 0:
            asyncio.get_running_loop().remove_reader(rank.watch.pidfd.fd)


async def watch(settings: Settings) -> None:
    """Live the life of one agent."""
    await Agent(settings).run()


def _allow_many_files() -> None:
    """Raise the limit of open files as far as we may: a rank with many children takes a hundred."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
