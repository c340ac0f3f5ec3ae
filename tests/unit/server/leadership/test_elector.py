"""Of several servers one leads: at no instant two that both judge, and another one as soon as it fails."""

import threading
from collections.abc import Iterator

import pytest

from ncclwatch.contract.machine.liveness import LoopLife
from ncclwatch_server.leadership.elector import CONFIRMED_S, LEASE_S, MET_MAX, SILENT_S, Elector, Reign
from ncclwatch_server.leadership.lease import Candidate, Lease, LeaseUnavailable


class World:
    """A database row that all servers share, and the time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lease: Lease | None = None
        self.candidates: dict[str, Candidate] = {}
        self.away: set[str] = set()  # servers that cannot reach the database
        self.read_only = False
        self.electors: dict[str, Elector] = {}
        self.answers: dict[str, int | None] = {}

    def server(self, name: str) -> Elector:
        leases = Row(self, Candidate(id=name, url=f"http://{name}"))
        self.electors[name] = Elector(leases, self.answers.get, clock=lambda: self.now)
        return self.electors[name]

    def pass_s(self, seconds: float, *rounds: Elector) -> None:
        for _ in range(round(seconds)):
            self.now += 1.0
            for each in rounds:
                each.lead() if each.lease is not None else each.follow()
            self.never_two()

    def never_two(self) -> None:
        assert sum(each.leads for each in self.electors.values()) <= 1


class Row:
    def __init__(self, world: World, me: Candidate) -> None:
        self.me = me
        self._world = world

    def read(self) -> tuple[Lease | None, tuple[Candidate, ...]]:
        self._reach()
        world = self._world
        world.candidates[self.me.id] = Candidate(id=self.me.id, url=self.me.url, beat=int(world.now))
        return world.lease, tuple(each for name, each in world.candidates.items() if name != self.me.id)

    def acquire(self, seen: Lease | None) -> Lease | None:
        self._reach(writing=True)
        if self._world.lease != seen:
            return None
        term, beat = (seen.term + 1, seen.beat + 1) if seen is not None else (1, 1)
        self._world.lease = Lease(holder=self.me.id, url=self.me.url, term=term, beat=beat)
        return self._world.lease

    def renew(self, mine: Lease) -> Lease | None:
        self._reach(writing=True)
        held = self._world.lease
        if held is None or (held.holder, held.term) != (mine.holder, mine.term):
            return None
        self._world.lease = Lease(holder=mine.holder, url=mine.url, term=mine.term, beat=mine.beat + 1)
        return self._world.lease

    def leave(self, mine: Lease | None) -> None:
        self._reach(writing=True)
        if mine is not None:
            self._world.lease = Lease(holder="", url=mine.url, term=mine.term, beat=mine.beat + 1)

    def forget(self, others: tuple[str, ...]) -> None:
        for name in others:
            del self._world.candidates[name]

    def _reach(self, *, writing: bool = False) -> None:
        if self.me.id in self._world.away or (writing and self._world.read_only):
            raise LeaseUnavailable("it is away")


@pytest.fixture
def world() -> Iterator[World]:
    yield World()


def test_the_first_leads_at_once_and_goes_on(world: World) -> None:
    a, b = world.server("a"), world.server("b")
    assert a.follow()
    assert not b.follow()
    world.pass_s(60, a, b)
    assert (a.leads, b.leads, b.leader_url, b.term) == (True, False, "http://a", 1)


def test_one_that_is_gone_is_followed_by_another(world: World) -> None:
    a, b = world.server("a"), world.server("b")
    a.follow()
    world.pass_s(10, a, b)
    world.pass_s(LEASE_S - 1, b)
    assert not b.leads
    world.pass_s(1, b)
    assert (b.leads, b.term) == (True, 2)


def test_one_that_lost_its_lease_still_knows_in_which_term_it_led(world: World) -> None:
    """What it writes may have been begun with that."""
    a, b = world.server("a"), world.server("b")
    a.follow()
    world.pass_s(LEASE_S + 2, b)
    assert not a.lead()
    assert (a.lease, a.term) == (None, 1)


def test_one_that_was_halted_judges_no_more_and_learns_that_it_lost(world: World) -> None:
    a, b = world.server("a"), world.server("b")
    a.follow()
    world.pass_s(10, a, b)
    world.now += CONFIRMED_S  # of a, which does nothing meanwhile
    assert not a.leads
    world.pass_s(LEASE_S + 1, b)
    assert b.leads
    assert not a.lead()
    assert (a.lease, a.leads) == (None, False)
    world.pass_s(10, a, b)
    assert (a.leads, b.leads) == (False, True)


def test_one_that_leaves_waits_for_nobody(world: World) -> None:
    a, b = world.server("a"), world.server("b")
    a.follow()
    world.pass_s(3, a, b)
    a.leave()
    assert (b.leader_url, a.leads) == ("http://a", False)
    world.pass_s(1, b)
    assert b.leads


def test_a_database_that_is_away_for_all_changes_nothing(world: World) -> None:
    a, b = world.server("a"), world.server("b")
    a.follow()
    world.pass_s(10, a, b)
    world.away = {"a", "b"}
    world.pass_s(60, a, b)
    assert a.leads
    assert a.problem == "it is away"
    world.away = set()
    world.pass_s(1, b)  # the first to see it again: the lease is old, and yet it is not taken
    assert not b.leads
    world.pass_s(30, a, b)
    assert (a.leads, a.problem, b.leads) == (True, "", False)


def test_a_database_that_takes_no_writes_changes_nothing(world: World) -> None:
    a, b = world.server("a"), world.server("b")
    a.follow()
    world.pass_s(10, a, b)
    world.read_only = True
    world.pass_s(60, a, b)
    assert (a.leads, b.leads) == (True, False)
    world.read_only = False
    world.pass_s(30, b, a)
    assert (a.leads, b.leads) == (True, False)


@pytest.mark.parametrize("another", [False, True])
def test_one_whose_database_takes_long_to_say_nothing_goes_on_unless_another_leads(
    world: World, monkeypatch: pytest.MonkeyPatch, *, another: bool
) -> None:
    monkeypatch.setattr("ncclwatch_server.leadership.elector.RENEW_S", 0.01)
    a, b = world.server("a"), world.server("b")
    a.follow()
    world.pass_s(3, a, b)
    answers, led = threading.Event(), []

    def renew(mine: Lease) -> Lease | None:
        answers.wait(60)
        raise LeaseUnavailable("it does not answer")

    def ask(url: str) -> int | None:
        world.now += 1.0
        led.append(a.leads)
        if len(led) == 20:
            answers.set()
            return 2 if another else None
        return None

    monkeypatch.setattr(a._leases, "renew", renew)
    monkeypatch.setattr(a, "_ask", ask)
    assert a.lead() is not another
    assert all(led)
    assert a.leads is not another


def test_one_that_is_cut_off_from_the_database_gives_up_as_soon_as_another_leads(world: World) -> None:
    a, b = world.server("a"), world.server("b")
    a.follow()
    world.pass_s(10, a, b)
    world.away = {"a"}
    for _ in range(round(LEASE_S) + 1):
        world.answers["http://b"] = b.term if b.lease is not None else None
        world.now += 1.0
        if b.lease is None:
            b.follow()
        if a.lease is not None:
            a.lead()
    assert (a.lease, b.leads) == (None, True)


def test_one_that_is_cut_off_asks_also_a_server_that_was_away_before(world: World) -> None:
    """It was stopped for a while, and comes back while the leader does not reach the database."""
    a, b = world.server("a"), world.server("b")
    a.follow()
    world.pass_s(3, a, b)
    del world.candidates["b"]
    world.pass_s(3, a)
    world.away = {"a"}
    b.follow()
    world.now += LEASE_S
    assert b.follow()
    world.answers["http://b"] = b.term
    assert (b.leads, b.term) == (True, 2)
    assert not a.lead()


def test_addresses_that_are_remembered_are_bounded(world: World) -> None:
    a = world.server("a")
    a.follow()
    asked: list[str] = []
    for number in range(3 * MET_MAX):
        world.candidates = {"c": Candidate(id="c", url=f"http://{number}")}
        world.pass_s(1, a)
    a._ask = asked.append
    world.away = {"a"}
    assert a.lead()
    assert sorted(asked) == sorted(f"http://{number}" for number in range(2 * MET_MAX, 3 * MET_MAX))


@pytest.mark.parametrize("answer", [None, 0, 1])
def test_an_answer_of_an_older_term_is_no_reason_to_give_up(world: World, answer: int | None) -> None:
    a, b = world.server("a"), world.server("b")
    a.follow()
    world.pass_s(3, a, b)
    world.away, world.answers["http://b"] = {"a", "b"}, answer
    assert a.lead()
    assert a.leads


def test_only_one_of_many_takes_a_free_lease(world: World) -> None:
    a, b, c = world.server("a"), world.server("b"), world.server("c")
    a.follow()
    world.pass_s(3, a, b, c)
    world.pass_s(30, b, c)
    assert (b.leads, c.leads) == (True, False)


def test_a_candidate_that_was_never_seen_again_is_forgotten(world: World) -> None:
    a = world.server("a")
    world.server("b").follow()
    world.electors["b"].leave()
    world.candidates["gone"] = Candidate(id="gone", url="http://gone", beat=3)
    world.pass_s(SILENT_S + 3, a)
    assert "gone" not in world.candidates


class Seat:
    """An elector of whom only the thread is of interest."""

    leader_url = "http://b"

    def __init__(self, outcome: bool | Exception) -> None:
        self._outcome = outcome
        self.rounds = 0
        self.life = LoopLife("election", age_s_max=60.0, vital=True)

    def lead(self) -> bool:
        self.rounds += 1
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


@pytest.mark.parametrize("outcome", [False, RuntimeError("unforeseen")])
def test_a_leader_that_lost_or_knows_nothing_of_its_lease_ends(outcome: bool | Exception) -> None:
    with Reign(Seat(outcome)) as reign:  # type: ignore[arg-type]
        assert reign.lost.wait(10)


def test_one_that_is_too_slow_does_not_renew_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ncclwatch_server.leadership.elector.RENEW_S", 0.01)
    asked, seat = threading.Event(), Seat(outcome=True)

    def healthy() -> bool:
        asked.set()
        return False

    with Reign(seat, healthy) as reign:  # type: ignore[arg-type]
        assert asked.wait(10)
    assert (seat.rounds, reign.lost.is_set()) == (0, False)
