"""Says who may do what: whoever shows a token of the right scope, or everyone on the loopback address if there is none.

Pure: what a request shows is read in `access`. Agents bring news, viewers read, operators also ask for stacks and
delete. A token is compared in constant time, by digests, with every one that is known; the answer to a bad one says
what is wrong with it.
"""

import hashlib
import hmac
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum

from ncclwatch.contract import config
from ncclwatch.contract.network.tokens import UNBOUND, Bounds, Token
from ncclwatch_server.security.guesses import Guesses
from ncclwatch_server.security.sessions import Sessions


class Scope(str, Enum):
    """What a token is good for."""

    AGENT = "agent"  # bring news of ranks
    VIEWER = "viewer"  # read
    OPERATOR = "operator"  # read, ask for stacks, delete


EVERYTHING = frozenset(Scope)


class Lack(str, Enum):
    """What is wrong with what somebody showed."""

    ABSENT = "absent"
    WRONG = "wrong"
    EXPIRED = "expired"
    SCOPE = "scope"
    GUESSED = "guessed"  # too many others from there were wrong: it was not looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A token and what it is good for."""

    token: Token
    scopes: frozenset[Scope]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Somebody who was let in."""

    name: str  # as the token says, or its scopes; "anyone" where no token is set
    until: float | None = None  # when the token ends
    bounds: Bounds = UNBOUND  # of what an agent with it may bring news
    holder: str = ""  # whose token it is: two of one name are one holder's, those without a name are each another's


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """Why somebody was not let in."""

    lack: Lack
    sentence: str

    @property
    def status(self) -> int:
        """Return the HTTP status that says it."""
        return {Lack.SCOPE: 403, Lack.GUESSED: 429}.get(self.lack, 401)

    @property
    def challenge(self) -> str:
        """Return the WWW-Authenticate header of RFC 6750."""
        if self.lack is Lack.ABSENT:
            return "Bearer"
        return 'Bearer error="insufficient_scope"' if self.lack is Lack.SCOPE else 'Bearer error="invalid_token"'


class Access:
    """The tokens of this server."""

    def __init__(
        self,
        grants: Iterable[Grant] = (),
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._grants = tuple((_digest(grant.token.secret), grant) for grant in grants)
        self._wall, self._clock = wall, clock
        self.denials: Counter[Lack] = Counter()
        self.guesses = Guesses()
        self.sessions = Sessions(clock)

    @property
    def bounds(self) -> tuple[tuple[str, Bounds], ...]:
        """Return the bounds of all tokens of agents, each with whose it is."""
        return tuple(
            (_holder(digest, g.token), g.token.bounds) for digest, g in self._grants if Scope.AGENT in g.scopes
        )

    @property
    def guarded(self) -> bool:
        """Whether anybody has to show anything."""
        return bool(self._grants)

    def recognise(self, address: str, shown: str, scope: Scope) -> tuple[Grant | Denial | None, float]:
        """Say whose token came from an address, and in how many seconds the answer may be given.

        Nothing else tells a right token from a wrong one: what depends on the answer comes after it, and after the
        wait. None: no token was shown, or none is asked for. `scope` is the one that the sentence names.
        """
        if not shown or not self._grants:
            return None, 0.0
        digest, now = _digest(shown), self._clock()
        wait_s = self.guesses.wait_s(address, digest, now)
        grant = self._grant(digest)
        if grant is None:
            self.guesses.wrong(address, now)
        if wait_s < 0:
            words = f"too many wrong tokens came from {address}, so this one was not looked at; try again later"
            return self._deny(Lack.GUESSED, words), 0.0
        if grant is None:
            words = f"this server does not know the token that was shown; {_how(scope)}"
            return self._deny(Lack.WRONG, words), wait_s
        self.guesses.good(address, digest)
        return grant, wait_s

    def permit(self, found: Grant | Denial | None, scope: Scope) -> Caller | Denial:
        """Say whether the token that was recognised lets its holder do something."""
        if not self._grants:
            return Caller(name="anyone")
        if found is None:
            return self._deny(Lack.ABSENT, f"this server wants a token; {_how(scope)}")
        if isinstance(found, Denial):
            return found
        token, name = found.token, _name(found)
        if token.until is not None and token.until <= self._wall():
            when = datetime.fromtimestamp(token.until, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
            return self._deny(Lack.EXPIRED, f"the token of {name} ended on {when}; {_how(scope)}")
        if scope not in found.scopes:
            scopes = " and ".join(sorted(each.value for each in found.scopes))
            sentence = f"the token of {name} is one of scope {scopes}, this wants scope {scope.value}; {_how(scope)}"
            return self._deny(Lack.SCOPE, sentence)
        holder = _holder(_digest(token.secret), token)
        return Caller(name=name, until=token.until, bounds=token.bounds, holder=holder)

    def _grant(self, digest: bytes) -> Grant | None:
        found = None
        for known, grant in self._grants:  # all of them: how long it takes says nothing
            if hmac.compare_digest(digest, known):
                found = grant
        return found

    def _deny(self, lack: Lack, sentence: str) -> Denial:
        self.denials[lack] += 1
        return Denial(lack=lack, sentence=sentence)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "backslashreplace")).digest()


def _holder(digest: bytes, token: Token) -> str:
    """Return whose a token is. A name is one word, so that none is what stands for a token without one."""
    return token.name or f"unnamed {digest.hex()}"


def _name(grant: Grant) -> str:
    return grant.token.name or f"an unnamed {'/'.join(sorted(each.value for each in grant.scopes))}"


def _how(scope: Scope) -> str:
    own = {
        Scope.AGENT: config.ENV_AGENT_TOKEN,
        Scope.VIEWER: config.ENV_VIEWER_TOKEN,
        Scope.OPERATOR: config.ENV_OPERATOR_TOKEN,
    }[scope]
    place = " on the nodes" if scope is Scope.AGENT else ""
    return f"set {config.ENV_TOKEN} or {own} (or their _FILE){place} to one that is valid"
