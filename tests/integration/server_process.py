"""Starts real servers for tests, and asks them."""

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import httpx2

ROOT = Path(__file__).parents[2]


class ServerProcess:
    """A server with the stub judge. Its log is in `log`."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 0,
        store: str = "",
        token: str = "",
        notify: str = "",
        environ: dict[str, str] | None = None,
        program: str = "tests.integration.stub_server",
    ) -> None:
        self.log = directory / "server.log"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH_")}
        environ = {**inherited, **(environ or {})}
        if token:
            environ["NCCLWATCH_TOKEN"] = token
        if notify:
            environ["NCCLWATCH_NOTIFY"] = notify
        command = [sys.executable, "-m", program, str(port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command + ([store] if store else []),
                cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        self.port = int(line)
        self.url = f"http://127.0.0.1:{self.port}"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def get(self, path: str) -> httpx2.Response:
        """Ask it."""
        return httpx2.get(self.url + path, headers=self._headers, timeout=5)

    def incidents(self) -> list[dict]:
        """Return all incidents it knows."""
        return self.get("/api/v1/incidents").json()

    def job(self, name: str = "job") -> dict:
        """Return a job, an empty dict if there is none."""
        answer = self.get(f"/api/v1/jobs/{name}")
        return answer.json() if answer.status_code == 200 else {}
