"""Finds the line of the user's own code, and who called it, in a microsecond, from any depth.

The user's frame is the first one, from the inside out, that belongs neither to torch, nor to a
known framework, nor to the standard library, nor to ncclwatch. Its callers are the next ones of the same
kind: a helper that all of a program's collectives go through says nothing by its own line. One way in two gradient
modes is two ways: a forward under no_grad is another one than that of training.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FrameType
from typing import cast

from ncclwatch.contract.model.rank import ModuleView
from ncclwatch.contract.ring.call_sites import CALLERS_MAX, SiteText, write
from ncclwatch.contract.ring.layout import Word
from ncclwatch.contract.stacks.ownership import is_users
from ncclwatch.rank.ring.ringfile import RingFile
from ncclwatch.rank.where.handlers import handlers, raised_by_handler
from ncclwatch.rank.where.modules import Modules

DEPTH_MAX = 80
CALLERS_DEPTH_MAX = 24  # frames looked through for callers: beyond, a framework calls, not the user
_PARTS_MAX = 2 * (1 + CALLERS_MAX)  # a code object and its instruction for each frame
KNOWN_MAX = 16_384  # of these tables: a program that makes code at run time must not grow them for ever


def started_by_python() -> bool:
    """Say whether this thread is one of Python's; torch has others, which only visit."""
    # Not current_thread(): that makes an object for good of each thread that Python does not know.
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    return thread is not None and not isinstance(thread, threading._DummyThread)


