"""Wrong tokens are counted by address and answered ever later; holders are never locked out; cookies are no tokens."""

import logging
from collections import Counter

import pytest

from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.network.tokens import Token, weakness
from ncclwatch_server import settings
from ncclwatch_server.security import guesses
from ncclwatch_server.security.access import tell_of_guesses
from ncclwatch_server.security.audit import AuditEntry, AuditTrail
from ncclwatch_server.security.guesses import FREE, WAITING_MAX, Guesses, place
from ncclwatch_server.security.peers import origin, proxies
from ncclwatch_server.security.scopes import EVERYTHING, Access, Caller, Denial, Grant, Lack, Scope
from ncclwatch_server.security.sessions import SESSION_S, SESSIONS_MAX, Sessions

GRANTS = tuple(Grant(token=Token(secret=word, name=word), scopes=EVERYTHING) for word in ("one", "two"))
HOME, ELSEWHERE = "10.0.0.7", "10.0.0.8"


class Door:
    """A server that is shown tokens, and its clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.access = Access(GRANTS, clock=lambda: self.now)

    def show(self, word: str, address: str = HOME) -> tuple[Caller | Denial, float]:
        found, wait_s = self.access.recognise(address, word, Scope.VIEWER)
        return self.access.permit(found, Scope.VIEWER), wait_s

    def guess(self, times: int, address: str = HOME) -> list[float]:
        return [self.show(f"wrong {number}", address)[1] for number in range(times)]


def test_a_few_wrong_tokens_are_answered_at_once_and_more_of_them_ever_later() -> None:
    door = Door()
    waits = door.guess(FREE + 8)
    assert waits[: FREE + 1] == [0.0] * (FREE + 1)
    assert waits[FREE + 1 :] == [0.125, 0.25, 0.5, 1.0, 2.0, 2.0, 2.0]
    assert door.guess(1, ELSEWHERE) == [0.0]
    door.now += guesses.FORGOTTEN_S + 0.1
    door.access.guesses.untold()
    assert door.guess(1) == [0.0]


def test_a_holder_passes_at_once_where_others_guess() -> None:
    door = Door()
    door.show("one")
    door.guess(1000)
    found, wait_s = door.show("one")
    assert (isinstance(found, Caller), wait_s) == (True, 0.0)
    assert door.show("")[1] == 0.0


def test_a_good_token_that_is_new_there_waits_as_long_as_a_wrong_one() -> None:
    door = Door()
    door.show("one", ELSEWHERE)
    door.guess(FREE + 20)
    found, wait_s = door.show("one")
    assert (isinstance(found, Caller), wait_s) == (True, 2.0)
    assert door.show("one")[1] == 0.0


def test_while_too_many_answers_wait_no_new_token_is_looked_at_and_holders_still_pass() -> None:
    door = Door()
    door.show("one")
    door.guess(FREE + 1)
    for _ in range(WAITING_MAX):
        door.access.guesses.waits(HOME, 1)
    for word in ("wrong", "two"):
        found, wait_s = door.show(word)
        assert isinstance(found, Denial)
        assert (found.lack, found.status, wait_s) == (Lack.GUESSED, 429, 0.0)
    assert isinstance(door.show("one")[0], Caller)
    assert isinstance(door.show("two", ELSEWHERE)[0], Caller)
    door.access.guesses.waits(HOME, -1)
    assert isinstance(door.show("two")[0], Caller)
    assert door.access.denials == {Lack.WRONG: FREE + 1, Lack.GUESSED: 2}


def test_addresses_are_forgotten_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "ADDRESSES_MAX", 3)
    monkeypatch.setattr(guesses, "HOLDERS_MAX", 2)
    found = Guesses()
    for number in range(10):
        found.wrong(f"10.0.0.{number}", 0.0)
        found.good(f"10.0.0.{number}", b"x")
    assert found.untold() == {"10.0.0.7": 1, "10.0.0.8": 1, "10.0.0.9": 1}
    assert found.untold() == {}
    assert list(found._holders) == [("10.0.0.8", b"x"), ("10.0.0.9", b"x")]


@pytest.mark.parametrize(
    ("address", "counts_as"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("unknown", "unknown"),
    ],
)
def test_one_machine_is_one_address(address: str, counts_as: str) -> None:
    assert place(address) == counts_as


def test_guesses_are_written_down_by_address_and_few_lines_tell_of_many(caplog: pytest.LogCaptureFixture) -> None:
    class Kept:
        """Keeps lines."""

        def __init__(self) -> None:
            self.details: list[str] = []

        def note(self, entry: AuditEntry) -> None:
            self.details.append(f"{entry.act}: {entry.detail}")

    door, kept = Door(), Kept()
    door.guess(300)
    for number in range(100):
        door.guess(1, f"10.1.0.{number}")
    with caplog.at_level(logging.WARNING):
        tell_of_guesses(door.access, AuditTrail(kept))
    assert kept.details[0] == "guess: 300 wrong tokens from 10.0.0.7"
    assert kept.details[-1] == "guess: 81 wrong tokens from 81 further addresses"
    assert len(kept.details) == 21
    assert "300 wrong tokens came from 10.0.0.7" in caplog.text
    tell_of_guesses(door.access, AuditTrail(kept))
    assert len(kept.details) == 21


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        ("", "has 0 characters"),
        ("fifteen-letters", "the token of wall has 15 characters and can be guessed"),
        ("sixteen--letters", ""),
        ("a" * 40, "has only 1 different characters"),
        ("abcde" * 8, "has only 5 different characters"),
        ("abcdef" * 8, ""),
    ],
)
def test_what_can_be_guessed_is_weak(secret: str, words: str) -> None:
    found = weakness(Token(secret=secret, name="wall"))
    assert (words in found, bool(found)) == (True, bool(words))
    assert not secret or secret not in found


@pytest.mark.parametrize(("host", "private"), [("0.0.0.0", True), ("0.0.0.0", False), ("127.0.0.1", False)])
def test_only_a_private_server_on_loopback_takes_a_weak_token(host: str, private: bool) -> None:
    with pytest.raises(ConfigError, match="token_urlsafe"):
        settings.check_strength(GRANTS, host, private=private)
    settings.check_strength(GRANTS, "127.0.0.1", private=True)
    settings.check_strength((), host, private=private)


def test_a_session_names_a_token_until_it_is_ended_or_old() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    words = [sessions.begin("secret") for _ in range(3)]
    assert len(set(words)) == 3
    assert all("secret" not in word and len(word) >= 43 for word in words)
    sessions.end(words[0])
    sessions.end("never begun")
    assert [sessions.token(word) for word in words] == ["", "secret", "secret"]
    now[0] = SESSION_S
    assert [sessions.token(word) for word in words] == ["", "", ""]
    assert sessions.token("") == ""


def test_there_are_so_many_sessions_and_then_the_oldest_ends() -> None:
    sessions = Sessions()
    words = [sessions.begin("secret") for _ in range(SESSIONS_MAX + 2)]
    assert Counter(map(sessions.token, words)) == {"": 2, "secret": SESSIONS_MAX}
    assert sessions.token(words[0]) == ""


@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        ("10.0.0.7", "1.2.3.4", "1.2.3.4"),
        ("10.0.0.7", "6.6.6.6, 1.2.3.4", "1.2.3.4"),
        ("10.0.0.7", "1.2.3.4, 10.9.0.1", "1.2.3.4"),
        ("10.0.0.7", "", "10.0.0.7"),
        ("127.0.0.1", "1.2.3.4", "127.0.0.1"),
        ("", "1.2.3.4", ""),
    ],
)
def test_only_a_named_proxy_is_believed_and_only_as_far_as_it_can_know(peer: str, forwarded: str, found: str) -> None:
    trusted = proxies(["10.0.0.7", "10.9.0.0/16"])
    assert origin(peer, forwarded, trusted) == found
    assert origin(peer, forwarded, ()) == peer
