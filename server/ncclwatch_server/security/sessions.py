"""Keeps who has logged in with a browser: the cookie is a random word of this process, and never the token.

A session ends when its reader logs out, when its token ends, after half a day, and when the server does.
"""

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

SESSION_S = 12 * 3600.0
SESSIONS_MAX = 4096  # then the oldest ends


class Sessions:
    """The browsers that have logged in, by the digest of their cookie."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    def begin(self, token: str) -> str:
        """Return the cookie of somebody who has shown a good token."""
        now = self._clock()
        while self._tokens and (len(self._tokens) >= SESSIONS_MAX or next(iter(self._tokens.values()))[1] <= now):
            self._tokens.popitem(last=False)
        word = secrets.token_urlsafe(32)
        self._tokens[_digest(word)] = token, now + SESSION_S
        return word

    def token(self, word: str) -> str:
        """Return the token that stands behind a cookie, "" if none does."""
        token, until = self._tokens.get(_digest(word), ("", 0.0))
        return token if until > self._clock() else ""

    def end(self, word: str) -> None:
        """Forget a session."""
        self._tokens.pop(_digest(word), None)


def _digest(word: str) -> bytes:
    return hashlib.sha256(word.encode("utf-8", "backslashreplace")).digest()
