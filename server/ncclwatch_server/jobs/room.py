"""Says whether there is room for one more job or rank: on this server, and for who asks.

Ranks count when they are seen. What a job only says to have is bounded for itself, so that an announcement cannot fill
the server: see `SAID_MAX` in `limits`.

A token that is bound to anything has a share of this server, and so has a namespace to which tokens are bound. What is
announced counts for the token that announces it, and for no other one: jobs for the token of whoever began them, ranks
for the token that announced them first. Attempts that are being replaced count apart, up to the same share: a job that
starts again finds room beside what is left of it.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ncclwatch.contract import job_names
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.network.tokens import UNBOUND
from ncclwatch_server import limits
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.security.scopes import Caller


class NoRoom(WireError):
    """A job finds no room; its agent's other jobs go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """For whom something counts, and how much that may be at a time."""

    key: str
    words: str
    jobs_max: int
    ranks_max: int

    @property
    def said_max(self) -> int:
        """How many ranks its jobs may say to have."""
        return max(limits.SAID_SHARE_MAX, self.ranks_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opener:
    """Who began a job."""

    link: int
    host: str
    token: str  # whose
    accounts: tuple[str, ...] = ()


class Counted(Protocol):
    """What is counted of a job."""

    opener: Opener | None
    ended: bool
    announced: Counter[str]  # ranks that were seen, by the keys of the accounts

    @property
    def world_size(self) -> int:
        """How many ranks it says to have."""

    @property
    def seen(self) -> int:
        """How many of them were seen."""


@dataclass(slots=True, kw_only=True)
class _Held:
    """What counts for one account after another."""

    jobs: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)
    ranks: Counter[str] = field(default_factory=Counter)

    def add(self, job: Counted, sign: int = 1) -> None:
        """Count a job, or count it no more."""
        for key in job.opener.accounts if job.opener is not None else ():
            self.jobs[key] += sign
            self.said[key] += sign * job.world_size
        for key, ranks in job.announced.items():
            self.ranks[key] += sign * ranks


def accounts_of(caller: Caller, job: str) -> tuple[Account, ...]:
    """Return for whom a job counts that an agent announces; for nobody if its token is bound to nothing."""
    bounds = caller.bounds
    if bounds == UNBOUND:
        return ()
    jobs = bounds.jobs_max if bounds.jobs_max is not None else limits.JOBS_SHARE_MAX
    ranks = bounds.ranks_max if bounds.ranks_max is not None else limits.RANKS_SHARE_MAX
    own = Account(
        key=f"token {caller.holder}", words=f"agents with the token of {caller.name}", jobs_max=jobs, ranks_max=ranks
    )
    if not bounds.namespaces:
        return (own,)
    space = job_names.namespace(job)
    return own, Account(
        key=f"namespace {space}",
        words=f"agents in namespace {space}",
        jobs_max=max(jobs, limits.JOBS_SHARE_MAX),
        ranks_max=max(ranks, limits.RANKS_SHARE_MAX),
    )


