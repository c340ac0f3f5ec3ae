"""Runs a hook as a process group of its own, in a thread, with a deadline. No shell is involved.

It is spawned and not forked: its parent has threads, and blocks signals that a hook must get.
"""

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

KILL_S = 2.0  # from SIGTERM to SIGKILL, and from there until it is given up
ENDED_S_MAX = 2 * KILL_S  # after its deadline a hook is over within that time
POLL_S = 0.05
OUTPUT_BYTES_MAX = 4096  # of what it writes; the rest is read and dropped
LINES_MAX = 10
LINE_CHARS_MAX = 200
_READ_BYTES = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class HookResult:
    """How a hook has ended."""

    code: int | None  # negative: by that signal; None: it was not started, or has been killed
    seconds: float
    failure: str = ""  # why it has no code
    lines: tuple[str, ...] = ()  # the first that it has written

    @property
    def words(self) -> str:
        """Return it in words that follow the name of the hook."""
        if self.failure:
            return self.failure
        if self.code is not None and self.code < 0:
            return f"was ended by signal {-self.code} after {self.seconds:.1f} s"
        return f"finished with {self.code} in {self.seconds:.1f} s"


class HookProcess:
    """A hook that was started. Its result is there once it has ended."""

    def __init__(
        self,
        command: Sequence[str],
        data: bytes,
        timeout_s: float,
        environ: Mapping[str, str],
        ended: Callable[[HookResult], None] | None = None,
    ) -> None:
        """Start it. `data` is its standard input. `ended` is called in a thread."""
        self._call_ended = ended
        self.result: HookResult | None = None
        self._timeout_s = timeout_s
        self._began = time.monotonic()
        self._unwanted = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(tuple(command), data, dict(environ)), name="ncclwatch-hook", daemon=True
        )
        self._thread.start()

    def wait(self) -> HookResult:
        """Return its result once it has one, which its deadline bounds."""
        self._thread.join()
        return self.result or HookResult(code=None, seconds=self._seconds, failure="failed: this is a bug in ncclwatch")

    def end(self) -> HookResult:
        """End it before its deadline."""
        self._unwanted.set()
        return self.wait()

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _run(self, command: Sequence[str], data: bytes, environ: Mapping[str, str]) -> None:
        result = self._run_to_its_end(command, data, environ)
        if self._call_ended is not None:
            self._call_ended(result)
        self.result = result

    def _run_to_its_end(self, command: Sequence[str], data: bytes, environ: Mapping[str, str]) -> HookResult:
        try:
            pid, output = _spawned(command, data, environ)
        except OSError as error:
            return HookResult(code=None, seconds=self._seconds, failure=f"could not be run: {error.strerror}")
        try:
            written = _Output(output)
            timed_out = not self._ends_in_time(pid, written)
            if timed_out:
                _end(pid)
            code = _reaped(pid)
            written.read()
        finally:
            os.close(output)
        failure = ""
        if timed_out and self._unwanted.is_set():
            failure = "was ended with its agent"
        elif timed_out:
            failure = f"did not end within {self._timeout_s:g} s (hook_timeout_s), and was killed"
        elif code is None:
            failure = "ended; its exit code is unknown"
        return HookResult(code=None if failure else code, seconds=self._seconds, failure=failure, lines=written.lines)

    def _ends_in_time(self, pid: int, written: "_Output") -> bool:
        while not _has_ended(pid):
            if self._unwanted.is_set() or self._seconds >= self._timeout_s:
                return False
            written.read(POLL_S)
        return True


class _Output:
    """What a hook writes: its beginning is kept."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._closed = False
        self._kept = b""
        os.set_blocking(fd, False)
        self._readable = select.poll()  # select() knows no descriptor above 1023
        self._readable.register(fd, select.POLLIN)

    def read(self, within_s: float = 0.0) -> None:
        """Read once what is there or comes within this time."""
        if self._closed:
            time.sleep(within_s)
            return
        if self._readable.poll(within_s * 1000):
            with suppress(BlockingIOError):
                found = os.read(self._fd, _READ_BYTES)
                self._closed = not found
                self._kept += found[: OUTPUT_BYTES_MAX - len(self._kept)]

    @property
    def lines(self) -> tuple[str, ...]:
        """Return its first lines."""
        lines = self._kept.decode(errors="replace").splitlines()
        return tuple(line[:LINE_CHARS_MAX] for line in lines if line.strip())[:LINES_MAX]


def _spawned(command: Sequence[str], data: bytes, environ: Mapping[str, str]) -> tuple[int, int]:
    """Return the number of a new process, and a pipe with what it writes. Raises OSError."""
    # A file and no pipe: a hook that does not read it holds up nobody.
    with os.fdopen(os.memfd_create("hook", os.MFD_CLOEXEC), "w+b") as given:
        given.write(data)
        given.flush()
        given.seek(0)
        output, end = os.pipe()
        try:
            pid = os.posix_spawn(
                command[0],
                list(command),
                environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, given.fileno(), 0),
                    (os.POSIX_SPAWN_DUP2, end, 1),
                    (os.POSIX_SPAWN_DUP2, end, 2),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
            )
        except OSError:
            os.close(output)
            raise
        finally:
            os.close(end)
    return pid, output


def _has_ended(pid: int) -> bool:
    """Whether it has ended. It stays a zombie, so that its number still names its process group."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _end(pid: int) -> None:
    """End it with all of its group that it has started."""
    _signal(pid, signal.SIGTERM)
    _wait(pid)
    _signal(pid, signal.SIGKILL)
    _wait(pid)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(OSError):
        os.killpg(pid, number)


def _wait(pid: int) -> None:
    deadline = time.monotonic() + KILL_S
    while not _has_ended(pid) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _reaped(pid: int) -> int | None:
    try:
        reaped, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if reaped else None
