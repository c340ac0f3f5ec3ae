"""Lives the life of an agent, from its first tick to its last.

Each second it looks for rings, at processes, and sends a digest for each job. When a watched
process ends it looks at once: its parent reaps it within a tenth of a second, and then nobody
knows any more how it ended. What fails at one rank or job is told and left alone; a tick that hangs ends the
agent with a code that is not 0: its lock is free then, and the next rank that looks starts another.
"""

import asyncio
import contextlib
import gc
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ncclwatch.contract import config, wire
from ncclwatch.contract.machine import boot
from ncclwatch.contract.machine.liveness import Guard, LoopLife
from ncclwatch.contract.machine.private_dirs import PrivateDir
from ncclwatch.contract.ring.reader import Ring
from ncclwatch_agent.commands import CommandDesk
from ncclwatch_agent.faults import Faults
from ncclwatch_agent.gpu.node_gpus import GpuDesk
from ncclwatch_agent.log import log
from ncclwatch_agent.one_agent_per_node import write_card
from ncclwatch_agent.process.kernel_log import KernelLog
from ncclwatch_agent.ranks import jobs
from ncclwatch_agent.ranks.endings import describe, is_abnormal
from ncclwatch_agent.ranks.jobs import JobKey, LocalJob, Runs
from ncclwatch_agent.ranks.launchers import Launchers
from ncclwatch_agent.ranks.rank_rows import LocalRank
from ncclwatch_agent.ranks.rings import RingDirectory
from ncclwatch_agent.saves.file_places import PLACES
from ncclwatch_agent.server_choice import Servers
from ncclwatch_agent.uplink.local_server import LocalServer
from ncclwatch_agent.uplink.spool import SpooledViews

