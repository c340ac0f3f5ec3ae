"""Nothing of ours raises into training, and nothing of the user's is kept from it."""

import functools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.ring.layout import Word
from ncclwatch.rank.patches import guarded
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile
from ncclwatch.rank.where.handlers import quietly


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    ring = RingFile(str(tmp_path / "0.ring"), rank=0, local_rank=0, world=(1, 1), attempt=0)
    yield Recorder(ring)
    ring.close()


@pytest.fixture
def handle() -> Iterator[Callable[[object], None]]:
    """Install a handler of SIGUSR1 for one test."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler)  # type: ignore[arg-type]
    signal.signal(signal.SIGUSR1, before)


class Limit:
    """A handler that is a method, and one that is an object."""

    def over(self, number: int, frame: object) -> None:
        """Raise as a user's time limit does."""
        raise TimeoutError("the user's own")

    __call__ = over


def over(text: str, number: int, frame: object) -> None:
    """Raise with a text of the user's."""
    raise TimeoutError(text)


def interrupted() -> None:
    """Do what a recorder does, when a signal comes."""
    signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parametrize("handler", [Limit().over, Limit(), functools.partial(over, "the user's own")])
def test_what_a_signal_handler_raises_in_our_code_reaches_the_user(
    recorder: Recorder, handle: Callable[[object], None], handler: object
) -> None:
    handle(handler)
    with pytest.raises(TimeoutError, match="the user's own"):
        guarded.attempt(recorder, interrupted)
    with pytest.raises(TimeoutError, match="the user's own"):
        guarded.ask(recorder, interrupted)


def test_a_block_whose_exceptions_nobody_misses_keeps_none_of_a_signal_handlers(
    handle: Callable[[object], None],
) -> None:
    handle(Limit().over)
    with quietly:
        raise RuntimeError("ours")
    with pytest.raises(TimeoutError, match="the user's own"), quietly:
        interrupted()


def test_a_handler_is_heard_while_a_gap_is_counted(
    recorder: Recorder, handle: Callable[[object], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle(Limit().over)
    monkeypatch.setattr(recorder.ring, "count_dropped", interrupted)
    with pytest.raises(TimeoutError, match="the user's own"):
        guarded.ask(recorder, lambda: 1 // 0)


def test_a_handler_is_heard_while_a_call_site_looks_for_its_module(
    recorder: Recorder, handle: Callable[[object], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle(Limit().over)
    monkeypatch.setattr(recorder.sites.modules, "now", lambda depth: interrupted())
    with pytest.raises(TimeoutError, match="the user's own"):
        recorder.sites.here(1)


def test_what_our_own_code_raises_does_not_and_is_counted(
    recorder: Recorder, handle: Callable[[object], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle(Limit().over)

    def broken(*_: object) -> bytes:
        raise RuntimeError("ours")

    monkeypatch.setattr(recorder, "enter", broken)
    guarded.attempt(recorder, broken)
    assert guarded.enter(recorder, WaitKind.DATA, 1) is None
    assert recorder.ring.word(Word.DROPPED) == 2
