"""Keeps which jobs run on this node, and which ranks of them.

A job here is one attempt of one launch: a restart by the launcher is another one, so that the
ranks of both are never mixed.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from ncclwatch.contract import config, digests, job_names, wire
from ncclwatch.contract.model.rank import Ending
from ncclwatch.contract.network.places import may_span
from ncclwatch.contract.on_hang.policy import Action
from ncclwatch.contract.words.masking import masked_command
from ncclwatch_agent.process.connections.addresses import own_addresses
from ncclwatch_agent.process.job_terminal import Candidate, Terminal
from ncclwatch_agent.ranks import impostors, preflight
from ncclwatch_agent.ranks.rank_rows import LocalRank

LOOPS_S = 5.0  # a server is told of loops in which none begins or ends
LAUNCHES_MAX = 256  # of which the newest run is remembered
TOLD_MAX = 256  # texts that a terminal has seen, remembered so that each is shown once
LEFTOVER_S = 30.0  # a job whose last sign of life is older than this was over before the agent came


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKey:
    """What tells two jobs apart."""

    job: str
    instance: str
    attempt: int
    world_size: int
    run: int = 0  # see `Runs`

    @property
    def launch(self) -> tuple[str, str, int]:
        """Return what is the same for all runs of a launch that somebody starts again by hand."""
        return self.job, self.instance, self.attempt

    @classmethod
    def of(cls, rank: LocalRank) -> "JobKey":
        """Return the job that a rank says it belongs to, of any run."""
        return cls(
            job=rank.identity.get("job") or _directory_name(rank.path),
            instance=rank.identity.get("instance", ""),
            attempt=rank.header.attempt,
            world_size=rank.header.world_size,
        )


def spans(rank: LocalRank) -> bool:
    """Whether a job may run on several nodes, as far as its launcher told this rank."""
    host = store_host_of(rank.identity.get("instance", ""))
    return may_span(rank.header.world_size, rank.header.local_world_size, host)


def store_host_of(instance: str) -> str:
    """Return on which host the store of a launch is, "" if nobody says so."""
    return instance.partition("/")[0].rpartition(":")[0]


class LocalJob:
    """One job's ranks on this node."""

    def __init__(self, key: JobKey, index: int, first: LocalRank) -> None:
        self.key = key
        self.index = index
        # A rank of an older version may have left in it what must not be logged.
        self.server = config.without_credentials(first.identity.get("server") or config.server_url({}))
        naming = first.identity.get("server_named")
        self.naming = naming if naming in (config.NAMED, config.OWN) else config.UNNAMED
        if self.naming == config.UNNAMED and first.identity.get("share") == "1" and spans(first):
            self.naming, self.server = config.SHARED, f"job {index} by its store"  # a connection of its own
        self.wants_terminal = first.identity.get("terminal", "1") != "0"
        self.on_hang = first.identity.get("on_hang", "")
        self.hang_policy = first.identity.get("hang_policy", "")  # file, "": the default one
        left = first.identity.get("restarts_left", "")
        self.under_torchrun = left.isdecimal()
        self.restarts_left = int(left) if self.under_torchrun else 0
        self.hooks: dict[str, bool] = {}  # incidents whose hook this agent has asked for; True: it has ended
        self.announce_again = False  # what is announced of it has changed
        self.terminal = Terminal()
        self.ranks: dict[int, LocalRank] = {}
        self.extras: list[LocalRank] = []  # rings of processes that call themselves a rank that another one is
        self._loops_told: tuple[tuple[int, str, int, bool], ...] = ()
        self._loops_told_ns = 0
        self._joined: tuple[int, ...] = ()
        self._twice: tuple[int, ...] = ()
        self.told: dict[int, None] = {}  # hashes of what its terminal has seen, the newest last

    @property
    def acts(self) -> bool:
        """Whether its owner wants something to be done about hangs, or some rank asks for notices of them."""
        return self.on_hang not in ("", Action.REPORT.value) or any(rank.wants_notices for rank in self.ranks.values())

    def add(self, rank: LocalRank) -> None:
        """Add a rank. Of two processes with one number the living one counts, or else the newer.

        Of two that live, the older one counts: the other is a child that inherited the environment. But one that has
        detached yields, as a parent does that forked the process that trains.
        Of two rings of one process the newer counts: it has detached and attached again.
        """
        known = self.ranks.get(rank.rank)
        if known is None:
            self.ranks[rank.rank] = rank
            return
        newer = rank.header.created_ns > known.header.created_ns
        same = (known.header.pid, known.header.start_ticks) == (rank.header.pid, rank.header.start_ticks)
        if same:
            replaces = newer
        elif known.gone or rank.gone:
            replaces = known.gone and (newer or not rank.gone)
        else:
            detached = known.has_detached(), rank.has_detached()
            replaces = detached == (True, False) or (detached != (False, True) and not newer)
        self.ranks[rank.rank] = rank if replaces else known
        self.extras.append(known if replaces else rank)

    def everyone(self) -> list[LocalRank]:
        """Return all processes of the job on this node."""
        return [*self.ranks.values(), *self.extras]

    @property
    def over_since_ns(self) -> int:
        """Return when the last process of the job on this node ended, 0 while one lives."""
        gone_ns = [rank.gone_ns for rank in self.everyone()]
        return max(gone_ns, default=0) if all(gone_ns) else 0

    @property
    def store_host(self) -> str:
        """Return on which host the store of its ranks is, "" if nobody says so."""
        return store_host_of(self.key.instance)

    def spans_nodes(self) -> bool:
        """Whether some of the job's ranks run elsewhere, as far as its launcher said."""
        local = max((rank.header.local_world_size for rank in self.ranks.values()), default=0)
        return 0 < local < self.key.world_size and len(self.ranks) < self.key.world_size

    def _may_span_nodes(self, first: LocalRank) -> bool:
        """Whether some of the job's ranks may run elsewhere, also where its launcher says nothing."""
        return spans(first) and len(self.ranks) < self.key.world_size

    def announce(self) -> wire.Announce:
        """Return what a server is told of the job first."""
        first = self.ranks[min(self.ranks)]
        return wire.Announce(
            index=self.index,
            job=self.key.job,
            instance=self.key.instance,
            attempt=self.key.attempt,
            run=self.key.run,
            lives=not self.over_since_ns,
            elsewhere=self.spans_nodes(),
            world_size=self.key.world_size,
            ranks=tuple(sorted(self.ranks)),
            terminal=self.wants_terminal,
            acts=self.acts,
            hooks=dict(self.hooks),
            named=first.identity.get("named", "1") != "0",
            title=first.identity.get("title", "")[: config.TITLE_CHARS_MAX],
            command=masked_command(first.identity.get("argv", "").split())[: config.COMMAND_CHARS_MAX],
            labels=first.identity.get("labels", "")[: config.LABELS_CHARS_MAX],
            user=first.identity.get("user", "")[: config.TITLE_CHARS_MAX],
            addresses=own_addresses()[: config.ADDRESSES_MAX] if self._may_span_nodes(first) else (),
        )

    def digest(self, now_ns: int) -> bytes:
        """Return what a server is told of the job each second."""
        rows = [self.ranks[number].rows(now_ns) for number in sorted(self.ranks)]
        return digests.pack_digest(
            self.index, [rank_row for rank_row, _ in rows], [row for _, group_rows in rows for row in group_rows]
        )

    def loops(self, now_ns: int) -> wire.Loops | None:
        """Return the loops over data of all ranks, None if no server needs to hear of them now."""
        found = tuple(loop for number in sorted(self.ranks) if (loop := self.ranks[number].loop(now_ns)) is not None)
        state = tuple((loop.rank, loop.loader, loop.number, loop.ended) for loop in found)
        if not found or (state == self._loops_told and now_ns - self._loops_told_ns < LOOPS_S * 1e9):
            return None
        self._loops_told, self._loops_told_ns = state, now_ns
        return wire.Loops(index=self.index, ranks=found)

    def facts(self, now_ns: int, pids: Collection[int]) -> wire.Facts | None:
        """Return how the ranks were set up, None if that is no news. `pids` are the ranks of all jobs on this node."""
        changed = [rank.setup.look() for rank in self.ranks.values()]
        joined = tuple(
            number
            for number, rank in sorted(self.ranks.items())
            if number in self._joined or impostors.takes_part(rank, now_ns, pids)
        )
        twice = impostors.twice(self.ranks, self.extras, now_ns, pids) if self.extras else ()
        if not any(changed) and (joined, twice) == (self._joined, self._twice):
            return None
        self._joined, self._twice = joined, twice
        return self.all_facts()

    def all_facts(self) -> wire.Facts:
        """Return how the ranks were set up, as far as they have said."""
        found = ((number, self.ranks[number].setup.facts) for number in sorted(self.ranks))
        return wire.Facts(index=self.index, alike=preflight.grouped(found), joined=self._joined, twice=self._twice)

    def is_news(self, text: str) -> bool:
        """Note that its terminal is shown a text. Returns whether it has not seen it, as far as that is remembered."""
        key = hash(text)
        new = key not in self.told
        self.told.pop(key, None)
        self.told[key] = None
        while len(self.told) > TOLD_MAX:
            del self.told[next(iter(self.told))]
        return new

    def candidates(self) -> list[Candidate]:
        """Return the processes that may have the job's terminal, the lowest rank first."""
        ordered = [self.ranks[number] for number in sorted(self.ranks)]
        return [Candidate(pid=rank.header.pid if rank.is_here else 0, parent=rank.watch.parent) for rank in ordered]

    def newly_ended(self) -> list[LocalRank]:
        """Return the ranks of whose end something is known that no server was told yet."""
        return [
            rank
            for rank in self.ranks.values()
            if rank.ending is not None and not rank.detached and not _same_end(rank.ending, rank.reported)
        ]

    def close(self) -> None:
        """Let go of all its rings, processes and its terminal."""
        self.terminal.close()
        for rank in self.everyone():
            rank.close()


