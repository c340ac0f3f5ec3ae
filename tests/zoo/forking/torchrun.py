r"""Many torchruns and lone ranks that are forked from one process that has imported torch, and are not started anew.

    python -c 'exec(compile(open("tests/zoo/forking/torchrun.py").read(), "<torchrun>", "exec"))' FD DIRECTORY

As no file of the user's own: its `if` would be taken for the place where ranks part. See `torch_once`, which starts it.

Importing torch and torch._dynamo costs a rank four seconds of CPU, most of what a small program needs at all. All
else is torchrun's own code: rendezvous, environment, waiting, signals. The ranks are forked before torchrun begins,
while this process has one thread; each waits until torchrun starts it, then becomes `python -u program.py`. Its end
is the interpreter's own: hooks, exit handlers, exit code.

What is not as in a real start: /proc/PID/environ and /proc/PID/cmdline end in NULs, hashes of strings are alike in all
ranks, torch is imported before the program begins and out of the garbage collector's sight, and who started torchrun is
not above it in the tree of processes.
What needs any of these is started by a real torchrun.
"""

import atexit
import ctypes
import gc
import inspect
import os
import pickle
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

POLL_S = 0.05
ROOM: list[tuple[int, int]] = []  # addresses of the command line and of the environment that /proc shows


class Unborn:
    """A child that waits to become a rank. It is to torchrun what a `subprocess.Popen` is."""

    def __init__(self, pid: int, orders: BinaryIO) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.orders = orders

    def begin(self, argv: tuple[str, ...], environ: dict[str, str]) -> None:
        """Tell it what to run."""
        with self.orders:
            pickle.dump((argv, environ), self.orders)

    def poll(self) -> int | None:
        """Return its exit code, a signal as a negative number; None while it lives."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Return its exit code, or raise as `subprocess.Popen.wait` does."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"rank {self.pid}", timeout)
            time.sleep(POLL_S)
        return code


def wait_for_order(orders: BinaryIO) -> list[str]:
    """Wait until torchrun starts this rank; take its environment. Return the program and its arguments."""
    with orders:
        try:
            argv, environ = pickle.load(orders)
        except EOFError:  # the launcher ended before it started any rank
            os._exit(0)
    os.setsid()
    os.environ.clear()
    os.environ.update(environ)
    show(argv, environ)
    take_no_signals_of_the_launcher()
    return list(argv[2:])  # python -u program.py ...


def become_rank(program: str, *arguments: str) -> types.CodeType:
    """Take the rank's arguments, search path and main module. Return its program."""
    reseed()
    sys.argv[:] = program, *arguments
    beside = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:0] = [str(Path(program).parent), *beside]
    main = types.ModuleType("__main__")
    main.__file__ = program
    sys.modules["__main__"] = main
    return compile(Path(program).read_bytes(), program, "exec", dont_inherit=True)


def take_no_signals_of_the_launcher() -> None:
    """Put back what a started rank has: torchrun handles these, which a start undoes even where they were ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def reseed() -> None:
    """Draw new seeds: a started rank has its own."""
    import numpy
    import torch

    random.seed()
    numpy.random.seed()
    torch.seed()


def launch(count: int) -> BinaryIO:
    """Run torchrun here until its end. Return only in each rank, and what it is told will come from."""
    unborn: list[Unborn] = []
    for _ in range(count):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writing)
            for elder in unborn:
                elder.orders.close()
            return os.fdopen(reading, "rb")
        os.close(reading)
        unborn.append(Unborn(pid, os.fdopen(writing, "wb")))
    code = 0
    try:
        torchrun(unborn)
    except SystemExit as ended:
        code = int(ended.code or 0)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # to take torch down piece by piece costs more than a second


def torchrun(unborn: list[Unborn]) -> None:
    """Run torchrun, with these in the place of what it would start."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler
    from torch.distributed.run import main

    def bear(handler: SubprocessHandler, args: tuple[str, ...], env: dict[str, str]) -> Unborn:
        assert handler._stdout is None and handler._stderr is None, "output goes where the launcher's goes"
        rank = unborn.pop(0)
        rank.begin(args, env)
        return rank

    # It asks 18 times who called whom, and inspect then looks for this file, which is no module's, in all of them.
    for file in ("<torchrun>", os.path.abspath("<torchrun>")):  # noqa: PTH100 - as inspect writes it
        inspect.modulesbyfile[file] = "__main__"  # type: ignore[attr-defined]
    SubprocessHandler._popen = bear
    main()


