"""One job on one node with its agent, its server and a receiver of alerts: all of them real processes."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from ncclwatch.rank.agents import launch
from tests.chaos.board import Board, Wish, Word
from tests.chaos.mounts import mount, unmount
from tests.chaos.proxy import Proxy
from tests.chaos.rank import CULPRIT, GATE
from tests.integration.launch import PROGRAMS, environment
from tests.integration.real_jobs import mine, until
from tests.integration.receiver import Received, Receiver
from tests.ports import free_port

JOB = "chaos"
SHM_BYTES = 32 * 1024 * 1024  # of a small file system: enough for the rings of a few ranks
SECRET = "a secret of at least sixteen bytes"
ROOT = Path(__file__).parents[2]


class HeldReceiver(Receiver):
    """Takes alerts; the first one is answered only when `let_go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.came, self.let_go = threading.Event(), threading.Event()

    def take(self, received: Received) -> int:
        """Say that one came, and wait until it may be answered."""
        self.came.set()
        self.let_go.wait(8)
        return super().take(received)


class World:
    """A context manager: whatever still runs at the end is killed."""

    def __init__(self, directory: Path, *, ranks: int = 3, clock: bool = False, small_shm: bool = False) -> None:
        self.directory = directory
        self.size = ranks
        self.runtime = directory / "runtime"
        self.store = directory / "store" / "incidents.db"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.clock = directory / "clock"  # by how many seconds the clock of ranks and server is wrong
        self._preload = self._wrong_clock() if clock else {}
        self._small_shm = small_shm
        self.proxy, self.receiver = Proxy(self.port), HeldReceiver()
        self.board = Board(directory / "board", make=True)
        self.ranks: list[subprocess.Popen[bytes]] = []
        self.server: subprocess.Popen[bytes] | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "World":
        self.store.parent.mkdir()
        if self._small_shm:
            self.runtime.mkdir(mode=0o700)
            assert mount("-t", "tmpfs", "-o", f"size={SHM_BYTES},mode=0700", "tmpfs", str(self.runtime))
            self._stack.callback(unmount, str(self.runtime))
        self._stack.enter_context(self.receiver)
        self._stack.enter_context(self.proxy)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.receiver.let_go.set()
        started = [*self.ranks, *([self.server] if self.server else [])]
        for process in started:
            process.kill()
        for process in started:
            process.wait()
        left = mine(self.directory)
        for each in left:
            with contextlib.suppress(psutil.Error):
                each.kill()
        psutil.wait_procs(left, timeout=10)
        self._stack.close()

    def _wrong_clock(self) -> dict[str, str]:
        self.clock.write_bytes(bytes(8))
        library, source = self.directory / "wrong_clock.so", PROGRAMS / "wrong_clock.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"], check=True)
        return {"LD_PRELOAD": str(library), "CLOCK_FILE": str(self.clock)}

    # -- what runs -----------------------------------------------------------------------------

    def start_server(self) -> None:
        """Start the server, as systemd would, and wait until it listens."""
        read, write = os.pipe()
        with (self.directory / "server.log").open("ab") as log:
            self.server = self._serve("--ready-fd", str(write), pass_fds=(write,), stdout=log, stderr=log)
        os.close(write)
        with os.fdopen(read) as ready:
            assert ready.readline().strip() == str(self.port), self.log("server.log")

    def server_that_ends(self) -> str:
        """Start a server that will not do, and return what it says."""
        self.server = self._serve(stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        said = self.server.communicate(timeout=60)[1]
        return str(said.decode())

    def _serve(self, *more: str, **streams: Any) -> "subprocess.Popen[bytes]":
        notify = self.directory / "notify.toml"
        notify.write_text(f'[[target]]\nkind = "webhook"\nurl = "{self.receiver.url}"\nsecret = "{SECRET}"\n')
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH_")}
        command = ["--port", str(self.port), "--store", str(self.store), "--notify", str(notify), *more]
        return subprocess.Popen(
            [sys.executable, "-m", "ncclwatch_server", *command],
            env=inherited | self._preload, stdin=subprocess.DEVNULL, cwd=ROOT, **streams,
        )  # fmt: skip

    def start_ranks(self) -> None:
        """Start the job."""
        for rank in range(self.size):
            environ = environment(
                self.runtime, NCCLWATCH_SERVER=self.proxy.url, NCCLWATCH_JOB=JOB,
                CHAOS_INSTANCE=str(self.directory), CHAOS_BOARD=str(self.directory / "board"),
            )  # fmt: skip
            del environ["NCCLWATCH_AGENT"]
            with (self.directory / "ranks.log").open("ab") as log:
                self.ranks.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "tests.chaos.rank", str(self.directory / "board"), str(rank),
                         str(self.size)],
                        env=environ | self._preload, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    )
                )  # fmt: skip

    def pids(self, who: str, target: int) -> list[int]:
        """Return the processes of a component that live: "rank", "agent" or "server"."""
        if who == "rank":
            return [self.board.get(target, Word.PID)] if self.lives(target) else []
        if who == "server":
            return [self.server.pid] if self.server is not None and self.server.poll() is None else []
        pid = self.agent()
        return [pid] if pid else []

    def lives(self, rank: int) -> bool:
        """Whether a rank runs, or is stopped."""
        return rank < len(self.ranks) and self.ranks[rank].poll() is None

    @property
    def place(self) -> str:
        """The directory in which rings and the agent's card lie."""
        return str(self.runtime / f"ncclwatch-{os.getuid()}")

    def rings(self) -> list[Path]:
        """Return the rings, those of ranks that ended too."""
        return sorted(self.runtime.rglob("*.ring"))

    def ring(self, rank: int) -> Path | None:
        """Return the ring of a rank."""
        found = [path for path in self.rings() if path.name.startswith(f"{rank}-")]
        return found[-1] if found else None

    def agent(self) -> int:
        """Return the pid of the agent that has left its card, and lives."""
        pid = launch.agent_pid(self.place) if self.runtime.exists() else 0
        with contextlib.suppress(OSError):
            return 0 if pid and b"ncclwatch_agent" not in Path(f"/proc/{pid}/cmdline").read_bytes() else pid
        return 0

    def stop_training(self) -> None:
        """End the job as a launcher does that was interrupted."""
        for rank in self.ranks:
            if rank.poll() is None:
                rank.send_signal(signal.SIGTERM)

    # -- what is seen --------------------------------------------------------------------------

    def ask(self, path: str) -> object:
        """Return what the server answers, None while it does not."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=3) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError, ValueError):
            return None

    def incidents(self) -> list[dict]:
        """Return all incidents."""
        found = self.ask("/api/v1/incidents")
        return found if isinstance(found, list) else []

    def jobs(self) -> list[dict]:
        """Return all jobs that the server knows."""
        found = self.ask("/api/v1/jobs")
        return found if isinstance(found, list) else []

    def watched(self) -> bool:
        """Whether the server sees all ranks."""
        return any(job["ranks_seen"] == self.size for job in self.jobs())

    def metric(self, name: str) -> float:
        """Return a figure of the server's, 0 while it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=3) as answer:
                lines = answer.read().decode().splitlines()
        except (urllib.error.URLError, OSError):
            return 0.0
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def stored(self) -> bool:
        """Whether the store works, and has all that is to be in it."""
        health = self.ask("/health")
        return isinstance(health, dict) and health["store"]["working"] and not health["store"]["waiting"]

    def kept(self) -> set[str]:
        """Return the incidents that are in the store's file."""
        with contextlib.closing(sqlite3.connect(f"file:{self.store}?mode=ro", uri=True)) as store:
            return {str(row[0]) for row in store.execute("SELECT id FROM incidents")}

    def steps(self) -> int:
        """Return how many steps the slowest rank has done."""
        return min(self.board.get(rank, Word.STEPS) for rank in range(self.size))

    def stands(self) -> bool:
        """Whether the culprit is away and all others wait for it."""
        others = [rank for rank in range(self.size) if rank != CULPRIT and self.lives(rank)]
        seqs = [self.board.get(rank, Word.SEQ) for rank in others]
        waits = all(self.board.get(rank, Word.WAITS) for rank in others)
        ops = {self.board.get(rank, Word.OP) for rank in (*others, CULPRIT)}
        away = self.board.wish is Wish.STALL or (self.board.get(CULPRIT, Word.WAITS) and len(ops) > 1)
        return bool(waits and away and len(set(seqs)) == 1 and self.steps() < min(seqs))

    @property
    def gate(self) -> Path:
        """The file whose lock lets a rank stall."""
        return self.directory / GATE

    def log(self, name: str) -> str:
        """Return what was written into a log."""
        found = [path for path in self.directory.rglob(name) if path.is_file()]
        return "".join(path.read_text(errors="replace") for path in found)

    def told(self) -> str:
        """Return what a failed wait should show."""
        seen = [(i["cause"], [c["rank"] for c in i["culprits"]], i["state"]) for i in self.incidents()]
        board = [[self.board.get(rank, word) for word in Word] for rank in range(self.size)]
        return f"incidents {seen}, jobs {[(j['state'], j['ranks_seen']) for j in self.jobs()]}, board {board}"

    def wait(self, what: str, within_s: float = 40.0) -> None:
        """Wait until something of ours is so."""
        until(getattr(self, what), self.told, within_s)