class Room:
    """What the jobs of this server hold, as of the last count and what was begun since."""

    def __init__(self) -> None:
        self.jobs = 0  # listed ones
        self.ranks = 0  # seen
        self.said = 0  # ranks that jobs of which any was seen say to have
        self._on_host: Counter[tuple[str, str]] = Counter()  # jobs by whose token and which host began them
        self._listed, self._retiring = _Held(), _Held()
        self._unseen: Counter[int] = Counter()  # ranks by the connection that began their jobs

    def count(self, listed: Iterable[Counted], retiring: Iterable[Counted]) -> None:
        """Count everything anew."""
        self.__init__()  # type: ignore[misc]
        for job in listed:
            self.jobs += 1
            self.add(job)
        for job in retiring:
            self.add(job)
            self.retire(job)

    def add(self, job: Counted) -> None:
        """Count one more job."""
        self.ranks += job.seen
        self.said += job.world_size if job.seen else 0
        if job.opener is not None and not job.ended:
            self._unseen[job.opener.link] += job.world_size - job.seen
            self._on_host[job.opener.token, job.opener.host] += 1
            self._listed.add(job)

    def retire(self, job: Counted) -> None:
        """Count a job among those that are being replaced."""
        if job.opener is not None and not job.ended:
            self._on_host[job.opener.token, job.opener.host] -= 1
            self._listed.add(job, -1)
            self._retiring.add(job)

    def drop_ended(self, job: Counted) -> None:
        """Count a job that has ended no longer."""
        self.jobs -= 1
        self.ranks -= job.seen
        self.said -= job.world_size if job.seen else 0

    def see(self, job: Counted, ranks: int, accounts: Iterable[Account]) -> None:
        """Count ranks of a job that were announced for the first time."""
        self.ranks += ranks
        if ranks and job.seen == ranks:  # its first ones
            self.said += job.world_size
        for account in accounts:
            job.announced[account.key] += ranks
            self._listed.ranks[account.key] += ranks

    def check_opener(self, link: Link, name: str, world_size: int, ranks: int, replaced: Counted | None) -> None:
        """Raise `NoRoom` if who asks has too much on this server already, without the attempt that is replaced."""
        freed = _Held()
        if replaced is not None and not replaced.ended:
            freed.add(replaced)
        for account in accounts_of(link.caller, name):
            self._check_account(account, name, world_size, freed)
            self._check_ranks(account, name, ranks - freed.ranks[account.key])
        begun = self._on_host[link.caller.holder, link.host]
        if begun >= limits.JOBS_PER_HOST_MAX:
            raise _too_many(name, f"agents on {link.host}", begun, limits.JOBS_PER_HOST_MAX)
        if self._unseen[link.number] + world_size > limits.UNSEEN_PER_AGENT_MAX:
            raise NoRoom(
                f"no room for job {name} of {world_size} ranks: this agent has begun jobs of which "
                f"{self._unseen[link.number]} ranks are still to come; {limits.UNSEEN_PER_AGENT_MAX} is the limit"
            )

    def check_ranks(self, link: Link, name: str, ranks: int) -> None:
        """Raise `NoRoom` if so many more ranks are too much for who asks."""
        for account in accounts_of(link.caller, name) if ranks else ():
            self._check_ranks(account, name, ranks)

    def _check_account(self, account: Account, name: str, world_size: int, freed: _Held) -> None:
        jobs = self._listed.jobs[account.key] - freed.jobs[account.key]
        if jobs >= account.jobs_max:
            raise _too_many(name, account.words, jobs, account.jobs_max)
        said, said_max = self._listed.said[account.key] - freed.said[account.key], account.said_max
        if said + world_size > said_max:
            raise NoRoom(
                f"no room for job {name} of {world_size} ranks: jobs of {account.words} say to have {said} ranks, "
                f"and {said_max} are the limit"
            )
        replaced = self._retiring.jobs[account.key], self._retiring.ranks[account.key]
        if freed.jobs[account.key] and (replaced[0] >= account.jobs_max or replaced[1] >= account.ranks_max):
            raise NoRoom(f"no room for another attempt of job {name} yet: {replaced[0]} attempts are being replaced")

    def _check_ranks(self, account: Account, name: str, ranks: int) -> None:
        held = self._listed.ranks[account.key]
        if held + ranks > account.ranks_max:
            raise NoRoom(
                f"no room for {ranks} more ranks of job {name}: {account.words} have announced {held} ranks, and "
                f"{account.ranks_max} are the limit; ask for a token with another ranks="
            )

    def lacks(self, world_size: int, ranks: int) -> bool:
        """Whether one more job, of which so many ranks are there, is too much for this server."""
        return (
            self.jobs >= limits.JOBS_MAX
            or self.ranks + ranks > limits.RANKS_TOTAL_MAX
            or self.said + (world_size if ranks else 0) > limits.SAID_MAX
        )

    def lacks_ranks(self, ranks: int) -> bool:
        """Whether so many more ranks of a job that is known are too much for this server."""
        return ranks > 0 and self.ranks + ranks > limits.RANKS_TOTAL_MAX

    def full(self, name: str, world_size: int) -> NoRoom:
        """Return the sentence of a server that is full."""
        return NoRoom(
            f"no room for job {name} of {world_size} ranks: this server watches {self.jobs} jobs of {self.ranks} "
            f"ranks, and {limits.JOBS_MAX} jobs of {limits.RANKS_TOTAL_MAX} ranks are its limit; start another "
            "ncclwatch-server for it"
        )


def _too_many(name: str, who: str, jobs: int, jobs_max: int) -> NoRoom:
    return NoRoom(f"no room for job {name}: {who} have begun {jobs} jobs, and {jobs_max} are the limit")
