"""A PostgreSQL of the tests' own: a new cluster in a temporary directory, on a free port, gone at the end.

It runs as another user where the tests run as root, because it refuses to run as root.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.ports import free_port

START_S_MAX = 60


def binaries() -> Path | None:
    """Return where initdb and postgres are, None if there are none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    named = shutil.which("initdb")
    if named:
        found.append(Path(named).resolve())
    return found[0].parent if found else None


class Postgres:
    """One cluster, which can be stopped and started again."""

    def __init__(self) -> None:
        where = binaries()
        assert where is not None
        self._binaries = where
        self._user = None if os.getuid() else next(u for u in ("postgres", "nobody") if _exists(u))
        self._directory = Path(tempfile.mkdtemp(prefix="ncclwatch-pg-"))
        if self._user:
            shutil.chown(self._directory, self._user)
        self.port = free_port()
        self._run("initdb", "-D", "data", "-U", "watch", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C")
        self._databases = 0
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Postgres":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [self._binaries / "postgres", "-D", "data", "-p", str(self.port), "-k", str(self._directory)]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "shared_buffers=8MB"]
        with (self._directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self._directory, user=self._user, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        ready = [self._binaries / "pg_isready", "-h", "127.0.0.1", "-p", str(self.port), "-t", "1"]
        for _ in range(START_S_MAX * 10):
            if subprocess.run(ready, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
                return
            assert self.process.poll() is None, (self._directory / "log").read_text()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.1)
        raise AssertionError((self._directory / "log").read_text())

    def stop(self) -> None:
        """Stop it at once; connections break."""
        if self.process is not None:
            self._run("pg_ctl", "-D", "data", "-m", "immediate", "-w", "stop")
            self.process.wait(20)
            self.process = None

    def new_database(self) -> str:
        """Make a database and return its address."""
        import psycopg

        self._databases += 1
        name = f"d{self._databases}"
        with psycopg.connect(f"host=127.0.0.1 port={self.port} user=watch dbname=postgres", autocommit=True) as line:
            line.execute(f"CREATE DATABASE {name}")
        return f"postgresql://watch@127.0.0.1:{self.port}/{name}"

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._binaries / program, *arguments], cwd=self._directory, user=self._user, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout.decode(errors="replace")


def _exists(user: str) -> bool:
    with suppress(KeyError):
        return bool(pwd.getpwnam(user))
    return False