def import_once() -> None:
    """Import what ranks would: torch, and what comes with the first DDP or optimizer."""
    environ = dict(os.environ)
    import torch._dynamo
    import torch.distributed.run
    import torch.nn.parallel
    import torch.utils.data  # noqa: F401

    os.environ.clear()  # of what the import puts there, a rank is to see nothing before it imports the same
    os.environ.update(environ)


def show(argv: Sequence[str], environ: dict[str, str]) -> None:
    """Let /proc show this command line and environment, in the room that this process was started with."""
    settings = [f"{name}={value}" for name, value in environ.items()]
    for (begin, end), words in zip(ROOM, (argv, settings), strict=True):
        text = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - begin - 1]
        ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def make_room() -> None:
    """Note where the kernel looks for the command line and environment: what stands there serves nobody from now on."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    argv_begin, argv_end, environ_begin, environ_end = (int(field) for field in fields[45:49])
    ROOM[:] = (argv_begin, argv_end), (environ_begin, environ_end)
    environ = dict(os.environ)
    os.environ.clear()
    os.environ.update(environ)  # copies of its own


@dataclass(frozen=True, slots=True)
class Launched:
    """A launcher or a lone rank, and the client that asked for it."""

    client: socket.socket
    pid: int
    end: int  # pidfd

    def tell(self, said: int) -> None:
        with suppress(BrokenPipeError):
            self.client.sendall(b"%d\n" % said)

    def close(self) -> None:
        self.client.close()
        os.close(self.end)


def serve(listening: socket.socket) -> None:
    """Fork a launcher or a lone rank for each client that asks, until the input ends. Return only in each of these.

    A client sends its arguments, environment and directory, and its standard streams. It is told the pid of what was
    forked, and how it ended. Where a client is gone, so are the launcher and all below it.
    """
    known: dict[int, Launched] = {}  # by both of its descriptors
    while True:
        ready, _, _ = select.select([0, listening, *known], [], [])
        if 0 in ready:
            end(known.values())
        for number in set(ready) & known.keys():
            if each := known.pop(number, None):
                finish(each, gone=number != each.end)
                known = {other: left for other, left in known.items() if left is not each}
        if listening in ready:
            client, _ = listening.accept()
            new = launched(client)
            if new is None:
                listening.close()
                for each in set(known.values()):
                    each.close()
                return
            known[new.end] = known[client.fileno()] = new


def end(known: Iterable[Launched]) -> NoReturn:
    """Leave nothing behind."""
    for each in known:
        kill_below(each.pid)
    shutil.rmtree(sys.argv[2], ignore_errors=True)
    os._exit(0)


def launched(client: socket.socket) -> Launched | None:
    """Fork a launcher for a client; None: this is it."""
    told, streams, _, _ = socket.recv_fds(client, 1 << 20, 3)
    pid = os.fork()
    if pid == 0:
        client.close()
        put_on(told, streams)
        return None
    for stream in streams:
        os.close(stream)
    new = Launched(client, pid, os.pidfd_open(pid))
    new.tell(pid)
    return new


def finish(launched: Launched, *, gone: bool) -> None:
    """Tell the client how its launcher ended; where the client is gone, end the launcher."""
    if gone:
        kill_below(launched.pid)
    _, status = os.waitpid(launched.pid, 0)
    launched.tell(os.waitstatus_to_exitcode(status))
    launched.close()


def put_on(told: bytes, streams: Sequence[int]) -> None:
    """Take the words, environment, directory and streams that the client has sent."""
    argv, environ, directory = pickle.loads(told)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.setsid()
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environ)
    tempfile.tempdir = None
    show(argv, environ)
    sys.argv[:] = argv[1:]  # what is behind "python"


def kill_below(pid: int) -> None:
    """Kill a process and all below it."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)  # it starts no more
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                kill_below(int(entry.name))
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _count(arguments: list[str]) -> int:
    name = "--nproc-per-node="
    return next(int(argument.removeprefix(name)) for argument in arguments if argument.startswith(name))


if __name__ == "__main__":
    sys.path.pop(0)  # of `python -c`: not the program's
    import_once()
    gc.freeze()  # a collection or an end that looked at all of torch would copy it first: 0.7 s of CPU for each rank
    make_room()
    serve(socket.socket(fileno=int(sys.argv[1])))
    if sys.argv[:2] == ["-c", "<torchrun>"]:
        sys.argv[:2] = ["torchrun"]
        sys.argv[:] = wait_for_order(launch(_count(sys.argv)))
    # At the top of the interpreter's stack: an exception that the program lets go has the interpreter's own end.
    exec(become_rank(*sys.argv), vars(sys.modules["__main__"]))
