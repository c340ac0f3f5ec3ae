r"""torchrun whose ranks are forked from it, after one import of torch for all of them, and are not started anew.

    python -c 'exec(compile(open("tests/zoo/forking_torchrun.py").read(), "<torchrun>", "exec"))' \
        --standalone --nproc-per-node=3 program.py

As no file of the user's own: its `if` would be taken for the place where ranks part.

Importing torch and torch._dynamo costs a rank four seconds of CPU, most of what a small program needs at all. All
else is torchrun's own code: rendezvous, environment, waiting, signals. The ranks are forked before torchrun begins,
while this process has one thread; each waits until torchrun starts it, then becomes `python -u program.py`. Its end
is the interpreter's own: hooks, exit handlers, exit code.

What is not as in a real start: /proc/PID/environ and /proc/PID/cmdline are the launcher's, hashes of strings are alike
in all ranks, and torch is imported before the program begins. What needs any of these is started by a real torchrun.
"""

import os
import pickle
import random
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import BinaryIO

POLL_S = 0.05


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


def become_rank(orders: BinaryIO) -> types.CodeType:
    """Wait for the order and put on the rank's arguments, environment and main module. Return its program."""
    with orders:
        try:
            argv, environ = pickle.load(orders)
        except EOFError:  # the launcher ended before it started any rank
            os._exit(0)
    os.setsid()
    os.environ.clear()
    os.environ.update(environ)
    take_no_signals_of_the_launcher()
    reseed()
    program = argv[2]  # python -u program.py ...
    sys.argv[:] = argv[2:]
    sys.path.insert(0, str(Path(program).parent))
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
    sys.exit(torchrun(unborn))


def torchrun(unborn: list[Unborn]) -> None:
    """Run torchrun, with these in the place of what it would start."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler
    from torch.distributed.run import main

    def bear(handler: SubprocessHandler, args: tuple[str, ...], env: dict[str, str]) -> Unborn:
        assert handler._stdout is None and handler._stderr is None, "output goes where the launcher's goes"
        rank = unborn.pop(0)
        rank.begin(args, env)
        return rank

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


def _count(arguments: list[str]) -> int:
    name = "--nproc-per-node="
    return next(int(argument.removeprefix(name)) for argument in arguments if argument.startswith(name))


if __name__ == "__main__":
    sys.path.pop(0)  # of `python -c`: not the program's
    import_once()
    # At the top of the interpreter's stack: an exception that the program lets go has the interpreter's own end.
    exec(become_rank(launch(_count(sys.argv))), vars(sys.modules["__main__"]))
