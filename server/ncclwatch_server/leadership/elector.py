"""Decides whether this server leads: takes the lease, renews it, and gives up when another server has it.

A leader that cannot reach the database, or waits for its answer, asks the other servers. While none of them leads it
goes on, because a database that is away is away for all, as a rule, and training must stay watched. One that does lead
is proof that the lease is lost. A leader that was halted (SIGSTOP, a frozen machine) finds its confirmation too old,
and judges nothing until it has a new one.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Protocol

from ncclwatch.contract.machine.liveness import LoopLife
from ncclwatch_server.leadership.lease import Candidate, Lease, LeaseUnavailable

log = logging.getLogger("ncclwatch.server")

RENEW_S = 1.0  # between two rounds
LOST_S = 0.1  # in which a leader that lost its lease begins to end
CONFIRMED_S = 5.0  # after the last confirmation a leader judges no more
LEASE_S = 6.0  # a lease that a follower has seen unchanged for so long is free. Longer than CONFIRMED_S
# Each question to the database has a deadline. A server whose round lasts for longer neither leads nor follows.
ROUND_STILL_S = 60.0
ROUND_ENDS_S = 300.0  # the first round may bring an older database up to this version
SILENT_S = 120.0  # a candidate that shows no life for so long is forgotten
MET_MAX = 16  # addresses of servers, also of former ones, that are asked where the database is away


class Leases(Protocol):
    """See `lease.LeaseTable`."""

    @property
    def me(self) -> Candidate:
        """This server."""

    def read(self) -> tuple[Lease | None, tuple[Candidate, ...]]:
        """Return who leads, and the other candidates."""

    def acquire(self, seen: Lease | None) -> Lease | None:
        """Take the lease if it is still as seen."""

    def renew(self, mine: Lease) -> Lease | None:
        """Keep it; None: another server has it."""

    def leave(self, mine: Lease | None) -> None:
        """Release it."""

    def forget(self, others: tuple[str, ...]) -> None:
        """Forget other candidates."""


class Elector:
    """One server's part in the election. One thread calls `follow`, `lead` and `leave`; all may read the rest."""

    def __init__(
        self,
        leases: Leases,
        ask: Callable[[str], int | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ask` returns the term in which the server at a URL leads, None if it does not, or does not answer."""
        self.lease: Lease | None = None  # of this server
        self.problem = ""  # why the database cannot be used, "" while it can
        self.life = LoopLife("election", age_s_max=ROUND_STILL_S, ends_s=ROUND_ENDS_S, vital=True)
        self._leases = leases
        self._ask = ask
        self._clock = clock
        self._led = 0  # the newest term in which this server has led
        self._seen: Lease | None = None
        self._seen_at: float | None = None  # since when it is unchanged; None: nothing was read
        self._others: tuple[Candidate, ...] = ()
        self._met: dict[str, None] = {}  # addresses of others that were candidates at any time, the newest last
        self._beats: dict[str, tuple[int, float]] = {}  # of other candidates, and when they changed
        self._confirmed_at = 0.0

    @property
    def me(self) -> Candidate:
        """This server."""
        return self._leases.me

    @property
    def leads(self) -> bool:
        """Whether this server may judge and notify now."""
        return self.lease is not None and self._clock() - self._confirmed_at < CONFIRMED_S

    @property
    def leader_url(self) -> str:
        """Where the leader is, as far as this server knows; "": nobody leads."""
        known = self.lease or self._seen
        return known.url if known is not None and known.holder else ""

    @property
    def term(self) -> int:
        """The newest term that this server knows of."""
        known = self.lease or self._seen
        return max(self._led, known.term if known is not None else 0)

    def follow(self) -> bool:
        """Go one round as a follower. Returns whether this server leads now."""
        began = self._clock()
        try:
            seen, self._others = self._leases.read()
            self._meet()
            now = self._clock()
            if self._seen_at is None or seen != self._seen:
                self._seen, self._seen_at = seen, now
            if seen is None or not seen.holder or now - self._seen_at >= LEASE_S:
                self._seen_at = now  # whether it is taken or not: another one may be first
                self.lease = self._leases.acquire(seen)
                self._led = self.lease.term if self.lease is not None else self._led
        except LeaseUnavailable as error:
            self._seen_at = None  # the leader could not renew it either
            self._note(str(error))
            return False
        self._note("")
        self._confirmed_at = began
        return self.lease is not None

    def lead(self) -> bool:
        """Go one round as the leader. Returns whether this server still leads."""
        assert self.lease is not None
        began = self._clock()
        with ThreadPoolExecutor(1) as pool:
            attempt = pool.submit(self._renew, self.lease)
            while wait((attempt,), RENEW_S).not_done:  # a database that is away may take seconds to say nothing
                asked = self._clock()
                if self._another_leads():
                    return self._lose()
                began = self._confirmed_at = asked
            try:
                kept = attempt.result()
            except LeaseUnavailable as error:
                self._note(str(error))
                if self._another_leads():
                    return self._lose()
            else:
                if not kept:
                    return self._lose()
                self._meet()
                self._note("")
        self._confirmed_at = began
        return True

    def _renew(self, mine: Lease) -> bool:
        """Keep the lease, and see who else is there. Returns False if another server has it."""
        renewed = self._leases.renew(mine)
        if renewed is None:
            return False
        if self.lease is mine:
            self.lease = renewed
        _, self._others = self._leases.read()
        self._forget_silent()
        return True

    def _lose(self) -> bool:
        self._seen, self.lease = None, None
        return False

    def leave(self) -> None:
        """Let another server lead at once."""
        mine, self.lease = self.lease, None
        try:
            self._leases.leave(mine)
        except LeaseUnavailable as error:
            log.warning("the others take over after %.0f s only: %s", LEASE_S, error)

    def _another_leads(self) -> bool:
        assert self.lease is not None
        if not self._met:
            return False
        with ThreadPoolExecutor(len(self._met)) as pool:
            terms = list(pool.map(self._ask, self._met))
        return any(term is not None and term > self.lease.term for term in terms)

    def _meet(self) -> None:
        """Remember where others are: one that is away now may come back while this one cannot read of it."""
        for other in self._others:
            self._met.pop(other.url, None)
            self._met[other.url] = None
        while len(self._met) > MET_MAX:
            del self._met[next(iter(self._met))]

    def _forget_silent(self) -> None:
        now = self._clock()
        self._beats = {
            each.id: self._beats[each.id]
            if each.id in self._beats and self._beats[each.id][0] == each.beat
            else (each.beat, now)
            for each in self._others
        }
        silent = tuple(name for name, (_, since) in self._beats.items() if now - since >= SILENT_S)
        if silent:
            self._leases.forget(silent)

    def _note(self, problem: str) -> None:
        if problem and not self.problem:
            log.error("%s; judging goes on, and it is tried again", problem)
        elif self.problem and not problem:
            log.info("the election works again")
        self.problem = problem


class Reign:
    """The thread that renews the lease of a leader, for as long as the context lasts."""

    def __init__(self, elector: Elector, healthy: Callable[[], bool] = lambda: True) -> None:
        """While it is not `healthy` the lease is not renewed: another server may lead."""
        self.healthy = healthy
        self.lost = threading.Event()  # another server leads
        self._elector = elector
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ncclwatch-lease", daemon=True)

    def __enter__(self) -> "Reign":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(timeout=CONFIRMED_S)

    async def end(self) -> None:
        """Wait until another server leads."""
        while not self.lost.is_set():
            await asyncio.sleep(LOST_S)

    def _run(self) -> None:
        sick = False
        life = self._elector.life
        life.began()
        while not self._stopping.wait(RENEW_S):
            life.went_round()
            try:
                if self.healthy():
                    sick = False
                    if self._elector.lead():
                        continue
                    log.error("another server leads now, at %s", self._elector.leader_url or "an address to be learned")
                else:
                    if not sick:
                        log.error("this server is too slow to lead: the lease is not renewed")
                    sick = True
                    continue
            except (Exception, SystemExit):  # a server that knows nothing of its lease must not lead
                log.exception("renewing the lease failed in an unforeseen way")
            life.rests()
            self.lost.set()
            return
