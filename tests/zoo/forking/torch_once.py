"""Starts torchruns and lone ranks that are forked from one process, which has imported torch once for all of them.

Importing torch costs a launcher five seconds of CPU, more than all else that a small program of the zoo needs. What
`forking_torchrun` returns starts a small process, which passes on signals, streams, environment and exit code: whoever
starts it sees a torchrun, but that its ranks are not below it in the tree of processes. What `forked` returns is the
same for one rank without a torchrun.
"""

import atexit
import functools
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.zoo.jobs import torchrun

SERVER = Path(__file__).with_name("torchrun.py")
CLIENT = Path(__file__).with_name("client.py")
END_S = 20.0
ENVIRON_BYTES, WORDS_BYTES = 32768, 8192  # room for what /proc shows of a rank


def forking_torchrun(program: Path, nproc: int, arguments: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the command that starts a program with forked ranks; the first one begins to import torch."""
    return (*_client(), "-c", "<torchrun>", *torchrun(program, nproc, arguments)[1:])


def forked(program: Path, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a program as a forked process: one rank, whose environment says which."""
    return (*_client(), str(program), *arguments)


def _client() -> tuple[str, ...]:
    return (sys.executable, "-ISc", _executing(CLIENT), _address())


@functools.cache
def _address() -> str:
    """Start the process that imports torch. It ends with this one, however this one ends: its input does."""
    directory = tempfile.mkdtemp(prefix="zoo-")
    address = f"{directory}/launchers"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        process = subprocess.Popen(
            (sys.executable, "-c", _executing(SERVER), str(listening.fileno()), directory, "." * WORDS_BYTES),
            stdin=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "ZOO_ROOM": "." * ENVIRON_BYTES},
            pass_fds=(listening.fileno(),),
            start_new_session=True,
        )
    atexit.register(process.communicate, timeout=END_S)  # closes its input
    return address


def _executing(file: Path) -> str:
    return f"exec(compile(open({str(file)!r}).read(), '<torchrun>', 'exec'))"
