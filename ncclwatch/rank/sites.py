"""Which line of the user's own code is this? Answered in a fraction of a microsecond, from any depth.

The user's frame is the first one, from the inside out, that belongs neither to torch, nor to a
known framework, nor to the standard library, nor to ncclwatch.
"""

import os
import sys
from types import CodeType, FrameType

from ncclwatch.contract.ownership import is_users
from ncclwatch.contract.ring import SITE_SEPARATOR
from ncclwatch.rank.ringfile import RingFile

DEPTH_MAX = 80
KNOWN_MAX = 100_000  # code made at run time must not grow these tables for ever


class Sites:
    """Finds call sites and gives them ids in the ring's string table."""

    def __init__(self, ring: RingFile) -> None:
        self._ring = ring
        self._users: dict[CodeType, bool] = {}
        self._ids: dict[tuple[CodeType, int], int] = {}
        self._texts: dict[int, str] = {0: SITE_SEPARATOR * 2}
        self._labelled: dict[tuple[int, int], int] = {}

    def here(self, depth: int = 2) -> int:
        """Return the id of the user's line that led to the caller's caller; 0 if there is none."""
        frame = self.users_frame(sys._getframe(depth))
        if frame is None:
            return 0
        key = (frame.f_code, frame.f_lasti)
        known = self._ids.get(key)
        if known is None:
            known = self.of(frame.f_code, frame.f_lineno)
            if len(self._ids) < KNOWN_MAX:
                self._ids[key] = known
        return known

    def of(self, code: CodeType, line: int | None) -> int:
        """Return the id of a line of some code."""
        text = describe(code.co_filename, line, code)
        known = self._ring.string(text)
        self._texts.setdefault(known, text)
        return known

    def labelled(self, site: int, label: int) -> int:
        """Return the id of a site together with what its operation is for (the id of a text)."""
        known = self._labelled.get((site, label))
        if known is None:
            known = self._ring.string(f"{self._texts.get(site, '')}{SITE_SEPARATOR}{self._texts.get(label, '')}")
            known = known or site
            self._labelled[site, label] = known
        return known

    def label(self, text: str) -> int:
        """Return the id of a text that says what an operation is for, 0 if the table of strings is full."""
        known = self._ring.string(text)
        if known:
            self._texts[known] = text
        return known

    def users_frame(self, frame: FrameType | None) -> FrameType | None:
        """Return the innermost frame of the user's own code, from `frame` outwards."""
        users = self._users
        for _ in range(DEPTH_MAX):
            if frame is None:
                return None
            code = frame.f_code
            mine = users.get(code)
            if mine is None:
                mine = is_users(code.co_filename)
                if len(users) < KNOWN_MAX:
                    users[code] = mine
            if mine:
                return frame
            frame = frame.f_back
        return None

    def users_frames(self, frame: FrameType | None, count: int) -> list[tuple[CodeType, int]]:
        """Return up to `count` of the user's own frames as (code, line), innermost first."""
        found: list[tuple[CodeType, int]] = []
        frame = self.users_frame(frame)
        while frame is not None and len(found) < count:
            found.append((frame.f_code, frame.f_lineno or 0))
            frame = self.users_frame(frame.f_back)
        return found


def describe(filename: str, line: int | None, code: CodeType) -> str:
    """Return a call site as the ring's string table holds it."""
    name = getattr(code, "co_qualname", code.co_name).replace(".<locals>", "")
    return f"{os.path.abspath(filename)}{SITE_SEPARATOR}{line or 0}{SITE_SEPARATOR}{name}"
