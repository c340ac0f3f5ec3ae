"""Says whether there is room for one more job or rank: on this server, and for who asks.

Ranks count when they are seen. What a job only says to have is bounded for itself, so that an announcement cannot fill
the server: see `SAID_MAX` in `limits`.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ncclwatch.contract.errors import WireError
from ncclwatch_server import limits
from ncclwatch_server.evidence.agent_link import Link


class NoRoom(WireError):
    """A job finds no room; its agent's other jobs go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opener:
    """Who began a job."""

    link: int
    host: str
    token: str


class Counted(Protocol):
    """What is counted of a job."""

    opener: Opener | None
    ended: bool

    @property
    def world_size(self) -> int:
        """How many ranks it says to have."""

    @property
    def seen(self) -> int:
        """How many of them were seen."""


class Room:
    """What the jobs of this server hold, as of the last count and what was begun since."""

    def __init__(self) -> None:
        self.jobs = 0  # listed ones
        self.ranks = 0  # seen
        self.said = 0  # ranks that jobs of which any was seen say to have
        self._living: Counter[tuple[str, str]] = Counter()  # jobs by the host and by the token of who began them
        self._unseen: Counter[int] = Counter()  # ranks by the connection that began their jobs

    def count(self, listed: Iterable[Counted], retiring: Iterable[Counted]) -> None:
        """Count everything anew."""
        self.__init__()  # type: ignore[misc]
        for job in listed:
            self.jobs += 1
            self.add(job)
        for job in retiring:
            self.add(job)

    def add(self, job: Counted) -> None:
        """Count one more job."""
        self.ranks += job.seen
        self.said += job.world_size if job.seen else 0
        if job.opener is not None and not job.ended:
            self._unseen[job.opener.link] += job.world_size - job.seen
            self._living["host", job.opener.host] += 1
            self._living["token", job.opener.token] += 1

    def check_opener(self, link: Link, name: str, world_size: int) -> None:
        """Raise `NoRoom` if who asks has too much on this server already."""
        mine = link.caller
        for what, key, most in (
            (f"agents on {link.host} have", ("host", link.host), limits.JOBS_PER_HOST_MAX),
            (f"agents with the token of {mine.name} have", ("token", mine.name), mine.bounds.jobs_max),
        ):
            if most is not None and self._living[key] >= most:
                raise NoRoom(f"no room for job {name}: {what} begun {self._living[key]} jobs, and {most} are the limit")
        if self._unseen[link.number] + world_size > limits.UNSEEN_PER_AGENT_MAX:
            raise NoRoom(
                f"no room for job {name} of {world_size} ranks: this agent has begun jobs of which "
                f"{self._unseen[link.number]} ranks are still to come; {limits.UNSEEN_PER_AGENT_MAX} is the limit"
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
