"""Runs the user's command as if nobody watched, and ends it when it hangs.

It inherits the terminal and its process group. Signals are waited for instead of handled: while
a handler would need this process to be in the right place, a queue of signals can be read.
"""

import contextlib
import itertools
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from ncclwatch.contract.errors import NcclwatchError

LOOK_S = 0.1
TERMINATE_S = 5.0  # from SIGTERM to SIGKILL
KILLED_S = 10.0  # from SIGKILL to the end: whatever lives then is held by the kernel
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BY_KERNEL = 128  # SI_KERNEL: the terminal sent it, so that the command has got it as well
_MODULES = ("ncclwatch_agent", "ncclwatch_server")
_PROGRAMS = ("ncclwatch-agent", "ncclwatch-server")
_ARGUMENTS_MAX = 6  # of a command that are looked at


class CommandFailed(NcclwatchError):
    """The command could not be started."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


class Training:
    """The user's command. Create it while there is no other thread: the child is forked."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], before: set[int] | None = None) -> None:
        """Start the command. Raises `CommandFailed`.

        `before`: the signals that were blocked before another command was started, which has ended.
        """
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {*_FORWARDED, signal.SIGCHLD})
        self._heard = 0  # the newest signal that ncclwatch has got
        self._left: Sequence[psutil.Process] = ()  # that do not end
        self.before = before = {*map(int, blocked)} if before is None else before
        try:
            self._process = subprocess.Popen(
                command,
                env=dict(environ),
                # A blocked signal stays blocked through exec; the command must get its own.
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),
            )
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            found = not isinstance(error, FileNotFoundError)
            raise CommandFailed(
                f"cannot run {command[0]}: {error.strerror}; what follows -- is the command to run",
                126 if found else 127,
            ) from error

    @property
    def exit_code(self) -> int | None:
        """Return how it ended, in the manner of a shell; None while it runs."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def wait_a_little(self) -> None:
        """Return when the command has ended, a signal was passed on, or soon."""
        heard = signal.sigtimedwait({*_FORWARDED, signal.SIGCHLD}, LOOK_S)
        if heard is None or heard.si_signo == signal.SIGCHLD:
            return
        self._heard = heard.si_signo
        if heard.si_code == _BY_KERNEL:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(heard.si_signo)

    def end(self) -> tuple[str, ...]:
        """End the command and all that it started: with SIGTERM, and with SIGKILL what is left.

        Returns sentences on processes that do not end even then.
        """
        # The launcher comes first, so that it does not start ended workers again.
        tree = list(_tree(self._process.pid))
        _send(tree, signal.SIGTERM)
        deadline = time.monotonic() + TERMINATE_S
        while (left := self._alive(tree)) and time.monotonic() < deadline:
            time.sleep(LOOK_S / 2)
        _send(left, signal.SIGKILL)
        deadline = time.monotonic() + KILLED_S
        while (left := self._alive(left)) and time.monotonic() < deadline:
            time.sleep(LOOK_S / 2)
        self._left = left
        return tuple(map(_does_not_end, left))

    def may_not_follow(self) -> str:
        """Return why no other command may follow after the end of this one, "" if one may."""
        if self._alive(self._left):
            return "processes of it are still there"
        while (heard := signal.sigtimedwait(_FORWARDED, 0)) is not None:
            self._heard = heard.si_signo
        return f"{signal.Signals(self._heard).name} has come" if self._heard else ""

    def _alive(self, tree: Sequence[psutil.Process]) -> list[psutil.Process]:
        self._process.poll()  # a child stays a zombie until it is asked after
        return [process for process in tree if _is_alive(process)]


def _tree(pid: int) -> Iterator[psutil.Process]:
    """Yield a process and its descendants, parents first, but not our agent: it has to report the end."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if is_ours(process.cmdline()):
            return
        children = process.children()
        yield process
        for child in children:
            yield from _tree(child.pid)


def is_ours(command: Sequence[str]) -> bool:
    """Whether a command line is that of an agent or a server of ncclwatch, and not of a script in such a directory."""
    words = command[:_ARGUMENTS_MAX]
    as_module = any(option == "-m" and name in _MODULES for option, name in itertools.pairwise(words))
    return as_module or any(Path(word).name in _PROGRAMS for word in words[:2])


def _does_not_end(process: psutil.Process) -> str:
    state = ""
    with contextlib.suppress(psutil.Error):
        state = f" ({process.status()})"
    return f"process {process.pid} does not end after SIGKILL{state}: the kernel holds it, and its node needs a look"


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _send(tree: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in tree:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
