"""A signal handler was called by nobody: what stands below it was interrupted."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ncclwatch.contract.ring.call_sites import parse
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.rank.ring.ringfile import RingFile
from ncclwatch.rank.where.call_sites import Sites

FRAMES_MAX = 8


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[RingFile]:
    made = RingFile(str(tmp_path / "0-1.ring"), rank=0, local_rank=0, world=(1, 1), attempt=0)
    yield made
    made.close()


@contextmanager
def handling(handler: Callable[..., None]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


class Program:
    """Asks where it is, in a helper."""

    def __init__(self, ring: RingFile) -> None:
        self.ring, self.sites = ring, Sites(ring)
        self.functions: list[list[str]] = []

    def report(self, *_: object) -> None:
        self.ask()

    def ask(self) -> None:
        with Ring(self.ring.path) as read:
            found = parse(read.string(self.sites.here(1)))
            assert found is not None
            callers = [parse(read.string(each)) for each in found.callers]
        frames = self.sites.users_frames(sys._getframe(), FRAMES_MAX)
        self.functions.append([found.function, *(each.function for each in callers if each is not None)])
        self.functions.append([code.co_name for code, _ in frames])


def test_what_a_signal_handler_has_interrupted_did_not_call_it(ring: RingFile):
    program = Program(ring)
    with handling(program.report):
        signal.raise_signal(signal.SIGUSR1)
    recorded, sampled = program.functions
    assert ([name.rpartition(".")[2] for name in recorded], sampled) == (["ask", "report"], ["ask", "report"])


def test_who_calls_a_function_that_handles_no_signal_is_its_caller(ring: RingFile):
    program = Program(ring)
    program.report()
    recorded, sampled = program.functions
    caller = "test_who_calls_a_function_that_handles_no_signal_is_its_caller"
    assert (recorded[2], sampled[2]) == (caller, caller)
