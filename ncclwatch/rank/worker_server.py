"""Lets this rank be asked for torch's Flight Recorder while it holds the GIL: torch's own worker server answers.

It is a thread of torch's, in C++, on a unix socket that only this user can reach. Three things make it safe in
training. It is started from the pulse thread. It is never shut down: torch's `shutdown` keeps the GIL until every
client has hung up (4.5 s were measured), so the socket's name is removed at the end and the thread left waiting,
which the end of a process does not mind. And it is rehearsed in Python first: where its thread could not accept a
connection or could not start its pool, torch would end the process.

It would also end it at the next question after a program has closed all of its descriptors, as one that becomes a
daemon does. So the pulse looks whether the socket is still there, and where it is not takes its name away: nobody asks.
"""

import contextlib
import ctypes
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ncclwatch.contract import config
from ncclwatch.contract.machine.private_dirs import open_private
from ncclwatch.contract.network import sockets
from ncclwatch.rank import torch_versions
from ncclwatch.rank.ring.ringfile import process_start_ticks

POOL_THREADS = 8  # of the HTTP library inside torch, at least; one less than the processors where those are more
REHEARSED_THREADS = 2 * POOL_THREADS  # other ranks of this node start theirs at the same moment
ACCEPTS_S = 1.0  # torch's thread has come to accept() by then, mostly within a millisecond
_ONLY_ERRORS = 2  # of the log levels of c10

_listens_at: tuple[int, str] | None = None  # (process id, path): a forked child has a copy of this, and no server
_socket: tuple[int, int] | None = None  # (descriptor, inode) of the socket on which it listens, if that could be found
_kept: list[object] = []


def socket_of_this_rank(directory: str) -> str:
    """Return where this rank can be asked: at the user's own worker server, at ours, or "" for nowhere."""
    if os.environ.get(config.ENV_WITNESS) == "0" or torch_versions.worker_server() is None:
        return ""
    own = os.environ.get(torch_versions.USERS_WORKER_SOCKET, "")
    return os.path.abspath(own) if own else sockets.worker_socket(directory, os.getpid(), process_start_ticks())


def start(path: str) -> None:
    """Listen at a path, unless this process does so already or the user's own server does.

    Raises OSError, `NotPrivateError`, or RuntimeError of torch's.
    """
    global _listens_at, _socket
    server = torch_versions.worker_server()
    already = _listens_at is not None and _listens_at[0] == os.getpid()
    if not path or already or server is None or os.environ.get(torch_versions.USERS_WORKER_SOCKET):
        return
    with open_private(os.path.dirname(path)) as place:
        name = os.path.basename(path)
        place.unlink(name)
        short = place.way_to(name)
        _rehearse(short)
        with _quietly(), _small_pool():
            _keep_forever(server(short))
        os.chmod(short, 0o600)  # nobody else can reach into the directory
        found = _find_socket(short)
        if found is not None:
            _await_accept(found[0])
        _listens_at, _socket = (os.getpid(), path), found


def look_after() -> None:
    """Let nobody ask any more if the program has closed the socket: torch's thread waits on, as long as nobody does."""
    if _socket is not None and _inode(_socket[0]) != _socket[1]:
        forget()


def _find_socket(path: str) -> tuple[int, int] | None:
    """Return descriptor and inode of the socket of this process that is bound to a path. Torch does not tell them."""
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                with socket.socket(fileno=os.dup(number)) as found:
                    if found.family == socket.AF_UNIX and found.getsockname() == path:
                        return number, _inode(number)
    return None


def _await_accept(number: int) -> None:
    """Wait until torch's thread is inside accept(): a program that closes all descriptors before that ends with it."""
    until = time.monotonic() + ACCEPTS_S
    while not _is_called_on(number) and time.monotonic() < until:
        time.sleep(0.001)


def _is_called_on(number: int) -> bool:
    """Say whether a thread of this process is in a system call on a descriptor now."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            _, *arguments = Path(f"/proc/self/task/{thread}/syscall").read_text().split()
            if arguments and arguments[0] == hex(number):
                return True
    return False


def _inode(number: int) -> int:
    try:
        return os.fstat(number).st_ino
    except OSError:
        return 0


def forget() -> None:
    """At the end: let nobody begin to ask any more. The thread waits on, and ends with the process."""
    global _listens_at, _socket
    if _listens_at is not None and _listens_at[0] == os.getpid():
        _unlink(_listens_at[1])
        _listens_at = _socket = None


def _rehearse(path: str) -> None:
    """Do once in Python what the server will do: its thread answers a failure by ending the process."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        try:
            listener.bind(path)
            listener.listen(1)
            client.settimeout(1.0)
            client.connect(path)
            listener.settimeout(1.0)
            listener.accept()[0].close()
        finally:
            _unlink(path)
    done = threading.Event()
    threads = [threading.Thread(target=done.wait, daemon=True) for _ in range(REHEARSED_THREADS)]
    begun = []
    try:
        for thread in threads:
            thread.start()
            begun.append(thread)
    finally:
        done.set()
        for thread in begun:
            thread.join()


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep torch from notifier the user's terminal that a server listens."""
    level = torch_versions.log_level()
    if level is None:
        yield
        return
    before = level.value
    level.value = max(before, _ONLY_ERRORS)
    try:
        yield
    finally:
        level.value = before


@contextlib.contextmanager
def _small_pool() -> Iterator[None]:
    """Let the server see few processors: it starts a thread for each, and a node may have hundreds.

    What it may run on is inherited from the thread that starts it.
    """
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, set(sorted(allowed)[-(POOL_THREADS + 1) :]))
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _keep_forever(server: object) -> None:
    """Never let its destructor run: it waits for a thread that a forked child does not have."""
    _kept.append(server)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
