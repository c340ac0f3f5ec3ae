"""Finds the processes of this node that are ranks, and their jobs, by the environment they were started with.

torchrun and most launchers set RANK and WORLD_SIZE; srun sets SLURM_PROCID and SLURM_NTASKS. Everything that a
rank starts inherits them, and is no rank: DataLoader workers, compilers, our own agent, and shells around it.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ncclwatch.contract import job_names
from ncclwatch_agent.process.procfs import environ_of, parse_stat, read_text

PROCESSES_MAX = 65_536
RANKS_MAX = 1024  # of one node
_LAUNCHERS = frozenset(
    "torchrun accelerate deepspeed lightning fabric composer mpirun mpiexec orterun srun horovodrun ncclwatch".split()
)
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands", "deepspeed.launcher")
_OURS = ("ncclwatch_agent", "ncclwatch_server", "ncclwatch-agent", "ncclwatch-server", "ncclwatch.cli")
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "torch/_inductor/compile_worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of this node, as /proc shows it."""

    pid: int
    parent: int
    start_ticks: int
    executable: str  # path; "" where nobody may look
    arguments: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    session: int = 0  # pid of the leader of its session; torchrun makes each rank one


@dataclass(frozen=True, slots=True, kw_only=True)
class JobName:
    """What the ranks of one job have in common."""

    name: str
    endpoint: str  # master address and port; "" if none was set
    world_size: int  # 0: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRank:
    """A process that is a rank."""

    rank: int
    pid: int
    start_ticks: int
    local_rank: int = -1  # -1: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJob:
    """The ranks of one job on this node."""

    job: JobName
    ranks: tuple[FoundRank, ...]  # by rank
    local_world_size: int = 0  # how many should be here; 0: unknown
    doubles: tuple[tuple[int, tuple[int, ...]], ...] = ()  # (rank, the pids that all say they are it)
    chosen: bool = False  # somebody named the processes: that others are not here says nothing

    @property
    def missing(self) -> tuple[int, ...]:
        """Return the ranks that should run here and do not."""
        offsets = {found.rank - found.local_rank for found in self.ranks if found.local_rank >= 0}
        if len(offsets) != 1 or not self.local_world_size or self.chosen:
            return ()
        (first,) = offsets
        here = {found.rank for found in self.ranks}
        return tuple(rank for rank in range(first, first + self.local_world_size) if rank not in here)

    @property
    def elsewhere(self) -> tuple[int, ...]:
        """Return the ranks of the job that belong to other nodes, as far as that is known."""
        if self.chosen:
            return ()
        here = {found.rank for found in self.ranks} | set(self.missing)
        return tuple(rank for rank in range(min(self.job.world_size, 1_000_000)) if rank not in here)


def identity(environ: Mapping[str, str]) -> tuple[JobName, int] | None:
    """Return of which job and which rank an environment speaks, None if of none."""
    rank, world = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    if not rank.isdigit():
        rank = environ.get("SLURM_PROCID", "")
        world = environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS", "")
    if not rank.isdigit() or not world.isdigit() or int(rank) >= int(world):
        return None
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    endpoint = f"{address}:{port}" if address or port else ""
    return JobName(name=job_names.from_environment(environ), endpoint=endpoint, world_size=int(world)), int(rank)


def find_jobs(processes: Iterable[Process], within: frozenset[int] = frozenset()) -> tuple[FoundJob, ...]:
    """Return the jobs and their ranks; with `within`, only ranks that are these processes or below them."""
    known = {process.pid: process for process in processes}
    named = {pid: said for pid, process in known.items() if (said := identity(process.environ)) is not None}
    candidates: dict[JobName, dict[int, list[Process]]] = {}
    for pid, (job, rank) in named.items():
        above = list(above_of(pid, known))
        if not _may_be_rank(known[pid]) or (within and not within & {pid, *above}):
            continue
        if any(named.get(parent) == (job, rank) and _may_be_rank(known[parent]) for parent in above):
            continue  # a child that inherited what its rank was told
        candidates.setdefault(job, {}).setdefault(rank, []).append(known[pid])
    by_slurm = {job for pid, (job, _) in named.items() if "RANK" not in known[pid].environ}
    launched = {job for job in by_slurm & candidates.keys() if _is_around(job, candidates[job], named, known)}
    return tuple(
        _job(job, ranks, chosen=bool(within))
        for job, ranks in sorted(candidates.items(), key=lambda item: item[0].name)
        if job not in launched
    )


