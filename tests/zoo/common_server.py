"""Starts one `ncclwatch-server` for many jobs, as a cluster has one.

Without it `ncclwatch run` starts a server for each job, which costs two seconds of CPU before the job begins.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

COMMAND = (sys.executable, "-m", "ncclwatch_server", "--port", "0")
END_S = 20.0


@contextlib.contextmanager
def common_server(directory: Path) -> Iterator[str]:
    """Return the address of a server that lives as long as the context; log and incidents are in `directory`."""
    reading, writing = os.pipe()
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(
            (*COMMAND, "--ready-fd", str(writing), "--store", str(directory / "incidents.db")),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={name: value for name, value in os.environ.items() if not name.startswith("NCCLWATCH_")},
            pass_fds=(writing,),
            start_new_session=True,
        )
    os.close(writing)
    try:
        with os.fdopen(reading) as ready:
            port = ready.readline().strip()
        if not port:
            raise RuntimeError(f"the server did not start: {(directory / 'server.log').read_text()}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
