"""Keeps what this rank has found out about itself: one JSON text in its ring, written anew when something changes.

It survives the rank: what was found just before a crash explains the crash.
"""

import threading

from ncclwatch.contract.ring.layout import Word
from ncclwatch.rank.ring.ringfile import RingFile

CHANGES_MAX = 64  # the table of strings only grows


class Facts:
    """The facts of one rank, by subject (see `ncclwatch.contract.ring.facts`)."""

    def __init__(self, ring: RingFile) -> None:
        self._ring = ring
        self._known: dict[str, dict[str, object]] = {}
        self._changes = 0
        self._changing = threading.Lock()  # held for a string's append, never while anything else is called

    def known(self, subject: str) -> dict[str, object]:
        """Return what is known of a subject."""
        return dict(self._known.get(subject, {}))

    def tell(self, subject: str, **found: object) -> None:
        """Add to what is known of a subject, or change it."""
        with self._changing:
            before = self._known.get(subject, {})
            after = before | found
            if after == before:
                return
            self._changes += 1
            if self._changes > CHANGES_MAX:
                if self._changes == CHANGES_MAX + 1:
                    self._ring.count_dropped()
                return
            self._known[subject] = after
            told = self._ring.told(self._known)
            if told:  # else what was told before is all there is
                self._ring.set_word(Word.FACTS, told)
