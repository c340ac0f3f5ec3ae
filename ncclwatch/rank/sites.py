"""Which line of the user's own code is this? Answered in a fraction of a microsecond, from any depth.

The user's frame is the first one, from the inside out, that belongs neither to torch, nor to a
known framework, nor to the standard library, nor to ncclwatch.
"""

import os
import sys
from types import CodeType, FrameType

from ncclwatch.contract.ownership import is_users
from ncclwatch.rank.ringfile import RingFile

SEPARATOR = "\x1f"  # between file, line and function in the ring's string table
DEPTH_MAX = 80


class Sites:
    """Finds call sites and gives them ids in the ring's string table."""

    def __init__(self, ring: RingFile) -> None:
        self._ring = ring
        self._users: dict[CodeType, bool] = {}
        self._ids: dict[tuple[CodeType, int], int] = {}

    def here(self, depth: int = 2) -> int:
        """Return the id of the user's line that led to the caller's caller; 0 if there is none."""
        frame = self.users_frame(sys._getframe(depth))
        if frame is None:
            return 0
        key = (frame.f_code, frame.f_lasti)
        known = self._ids.get(key)
        if known is None:
            known = self._ring.string(describe(frame.f_code.co_filename, frame.f_lineno, frame.f_code))
            if len(self._ids) < 100_000:  # code made at run time must not grow this for ever
                self._ids[key] = known
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
                if len(users) < 100_000:
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
    return f"{os.path.abspath(filename)}{SEPARATOR}{line or 0}{SEPARATOR}{name}"