class Runs:
    """Numbers the runs on this node, in one count for all launches.

    A launch that somebody starts again by hand, at the same address and with as many ranks, looks the same from
    inside. It is another run if its processes began after all of the run before had ended.
    """

    def __init__(self) -> None:
        self._count = 0
        self._newest: dict[tuple[str, str, int], int] = {}
        self._over_ns: dict[int, int] = {}  # of runs whose jobs were let go of: when that was

    def key_of(self, rank: LocalRank, jobs: Collection[LocalJob]) -> JobKey:
        """Return the job that a rank belongs to, of those on this node or a new one."""
        key = JobKey.of(rank)
        run = self._newest.pop(key.launch, 0)
        over_ns = self._ended_ns(run, jobs)
        if not run or (over_ns and rank.started_ns() > over_ns):
            self._over_ns.pop(run, None)
            self._count += 1
            run = self._count
        self._newest[key.launch] = run
        self._forget({job.key.launch for job in jobs} | {key.launch})
        return replace(key, run=run)

    def let_go(self, job: LocalJob, now_ns: int) -> None:
        """Note that nobody looks at a job any more."""
        if self._newest.get(job.key.launch) == job.key.run:
            self._over_ns[job.key.run] = job.over_since_ns or now_ns

    def _forget(self, kept: Collection[tuple[str, str, int]]) -> None:
        """Forget the launches that were adopted first, of those without a job here, if there are too many."""
        spare = [launch for launch in self._newest if launch not in kept]
        for launch in spare[: max(0, len(spare) - LAUNCHES_MAX)]:
            self._over_ns.pop(self._newest.pop(launch), None)

    def _ended_ns(self, run: int, jobs: Iterable[LocalJob]) -> int:
        """Return when the last process of a run ended, 0 if one lives."""
        over_ns = [job.over_since_ns for job in jobs if job.key.run == run] or [self._over_ns.get(run, 0)]
        return max(over_ns) if all(over_ns) else 0


def _same_end(one: Ending, other: Ending | None) -> bool:
    if other is None:
        return False
    return (one.kind, one.exit_code, one.signal, one.exception) == (
        other.kind, other.exit_code, other.signal, other.exception,
    )  # fmt: skip


def _directory_name(path: str) -> str:
    return job_names.from_directory(path.rsplit("/", 2)[-2])


def leftovers(ranks: Iterable[LocalRank], jobs: Mapping[JobKey, LocalJob], now_ns: int) -> list[LocalRank]:
    """Return those of some new ranks whose whole job was over long before the agent came.

    To tell a server of them now would be news of yesterday.
    """
    new = list(ranks)
    living = {JobKey.of(rank) for rank in new if not rank.is_leftover(now_ns, LEFTOVER_S)}
    living |= {replace(key, run=0) for key in jobs}
    return [rank for rank in new if JobKey.of(rank) not in living]
