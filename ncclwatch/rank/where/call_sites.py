"""Finds the line of the user's own code, and who called it, in a microsecond, from any depth.

The user's frame is the first one, from the inside out, that belongs neither to torch, nor to a
known framework, nor to the standard library, nor to ncclwatch. Its callers are the next ones of the same
kind: a helper that all of a program's collectives go through says nothing by its own line. One way in two gradient
modes is two ways: a forward under no_grad is another one than that of training.
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FrameType
from typing import cast

from ncclwatch.contract.model.rank import ModuleView
from ncclwatch.contract.ring.call_sites import CALLERS_MAX, SiteText, write
from ncclwatch.contract.stacks.ownership import is_users
from ncclwatch.rank.ringfile import RingFile
from ncclwatch.rank.where.modules import Modules

DEPTH_MAX = 80
CALLERS_DEPTH_MAX = 24  # frames looked through for callers: beyond, a framework calls, not the user
_PARTS_MAX = 2 * (1 + CALLERS_MAX)  # a code object and its instruction for each frame
KNOWN_MAX = 100_000  # code made at run time must not grow these tables for ever


class Sites:
    """Finds call sites and gives them ids in the ring's string table."""

    def __init__(self, ring: RingFile) -> None:
        self._ring = ring
        self.modules = Modules()
        self.grad_mode: Callable[[], bool] = _always  # torch.is_grad_enabled, once torch is there
        self._users: dict[CodeType, bool] = {}
        self._ids: dict[tuple[object, ...], int] = {}
        self._texts: dict[int, SiteText] = {0: SiteText("", 0, "")}
        self._labels: dict[int, str] = {}
        self._labelled: dict[tuple[int, int], int] = {}

    def here(self, depth: int = 2) -> int:
        """Return the id of the user's line that led to the caller's caller, and of its callers; 0 if there is none."""
        # One loop without calls: this is on the path of every operation.
        parts: list[object] = []
        users, left = self._users, DEPTH_MAX
        frame: FrameType | None = sys._getframe(depth)
        while frame is not None and left:
            code = frame.f_code
            mine = users.get(code)
            if mine is None:
                mine = self._meet(code)
            if mine:
                if not parts:
                    left = CALLERS_DEPTH_MAX
                parts.append(code)
                parts.append(frame.f_lasti)
                if len(parts) == _PARTS_MAX:
                    break
            frame = frame.f_back
            left -= 1
        if not parts:
            return 0
        parts.append(self.grad_mode())
        key = tuple(parts)
        known = self._ids.get(key)
        return self._first_seen(key) if known is None else known

    def line_here(self, depth: int = 2) -> int:
        """Return the id of the user's line that led to the caller's caller, whoever called it; 0 if there is none."""
        frame = self.users_frame(sys._getframe(depth))
        return 0 if frame is None else self.of(frame.f_code, frame.f_lineno)

    def of(self, code: CodeType, line: int | None) -> int:
        """Return the id of a line of some code."""
        return self._known(describe(code, line))

    def route(self, code: CodeType, line: int | None, callers: Sequence[tuple[CodeType, int | None]]) -> int:
        """Return the id of a line and of the lines that called it, innermost first; without room, of the line alone.

        Asked when this thread is on that way for the first time, in this gradient mode.
        """
        ids = tuple(known for each in callers if (known := self.of(*each)))
        module = self._module()
        whole = describe(code, line)._replace(callers=ids, module=module)
        return (self._known(whole) if ids or module else 0) or self.of(code, line)

    def _module(self) -> ModuleView | None:
        try:
            return self.modules.now(3)
        except Exception:  # a model whose modules cannot be listed; the way is known without its path
            self._ring.count_dropped()
            return None

    def _known(self, site: SiteText) -> int:
        known = self._ring.string(write(site))
        if known:
            self._texts.setdefault(known, site)
        return known

    def labelled(self, site: int, label: int) -> int:
        """Return the id of a site together with what its operation is for (the id of a text)."""
        known = self._labelled.get((site, label))
        if known is None:
            text = self._texts.get(site, self._texts[0])._replace(label=self._labels.get(label, ""))
            known = self._ring.string(write(text)) or site
            self._labelled[site, label] = known
        return known

    def label(self, text: str) -> int:
        """Return the id of a text that says what an operation is for, 0 if the table of strings is full."""
        known = self._ring.string(text)
        if known:
            self._labels[known] = text
        return known

    def _meet(self, code: CodeType) -> bool:
        mine = is_users(code.co_filename)
        if len(self._users) < KNOWN_MAX:
            self._users[code] = mine
        return mine

    def _first_seen(self, key: tuple[object, ...]) -> int:
        """Return the id of a way: code objects and the instructions they are at, innermost first, then the mode."""
        codes, places = cast(Iterable[CodeType], key[:-1:2]), cast(Iterable[int], key[1:-1:2])
        (code, line), *callers = [(each, _line_of(each, at)) for each, at in zip(codes, places, strict=True)]
        known = self.route(code, line, callers)
        if len(self._ids) < KNOWN_MAX:
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
            if mine if mine is not None else self._meet(code):
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


def _always() -> bool:
    return True


def _line_of(code: CodeType, at: int) -> int | None:
    """Return the line of an instruction, given by its offset in bytes."""
    return next((line for begin, end, line in code.co_lines() if begin <= at < end), code.co_firstlineno)


def describe(code: CodeType, line: int | None) -> SiteText:
    """Return a line of some code as a call site."""
    name = getattr(code, "co_qualname", code.co_name).replace(".<locals>", "")
    return SiteText(os.path.abspath(code.co_filename), line or 0, name)
