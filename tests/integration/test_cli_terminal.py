"""What a terminal shows: the live picture, colours and NO_COLOR, in a real pseudo-terminal."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.fake_agent import FakeAgent, until
from tests.integration.server_process import ServerProcess

pytestmark = pytest.mark.integration

COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
OTHER_SCREEN, OWN_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
DEADLINE_S = 60.0


def _hear_ctrl_c() -> None:
    """A shell starts what runs in its background deaf to Ctrl-C, and with it all that this starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A command on a terminal of 100 columns and 24 lines."""

    def __init__(self, *arguments: str, **environ: str) -> None:
        self.shown = ""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NCCLWATCH", "NO_COLOR", "FORCE_", "COLUMNS"))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ncclwatch", *arguments],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True, preexec_fn=_hear_ctrl_c,
            env={**kept, "TERM": "xterm-256color", "LANG": "C.UTF-8", **environ},
        )  # fmt: skip
        os.close(slave)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def read_until(self, condition: Callable[[str], object]) -> None:
        """Read what is shown until something is so."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition(self.shown):
            assert time.monotonic() < deadline, self.shown
            assert self._read(), f"it ended first: {self.shown}"

    def read_to_the_end(self) -> int:
        """Read the rest, and return the exit code."""
        deadline = time.monotonic() + DEADLINE_S
        while self._read():
            assert time.monotonic() < deadline, self.shown
        return self.process.wait(10)

    def _read(self) -> bool:
        """Read a little; False once the other side is closed."""
        ready, _, _ = select.select([self._master], [], [], 0.2)
        if not ready:
            return self.process.poll() is None
        try:
            part = os.read(self._master, 65536)
        except OSError:  # Linux's word for the end of a pseudo-terminal
            return False
        self.shown += part.decode(errors="replace")
        return bool(part)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, FakeAgent]]:
    with ServerProcess(tmp_path_factory.mktemp("top")) as process, FakeAgent(process.url, job="train7") as agent:
        until(lambda: process.get("/api/v1/jobs").json())
        yield process, agent


def test_top_follows_a_job_into_its_hang_and_leaves_the_last_picture(server: tuple[ServerProcess, FakeAgent]) -> None:
    process, agent = server
    with Terminal("top", "--interval", "0.3", "--server", process.url) as terminal:
        terminal.read_until(lambda shown: re.search(r"running.*2/2", shown))
        # Healthy first, and with a rate once two pictures have been seen.
        terminal.read_until(lambda shown: re.search(r"2/2 +node1 +\d+ +\d+\.\d\d", shown))
        agent.hang(1)
        terminal.read_until(lambda shown: "CRITICAL" in shown)
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.read_to_the_end() == 0
    agent.go_on()
    assert terminal.shown.count(OTHER_SCREEN) == terminal.shown.count(OWN_SCREEN) == 1
    after = terminal.shown.rpartition(OWN_SCREEN)[2]
    assert "rank 0 did not enter all_reduce" in after, "what is wrong stays on the screen"
    assert "Traceback" not in terminal.shown


def test_top_tells_when_the_server_is_gone_and_shows_how_old_the_picture_is(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as process, FakeAgent(process.url) as agent:
        until(lambda: process.job().get("ranks_seen") == 2)
        with Terminal("top", "--interval", "0.3", "--server", process.url) as terminal:
            terminal.read_until(lambda shown: re.search(r"running.*2/2", shown))
            agent.leave()
            process.process.kill()
            terminal.read_until(lambda shown: re.search(r"This is \d+\.\d s old", shown.replace("\r\n", " ")))
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.read_to_the_end() == 0
        assert re.search(r"running.*2/2", terminal.shown.rpartition(OWN_SCREEN)[2]), "the last picture is still there"


@pytest.mark.parametrize(("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_are_for_terminals_that_want_them(
    server: tuple[ServerProcess, FakeAgent], environ: dict[str, str], coloured: bool
) -> None:
    with Terminal("status", "--server", server[0].url, **environ) as terminal:
        assert terminal.read_to_the_end() == 0
    assert "train7" in terminal.shown, "text, and no JSON"
    assert bool(COLOUR.search(terminal.shown)) is coloured


def test_whoever_waits_for_an_answer_sees_what_is_done(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as process, FakeAgent(process.url) as agent:
        until(lambda: process.job().get("ranks_seen") == 2)
        agent.answers_stacks = False
        with Terminal("stacks", "job", "--server", process.url) as terminal:
            terminal.read_until(lambda shown: re.search(r"the nodes of job job look at its ranks \.\.\. [12] s", shown))
            agent.leave()
            assert terminal.read_to_the_end() == 0
        left = re.sub(r"\x1b\[[0-9;]*m", "", terminal.shown.rpartition("\x1b[K")[2])
        assert left.startswith("job job: all ranks"), "and nothing is left of it"
