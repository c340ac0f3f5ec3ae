"""What has this rank found out about itself? One JSON text in its ring, written anew when something changes.

It survives the rank: what was found just before a crash explains the crash.
"""

import json
import threading

from ncclwatch.contract.ring import Word
from ncclwatch.rank.ringfile import RingFile

CHANGES_MAX = 64  # the table of strings only grows


class Facts:
    """The facts of one rank, by subject (see `ncclwatch.contract.facts`)."""

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
            self._ring.set_word(Word.FACTS, self._ring.long_string(json.dumps(self._known)))
