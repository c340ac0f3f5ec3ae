"""Says what the source text around a call site says, read on the node that has the file.

Only Python is read, whatever file a ring names: a line of a key or of a list of passwords must not travel to a server.

A file may lie on a mount that is dead, and reading it may then never return: so one thread of
our own reads, the agent waits for it a short while, and goes on without.
"""

import ast
import asyncio
import contextlib
import io
import os
import queue
import re
import stat
import threading
import tokenize
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from ncclwatch.contract import config
from ncclwatch.contract.machine.liveness import LoopLife, keep_thread
from ncclwatch.contract.model.rank import CallSite, SourceNote
from ncclwatch.contract.stacks.ownership import is_users_by_path
from ncclwatch.contract.words.masking import masked_line
from ncclwatch_agent.deadline import within
from ncclwatch_agent.log import log
from ncclwatch_agent.source.secrets import without_secrets
from ncclwatch_agent.source.surroundings import Surroundings

FILE_BYTES_MAX = 2 * 1024 * 1024
SHEBANG_BYTES_MAX = 256
FILES_MAX = 32  # parsed files kept
NOTES_MAX = 512
READ_S_MAX = 2.0
LOOK_STILL_S = 30.0  # a mount that has not answered for so long is reported
AROUND = 3  # lines before and after a call site
AROUND_CHARS_MAX = 160  # of each
_LINE_END = re.compile("\r\n|\r|\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    lines: tuple[str, ...]
    around: Surroundings | None  # None: a syntax error


class SourceReader:
    """Makes notes about call sites, and remembers the files it read while they stay the same."""

    def __init__(self) -> None:
        self._files: OrderedDict[tuple[str, int, int], _File] = OrderedDict()
        self._notes: OrderedDict[tuple[str, int, int, int], SourceNote] = OrderedDict()

    def note_of(self, site: CallSite) -> SourceNote:
        """Return what the file says round this line; empty fields where it cannot be read or parsed."""
        empty = SourceNote(site=site, text="")
        try:
            found = Path(site.file).stat()
            if not stat.S_ISREG(found.st_mode) or found.st_size > FILE_BYTES_MAX:
                return empty
            key = (site.file, found.st_mtime_ns, found.st_size)
            known = self._notes.get((*key, site.line))
            if known is None or known.site != site:
                known = _make_note(site, self._file(key))
                self._notes[(*key, site.line)] = known
                _trim(self._notes, NOTES_MAX)
        except (OSError, ValueError):
            return empty
        return known

    def _file(self, key: tuple[str, int, int]) -> _File:
        known = self._files.get(key)
        if known is None:
            with open(os.open(key[0], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise OSError(f"{key[0]} is no plain file any more")
                known = _parse(key[0], file.read(FILE_BYTES_MAX))
            self._files[key] = known
            _trim(self._files, FILES_MAX)
        self._files.move_to_end(key)
        return known


def _trim(
    kept: "OrderedDict[tuple[str, int, int], _File] | OrderedDict[tuple[str, int, int, int], SourceNote]", most: int
) -> None:
    while len(kept) > most:
        kept.popitem(last=False)


def is_python(name: str, data: bytes) -> bool:
    """Whether a file is a Python program, by its name or by its first line."""
    first = data[:SHEBANG_BYTES_MAX].split(b"\n", 1)[0]
    return name.endswith((".py", ".pyw")) or (first.startswith(b"#!") and b"python" in first)


def _parse(name: str, data: bytes) -> _File:
    if not is_python(name, data):
        return _File(lines=(), around=None)
    lines = _lines(data)
    try:
        tree = ast.parse(data)
        return _File(lines=without_secrets(lines, tree), around=Surroundings(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _File(lines=lines, around=None)


def _lines(data: bytes) -> tuple[str, ...]:
    """Return the lines as Python counts them: a form feed ends none, as it does for `str.splitlines`."""
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
        text = data.decode(encoding, errors="replace")
    except (SyntaxError, LookupError):
        text = data.decode(errors="replace")
    return tuple(_LINE_END.split(text))


def _make_note(site: CallSite, file: _File) -> SourceNote:
    text = masked_line(file.lines[site.line - 1].strip()) if 1 <= site.line <= len(file.lines) else ""
    if file.around is None or not text:
        # Without its statements, what belongs to a secret is not known: the lines around it are not shown.
        return SourceNote(site=site, text=text[: config.TEXT_CHARS_MAX])
    condition = loop = outer = None
    handler = ""
    early_exits: tuple[str, ...] = ()
    rank_exit = ""
    with contextlib.suppress(RecursionError):  # of an expression nested hundreds deep: a note without surroundings
        condition = file.around.condition(site.line)
        loop = file.around.loop(site.line)
        outer = file.around.outer_loop(site.line)
        handler = file.around.handler(site.line)
        early_exits = file.around.early_exits(site.line)
        rank_exit = file.around.rank_exit(site.line)
    return SourceNote(
        site=site,
        text=text[: config.TEXT_CHARS_MAX],
        condition=masked_line(condition.text) if condition else "",
        condition_line=condition.line if condition else 0,
        other_branch_ops=condition.other_branch_ops if condition else (),
        branch_ops=condition.branch_ops if condition else (),
        loop=masked_line(loop.head) if loop else "",
        loop_lines=loop.lines if loop else (0, 0),
        loop_escapes=tuple(map(masked_line, loop.escapes)) if loop else (),
        outer_loop=masked_line(outer.head) if outer else "",
        early_exits=tuple(map(masked_line, early_exits)),
        rank_exit=masked_line(rank_exit),
        handler=masked_line(handler),
        around=_around(site, file.lines, condition.line if condition else 0),
    )


def _around(site: CallSite, lines: tuple[str, ...], condition_line: int) -> tuple[tuple[int, str], ...]:
    """Return the lines around a call site of the user's own code, and the line of the test that decides about it."""
    if not is_users_by_path(site.file) or not 1 <= site.line <= len(lines):
        return ()
    first, last = max(1, site.line - AROUND), min(len(lines), site.line + AROUND)
    numbers = {*range(first, last + 1)} | ({condition_line} if 1 <= condition_line <= len(lines) else set())
    return tuple(
        (number, masked_line(lines[number - 1].rstrip().expandtabs(4))[:AROUND_CHARS_MAX]) for number in sorted(numbers)
    )


_Job = tuple[tuple[CallSite, ...], asyncio.AbstractEventLoop, "asyncio.Future[tuple[SourceNote, ...]]"]


class SourceDesk:
    """Has a thread read sources, and never waits for it longer than READ_S_MAX."""

    def __init__(self) -> None:
        self._reader = SourceReader()
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self.life = LoopLife("sources", age_s_max=LOOK_STILL_S)  # it waits for a disk
        self._thread: threading.Thread | None = None
        self._stuck = False

    async def notes(self, sites: tuple[CallSite, ...]) -> tuple[SourceNote, ...]:
        """Return notes about these call sites, none of them while the reader hangs on some dead mount."""
        if not sites:
            return ()
        if self._thread is None:
            self._thread = threading.Thread(target=self._live, name="sources", daemon=True)
            self._thread.start()
        if self._stuck and not self._jobs.empty():
            return ()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[SourceNote, ...]] = loop.create_future()
        self._jobs.put((sites[: config.SOURCES_MAX], loop, future))
        try:
            found = await within(READ_S_MAX, future)
        except asyncio.TimeoutError:
            self._stuck = True
            return ()
        self._stuck = False
        return found

    def _live(self) -> None:
        keep_thread(self.life, log, self._work, threading.Event())

    def _work(self) -> None:
        while True:
            self.life.rests()
            sites, loop, future = self._jobs.get()
            self.life.went_round()
            try:
                found = tuple(self._reader.note_of(site) for site in sites)
            except Exception:  # noqa: BLE001  a source that no parser likes: the thread must live for the next one
                log.exception("the sources of %d call sites could not be read", len(sites))
                found = ()
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: the agent ends
                loop.call_soon_threadsafe(_deliver, future, found)


def _deliver(future: "asyncio.Future[tuple[SourceNote, ...]]", found: tuple[SourceNote, ...]) -> None:
    if not future.done():
        future.set_result(found)