class Sites:
    """Finds call sites and gives them ids in the ring's string table."""

    def __init__(self, ring: RingFile) -> None:
        self._ring = ring
        self.modules = Modules()
        self.grad_mode: Callable[[], bool] = _always  # torch.is_grad_enabled, once torch is there
        # Code by its id, which stays its own as long as it is held here: alike functions of two files are equal.
        self._users: dict[int, CodeType] = {}
        self._others: dict[int, CodeType] = {}
        self._ids: dict[tuple[object, ...], tuple[int, list[CodeType]]] = {}
        self._texts: dict[int, SiteText] = {0: SiteText("", 0, "")}
        self._labels: dict[int, str] = {}
        self._labelled: dict[tuple[int, int], int] = {}
        self._units: dict[object, int] = {}

    def here(self, depth: int = 2) -> int:
        """Return the id of the user's line that led to the caller's caller, and of its callers; 0 if there is none."""
        # One loop without calls: this is on the path of every operation.
        parts: list[object] = []
        codes: list[CodeType] = []
        users, others, left = self._users, self._others, DEPTH_MAX
        try:
            frame: FrameType | None = sys._getframe(depth)
        except ValueError:  # a thread of torch's own, such as autograd's for a GPU, has no frames but ours
            return 0
        while frame is not None and left:
            code = frame.f_code
            at = id(code)
            if at not in others and (at in users or self._meet(code)):
                if not parts:
                    left = CALLERS_DEPTH_MAX
                codes.append(code)
                parts.append(at)
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
        return self._first_seen(key, codes) if known is None else known[0]

    def line_here(self, depth: int = 2) -> int:
        """Return the id of the user's line that led to the caller's caller, whoever called it; 0 if there is none."""
        try:
            frame = self.users_frame(sys._getframe(depth))
        except ValueError:  # as above
            return 0
        return 0 if frame is None else self.of(frame.f_code, frame.f_lineno)

    def of_backward(self) -> int:
        """Return where the backward runs for which this thread issues; 0 in a thread that Python has started.

        Autograd's threads have no frames of the user's. Nor has a library's own thread (an asynchronous checkpoint),
        which does nothing for a backward.
        """
        other = started_by_python() and threading.get_ident() != threading.main_thread().ident
        return 0 if other else self._ring.word(Word.BACKWARD_SITE)

    def of(self, code: CodeType, line: int | None) -> int:
        """Return the id of a line of some code."""
        return self._known(describe(code, line))

    def route(self, code: CodeType, line: int | None, callers: Sequence[tuple[CodeType, int | None]]) -> int:
        """Return the id of a line and of the lines that called it, innermost first; without room, of the line alone.

        Asked when this thread is on that way for the first time, in this gradient mode. What a signal handler has
        interrupted did not call it.
        """
        interrupting = handlers()
        whole_way = (code, *(each for each, _ in callers))
        called = next((n for n, each in enumerate(whole_way) if each in interrupting), len(callers))
        ids = tuple(known for each in callers[:called] if (known := self.of(*each)))
        module = self._module()
        whole = describe(code, line)._replace(callers=ids, module=module)
        return (self._known(whole) if ids or module else 0) or self.of(code, line)

    def _module(self) -> ModuleView | None:
        try:
            return self.modules.now(3)
        except Exception as error:  # a model whose modules cannot be listed; the way is known without its path
            if raised_by_handler(error):
                raise
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

    def unit(self, name: object) -> int:
        """Return the id of the label of a unit of FSDP; of the root one, which has no name, for None or ""."""
        known = self._units.get(name)
        if known is None:
            known = self._units[name] = self.label(f"FSDP unit {name}" if name else "FSDP root unit")
        return known

    def _meet(self, code: CodeType) -> bool:
        mine = is_users(code.co_filename)
        known = self._users if mine else self._others
        if len(known) >= KNOWN_MAX:  # what is still in use comes back
            known.clear()
        known[id(code)] = code
        return mine

    def _first_seen(self, key: tuple[object, ...], codes: list[CodeType]) -> int:
        """Return the id of a way: code objects and the instructions they are at, innermost first, then the mode."""
        places = cast(Iterable[int], key[1:-1:2])
        (code, line), *callers = [(each, _line_of(each, at)) for each, at in zip(codes, places, strict=True)]
        known = self.route(code, line, callers)
        if len(self._ids) >= KNOWN_MAX:
            self._ids.clear()
        self._ids[key] = known, codes
        return known

    def users_frame(self, frame: FrameType | None) -> FrameType | None:
        """Return the innermost frame of the user's own code, from `frame` outwards."""
        users, others = self._users, self._others
        for _ in range(DEPTH_MAX):
            if frame is None:
                return None
            code = frame.f_code
            at = id(code)
            if at not in others and (at in users or self._meet(code)):
                return frame
            frame = frame.f_back
        return None

    def users_frames(self, frame: FrameType | None, count: int) -> list[tuple[CodeType, int]]:
        """Return up to `count` of the user's own frames as (code, line), innermost first, up to a signal handler's."""
        found: list[tuple[CodeType, int]] = []
        interrupting = handlers()
        frame = self.users_frame(frame)
        while frame is not None and len(found) < count:
            found.append((frame.f_code, frame.f_lineno or 0))
            if frame.f_code in interrupting:
                break
            frame = self.users_frame(frame.f_back)
        return found


def _always() -> bool:
    return True


def _line_of(code: CodeType, at: int) -> int | None:
    """Return the line of an instruction, given by its offset in bytes."""
    # No generator: what a signal handler raises while one is closed is lost.
    for begin, end, line in code.co_lines():
        if begin <= at < end:
            return line
    return code.co_firstlineno


def describe(code: CodeType, line: int | None) -> SiteText:
    """Return a line of some code as a call site."""
    name = getattr(code, "co_qualname", code.co_name).replace(".<locals>", "")
    return SiteText(os.path.abspath(code.co_filename), line or 0, name)


def describe_exception(error: BaseException, sites: Sites) -> dict[str, object]:
    """Return an exception as a sample holds it: type and message, and the user's innermost line in it."""
    found: dict[str, object] = {"exc": f"{type(error).__name__}: {error}"[:400]}
    if isinstance(error, FileExistsError) and isinstance(error.filename, str):
        found["exc_path"] = error.filename[:400]
    users = None
    trace = error.__traceback__
    while trace is not None:
        if sites.users_frame(trace.tb_frame) is trace.tb_frame:
            users = trace
        trace = trace.tb_next
    if users is not None:
        site = describe(users.tb_frame.f_code, users.tb_lineno)
        found |= {"exc_file": site.file, "exc_line": site.line, "exc_function": site.function}
    return found