IDLE_S = 3.0  # without a living rank; a restart by the launcher takes less
UNHEARD_S = 2.0  # more, for last views that no server was ever there to hear
UNDELIVERED_S = 10.0  # more, for those that a server was there to hear
TICK_S_MIN = 0.05
TICK_STILL_S = 10.0  # a tick that takes so long is told
TICK_ENDS_S = 60.0  # and the agent ends after so long
FILES_MAX = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line decided."""

    runtime: PrivateDir
    spawned: bool  # a rank started it: it ends when it is not needed any more
    version: str
    kernel_log: int  # descriptor, -1: nobody lets us read it
    has_card: bool  # False: there was no room for it yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """A job whose processes on this node are all gone."""

    over_s: float
    delivered_s: float  # since the last views of its ended ranks got through
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
        self._runs = Runs()
        self._desk = CommandDesk(self._jobs.values)
        self._hello = wire.Hello(
            protocol=config.PROTOCOL,
            agent=os.urandom(8).hex(),
            host=boot.host_name(),
            version=settings.version,
            machine=boot.machine(),
        )
        self._gpus = GpuDesk()
        self._kernel_log = KernelLog(settings.kernel_log)
        self._servers = self._dial()
        self._reports: dict[int, set[asyncio.Task[None]]] = {}  # by number of the job
        self._wake = asyncio.Event()
        self._stopping = False
        self._alive_ns = time.monotonic_ns()
        self._launchers = Launchers()
        self._has_card = settings.has_card
        self._faults = Faults()
        self._life = LoopLife("tick", age_s_max=TICK_STILL_S, ends_s=TICK_ENDS_S, vital=True)

    async def run(self) -> None:
        """Watch until told to stop or, if a rank started us, until no rank needs us."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.set_exception_handler(_tell_of)
        _allow_many_files()
        gc.collect()
        gc.freeze()  # what is imported stays: no collection needs to look at it again
        log.info("watching %s as pid %d", self._settings.runtime.path, os.getpid())
        lives = (self._life, self._desk.sources.life, PLACES.life)
        with Guard(lives, log, who="ncclwatch-agent"):
            await self._live()
        log.info("ended")

    async def _live(self) -> None:
        self._life.task = asyncio.current_task()
        self._life.began()
        while True:
            await self._tick_on()
            self._life.went_round()  # to end may take as long as a tick, and no longer
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
        self._life.rests()

    def _dial(self) -> Servers:
        return Servers(self._hello, self._desk, self._jobs.values, LocalServer())

    async def _tick_on(self) -> None:
        while not self._stopping:
            began = time.monotonic()
            self._life.went_round()
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
        acting = self._desk.actor.awaits_restart or self._desk.actor.runs_hook
        needed = self._jobs or self._servers.needed_elsewhere or acting
        # Whoever counts the runs of a launch must outlive a restart: another agent would begin at 1.
        needed = needed or self._launchers.may_start_again(time.monotonic())
        return self._settings.spawned and not needed and idle_s >= IDLE_S

    def _tick(self, now_ns: int) -> None:
        """Look at everything once and send what is new."""
        if not self._has_card:
            self._has_card = write_card(self._settings.runtime, self._settings.version)
        self._try("looking for new ranks", lambda: self._find_ranks(now_ns))
        self._try("reading the log of the kernel", self._read_kernel_log)
        pids = {rank.header.pid for job in self._jobs.values() for rank in job.everyone()}
        for job in list(self._jobs.values()):
            for rank in job.everyone():
                self._observe(job, rank, now_ns)
            if not job.over_since_ns:
                self._alive_ns = now_ns
            if job.key in self._jobs:
                self._try(f"looking at job {job.key.job}", partial(self._look_round, job, now_ns))
                self._try(f"finding the server of job {job.key.job}", partial(self._find_server, job, now_ns))
                self._try(f"telling of job {job.key.job}", partial(self._send_news, job, now_ns, pids))
                self._try(f"letting go of job {job.key.job}", partial(self._bury, job, now_ns))
        self._try("closing connections", lambda: self._servers.drop_unused(now_ns / 1e9))

    def _try(self, what: str, action: Callable[[], None]) -> None:
        """Do something whose failure must not end the agent, nor anything else that it does."""
        try:
            action()
        except Exception as error:  # noqa: BLE001  it is told, once
            self._faults.note(what, error)

    def _observe(self, job: LocalJob, rank: LocalRank, now_ns: int) -> None:
        """Look at one rank. One that cannot be looked at is dropped, and left alone for a while."""
        try:
            if rank.ring.is_whole():
                recorded = not rank.detached
                rank.observe(now_ns)
                if recorded and rank.detached:
                    said = "job %s: rank %d (pid %d) has detached: it is not recorded and not judged any more"
                    log.warning(said, job.key.job, rank.rank, rank.header.pid)
                return
        except Exception as error:  # noqa: BLE001  it is told, once
            self._faults.note(f"looking at rank {rank.rank} of job {job.key.job}", error)
            self._drop(job, rank, now_ns)
        else:
            self._drop(job, rank)

    def _look_round(self, job: LocalJob, now_ns: int) -> None:
        """Look at what surrounds the ranks of a job."""
        self._look_at_gpus(job)
        self._desk.strangers.observe(job, now_ns)
        self._desk.actor.tend(job, connected=self._servers.of(job).connected)
        if job.wants_terminal:
            job.terminal.prepare(job.candidates())

    def _find_server(self, job: LocalJob, now_ns: int) -> None:
        self._servers.tend(job)
        self._servers.ask_again(job, now_ns / 1e9)

    def _send_news(self, job: LocalJob, now_ns: int, pids: set[int]) -> None:
        """Tell a job's server what is new."""
        self._report_ends(job)
        if job.announce_again:
            job.announce_again = False
            self._servers.of(job).send(job.announce())
        digest = self._digest(job, now_ns)
        if all(rank.ring.is_whole() for rank in job.everyone()):  # else it tells of zeros
            self._servers.of(job).send_digest(job.index, digest)
        loops = job.loops(now_ns)
        if loops is not None:
            self._servers.of(job).send(loops)
        facts = job.facts(now_ns, pids)
        if facts is not None:
            self._servers.of(job).send(facts)

    def _digest(self, job: LocalJob, now_ns: int) -> bytes:
        """Return what is told of a job each second, without the ranks of which nothing can be said."""
        try:
            return job.digest(now_ns)
        except Exception as error:  # noqa: BLE001  it is told, once
            self._faults.note(f"the digest of job {job.key.job}", error)
        for rank in list(job.ranks.values()):
            try:
                rank.rows(now_ns)
            except Exception as error:  # noqa: BLE001  it is told, once
                self._faults.note(f"the figures of rank {rank.rank} of job {job.key.job}", error)
                self._drop(job, rank, now_ns)
        return job.digest(now_ns)

    def _read_kernel_log(self) -> None:
        notes = self._kernel_log.look() if self._jobs else ()
        for note in notes:
            log.warning("the kernel says: %s", note.text)
        if notes:
            self._gpus.hear(self._kernel_log.gpu_errors)

    def _look_at_gpus(self, job: LocalJob) -> None:
        for rank in job.everyone():
            rank.facts.read(self._gpus.seen, rank.words)
        self._gpus.look_for(rank.facts.device for rank in job.everyone())

    def _find_ranks(self, now_ns: int) -> None:
        """Adopt the rings that are new."""
        for path in self._faults.due(now_ns / 1e9):
            self._rings.forget(path)
        found = [rank for ring in self._open_rings(now_ns) if (rank := self._meet(ring, now_ns)) is not None]
        old = jobs.leftovers(found, self._jobs, now_ns)
        for rank in sorted(found, key=lambda rank: rank.header.created_ns):
            if rank in old:
                log.info("removed %s: its process ended before this agent began", rank.path)
                rank.close()
                self._rings.remove(rank.path, rank.header)
            else:
                self._adopt(rank)

    def _meet(self, ring: Ring, now_ns: int) -> LocalRank | None:
        """Return the rank of a ring, None if it cannot be looked at: it is left alone for a while."""
        try:
            rank = LocalRank(ring)
            rank.observe(now_ns)
        except Exception as error:  # noqa: BLE001  it is told, once
            self._faults.note(f"looking at {ring.path}", error)
            self._faults.leave(ring.path, now_ns / 1e9)
            ring.close()
            return None
        return rank

    def _open_rings(self, now_ns: int) -> list[Ring]:
        return self._rings.new_rings(now_ns / 1e9)

    def _adopt(self, rank: LocalRank) -> None:
        key = self._runs.key_of(rank, self._jobs.values())
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
        rank.gone_ns = rank.gone_ns or time.monotonic_ns()
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
            delivered_s=now_ns / 1e9 - uplink.spool.delivered_at(job.index),
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
        self._launchers.note(job, time.monotonic())
        for rank in job.everyone():
            self._rings.remove(rank.path, rank.header)
        self._close(job)
        log.info("job %s is over", job.key.job)

    def _drop(self, job: LocalJob, rank: LocalRank, failed_ns: int = 0) -> None:
        """Stop reading a file that is no ring any more, or that failed and so is left alone for a while."""
        self._forget_reader(rank)
        rank.close()
        if failed_ns:
            self._faults.leave(rank.path, failed_ns / 1e9)
        else:
            self._rings.forget(rank.path)
        job.extras = [extra for extra in job.extras if extra is not rank]
        if job.ranks.get(rank.rank) is rank:
            del job.ranks[rank.rank]
        if not job.everyone():
            if not failed_ns:  # or else it goes on, as far as anybody knows
                self._servers.of(job).gone(job.index)
            self._close(job)

    def _close(self, job: LocalJob) -> None:
        for rank in job.everyone():
            self._forget_reader(rank)
        self._desk.forget(job)
        job.close()
        self._jobs.pop(job.key, None)
        self._runs.let_go(job, time.monotonic_ns())

    def _forget_reader(self, rank: LocalRank) -> None:
        if rank.watch.pidfd.fd >= 0:
            asyncio.get_running_loop().remove_reader(rank.watch.pidfd.fd)


async def watch(settings: Settings) -> None:
    """Live the life of one agent."""
    await Agent(settings).run()


def _tell_of(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Tell of a task or a callback that failed where nobody waited for it."""
    error = context.get("exception")
    found = error if isinstance(error, BaseException) else None
    log.error("%s: this is a bug in ncclwatch; everything else goes on", context.get("message"), exc_info=found)


def _allow_many_files() -> None:
    """Raise the limit of open files as far as we may: a rank with many children takes a hundred."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
