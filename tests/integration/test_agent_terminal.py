"""Text on the terminal of a job: a real pty, a pipe that is full, a log file with its own writer."""

import asyncio
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclwatch_agent.process import job_terminal as terminals
from ncclwatch_agent.process.job_terminal import Candidate, Terminal, writers

pytestmark = pytest.mark.integration

WAITS = "import sys; print('ready', flush=True); sys.stdin.readline()"
LAUNCHES = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, '-c', {WAITS!r}], stdin=0, stdout=1, stderr=subprocess.DEVNULL)
print(child.pid, flush=True)
child.wait()
"""


class Job:
    """A process whose standard error goes where the test says."""

    def __init__(self, stderr: int, command: tuple[str, ...] = ("-c", WAITS)) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
        )  # fmt: skip
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        self.ranks = [Candidate(pid=self.process.pid, parent=0)]

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    started: list[Job] = []
    yield started
    for job in started:
        job.close()


def write(job: Job, text: str, terminal: Terminal | None = None) -> bool:
    """Put text on a job's terminal."""
    return asyncio.run((terminal or Terminal()).write(job.ranks, text))


def test_a_text_appears_on_a_terminal_and_on_a_pipe(jobs: list[Job]) -> None:
    for ours, theirs in (pty.openpty(), os.pipe()):
        jobs.append(Job(theirs))
        os.close(theirs)
        assert write(jobs[-1], "rank 3 is to blame")
        assert os.read(ours, 100).replace(b"\r", b"") == b"rank 3 is to blame\n"
        os.close(ours)


def test_a_terminal_is_kept_for_the_last_word_and_a_pipe_is_not(jobs: list[Job]) -> None:
    for (ours, theirs), arrives in ((pty.openpty(), True), (os.pipe(), False)):
        job = Job(theirs)
        jobs.append(job)
        terminal = Terminal()
        terminal.prepare(job.ranks)
        job.close()
        os.close(theirs) if not arrives else None
        assert write(job, "the end", terminal) is arrives
        terminal.close()
        if arrives:
            assert os.read(ours, 100) == b"the end\r\n"
            os.close(theirs)
        else:
            assert os.read(ours, 100) == b""  # whoever reads the pipe sees its end
        os.close(ours)


def test_a_log_file_is_written_where_its_own_writer_is(jobs: list[Job], tmp_path: Path) -> None:
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    jobs.append(Job(fd))
    os.write(fd, b"before\n")
    assert write(jobs[0], "verdict")
    os.write(fd, b"after\n")
    os.close(fd)
    assert path.read_bytes() == b"before\nverdict\nafter\n"


def test_a_pipe_that_nobody_reads_is_given_up_in_time(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminals, "WRITE_S_MAX", 0.2)
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    while True:
        try:
            os.write(theirs, bytes(65536))
        except BlockingIOError:
            break
    os.set_blocking(theirs, True)
    jobs.append(Job(theirs))
    began = time.monotonic()
    assert not write(jobs[0], "verdict")
    assert time.monotonic() - began < 5
    os.close(theirs)
    os.close(ours)


def test_what_nobody_would_see_is_said_to_have_failed(jobs: list[Job]) -> None:
    jobs.append(Job(subprocess.DEVNULL))
    assert not write(jobs[0], "verdict")


def test_a_launcher_is_asked_before_its_ranks_also_when_those_have_ended(jobs: list[Job], tmp_path: Path) -> None:
    script = tmp_path / "torchrun"
    script.write_text(LAUNCHES)
    ours, theirs = os.pipe()
    job = Job(theirs, (str(script),))
    jobs.append(job)
    rank, launcher = int(job.said), job.process.pid
    assert writers([Candidate(pid=rank, parent=launcher)]) == [launcher, rank]
    assert writers([Candidate(pid=0, parent=launcher)]) == [launcher]
    assert writers([Candidate(pid=rank, parent=1)]) == [rank]
    assert writers([Candidate(pid=rank, parent=os.getpid())]) == [rank]  # pytest is no launcher
    job.ranks = [Candidate(pid=rank, parent=launcher)]
    assert write(job, "verdict")
    assert os.read(ours, 100) == b"verdict\n"
    os.close(theirs)
    os.close(ours)