def numbered(processes: Iterable[Process]) -> FoundJob:
    """Return processes of which nothing tells a rank, as a job in which they are numbered."""
    ranks = tuple(
        FoundRank(rank=number, pid=process.pid, start_ticks=process.start_ticks)
        for number, process in enumerate(processes)
    )
    return FoundJob(job=JobName(name="of these processes", endpoint="", world_size=0), ranks=ranks, chosen=True)


def read_processes(named: frozenset[int] = frozenset()) -> Iterator[Process]:
    """Yield the processes of this node, but for this one and, unless they are named, those around it."""
    own = {os.getpid()}
    pid = os.getppid()
    while pid > 1 and pid not in own:
        own.add(pid)
        stat = parse_stat(read_text(f"/proc/{pid}/stat").encode())
        pid = stat.parent if stat is not None else 0
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    for pid in sorted(pids)[:PROCESSES_MAX]:
        found = read_process(pid) if pid not in own - named else None
        if found is not None:
            yield found


def read_process(pid: int) -> Process | None:
    """Return one process; None if it is gone."""
    stat = parse_stat(read_text(f"/proc/{pid}/stat").encode())
    if stat is None:
        return None
    try:
        executable = str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        executable = ""
    try:
        session = os.getsid(pid)
    except OSError:
        session = 0
    return Process(
        pid=pid,
        parent=stat.parent,
        start_ticks=stat.start_ticks,
        executable=executable,
        arguments=tuple(read_text(f"/proc/{pid}/cmdline").split("\0")),
        environ=environ_of(pid),
        session=session,
    )


def _job(job: JobName, claims: Mapping[int, list[Process]], *, chosen: bool) -> FoundJob:
    kept = {rank: _without_orphans(found, claims) for rank, found in claims.items()}
    ranks, doubles, sizes = [], [], []
    for rank, found in sorted(kept.items())[:RANKS_MAX]:
        if not found:
            continue
        newest = max(found, key=lambda process: process.start_ticks)
        local = newest.environ.get("LOCAL_RANK") or newest.environ.get("SLURM_LOCALID", "")
        ranks.append(
            FoundRank(
                rank=rank,
                pid=newest.pid,
                start_ticks=newest.start_ticks,
                local_rank=int(local) if local.isdigit() else -1,
            )
        )
        size = newest.environ.get("LOCAL_WORLD_SIZE", "")
        sizes += [int(size)] if size.isdigit() else []
        if len(found) > 1:
            doubles.append((rank, tuple(sorted(process.pid for process in found))))
    return FoundJob(
        job=job,
        ranks=tuple(ranks),
        local_world_size=max(sizes, default=0),
        doubles=tuple(doubles),
        chosen=chosen,
    )


def _without_orphans(found: list[Process], claims: Mapping[int, list[Process]]) -> list[Process]:
    """Leave out what a rank that is gone has left behind, such as its DataLoader workers.

    They have been adopted by init while a launcher has the ranks, or lead no session while the ranks do.
    """
    everyone = [process for claimed in claims.values() for process in claimed]
    if any(process.session == process.pid for process in everyone):
        return [process for process in found if process.session == process.pid]
    if any(process.parent > 1 for process in everyone):
        return [process for process in found if process.parent > 1]
    return found


def above_of(pid: int, known: Mapping[int, Process]) -> Iterator[int]:
    """Yield the parent of a process, its parent, and so on."""
    seen = {pid}
    while pid in known and known[pid].parent not in seen:
        pid = known[pid].parent
        seen.add(pid)
        yield pid


def _may_be_rank(process: Process) -> bool:
    """Whether a process runs Python and is neither a launcher, nor ours, nor one of Python's own helpers."""
    program = process.executable or (process.arguments[0] if process.arguments else "")
    if not Path(program).name.startswith(("python", "pypy")):
        return False
    first = process.arguments[:4]
    if any(Path(argument).name in _LAUNCHERS for argument in first[:3]):
        return False
    said = " ".join(first)
    return not any(word in said for word in (*_LAUNCHER_MODULES, *_OURS, *_HELPERS))


def _is_around(
    job: JobName,
    claims: Mapping[int, list[Process]],
    named: Mapping[int, tuple[JobName, int]],
    known: Mapping[int, Process],
) -> bool:
    """Whether what Slurm started are launchers by another name: ranks of another job run below them."""
    pids = {process.pid for found in claims.values() for process in found}
    return any(other != job and pids & set(above_of(pid, known)) for pid, (other, _) in named.items())
