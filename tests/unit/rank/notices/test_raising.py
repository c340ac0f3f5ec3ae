"""When `HangError` is raised in the main thread: once for a hang that stands, and never in a job that goes on."""

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import ncclwatch
from ncclwatch.contract.on_hang.notice import HangVerdict, Notice
from ncclwatch.rank.notices.raising import PROMPT_S, SETTLE_S, Raiser, unused_signal

LONG_S = 60.0
NUMBER = unused_signal()


def notice(incident: str = "i1", raised: str | None = None) -> Notice:
    verdict = HangVerdict(
        incident=incident, job="llama", cause="data_stall", certainty="PROVEN", sentence="Rank 1 waits for data.",
        advice="Look there.", culprits=(1,),
    )  # fmt: skip
    return Notice(beat=1, raised=incident if raised is None else raised, hangs=(verdict,))


class Rank:
    """The main thread of this process, a pulse that is a thread for one moment, and a clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.raiser = Raiser(NUMBER, clock=lambda: self.now)

    def pulse(self, said: Notice | None, *, blocked: bool = False, step: int = 7) -> None:
        thread = threading.Thread(target=self.raiser.consider, args=(said,), kwargs={"blocked": blocked, "step": step})
        thread.start()
        thread.join()

    def raises(self, said: Notice | None, *, blocked: bool = False, step: int = 7) -> bool:
        try:
            self.pulse(said, blocked=blocked, step=step)
            for _ in range(1000):  # a handler runs between two steps of Python
                pass
        except ncclwatch.HangError:
            return True
        return False

    def in_native_code(self, *pulses: tuple[Notice | None, bool], for_s: float = 0.0) -> bool:
        """Let pulses come while no handler can run: the notice, and whether the thread is known to be blocked.

        Returns whether it is raised when the thread comes back.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, [NUMBER])
        for said, blocked in pulses:
            self.pulse(said, blocked=blocked)
        self.now += for_s
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [NUMBER])
            for _ in range(1000):
                pass
        except ncclwatch.HangError:
            return True
        return False


@pytest.fixture
def rank() -> Iterator[Rank]:
    made = Rank()
    yield made
    made.raiser.close()


@pytest.mark.parametrize(
    "wait",
    [
        lambda: time.sleep(LONG_S),
        lambda: queue.Queue[int]().get(timeout=LONG_S),
        lambda: threading.Event().wait(LONG_S),
        lambda: [None for _ in iter(int, 1)],
    ],
    ids=["sleep", "queue", "event", "loop"],
)
def test_a_wait_in_python_ends_with_it(rank: Rank, wait: Callable[[], object]) -> None:
    began = time.monotonic()
    thread = threading.Timer(0.1, rank.raiser.consider, (notice(),), {"blocked": False, "step": 7})
    thread.start()
    with pytest.raises(ncclwatch.HangError) as raised:
        wait()
    thread.join()
    assert time.monotonic() - began < LONG_S / 2
    error = raised.value
    assert (error.cause, error.job, error.culprits, error.sentence) == (
        "data_stall", "llama", (1,), "Rank 1 waits for data.",
    )  # fmt: skip
    assert str(error) == "Rank 1 waits for data. Look there. (data_stall, PROVEN, incident i1)"
    assert error.verdict == notice().hangs[0]


def test_nothing_is_raised_where_there_is_no_notice_or_it_is_no_reason(rank: Rank) -> None:
    assert not rank.raises(None)
    assert not rank.raises(notice(raised=""))
    assert not rank.raises(notice(raised="another"))
    assert rank.raises(notice())


def test_a_verdict_that_was_withdrawn_meanwhile_raises_nothing(rank: Rank) -> None:
    assert not rank.in_native_code((notice(), False), (None, False))
    assert rank.in_native_code((notice(), False))


def test_whoever_comes_back_from_native_code_is_left_alone_unless_the_hang_still_stands_a_while_later(
    rank: Rank,
) -> None:
    assert not rank.in_native_code((notice(), False), for_s=PROMPT_S + 0.1)
    rank.now += SETTLE_S - 0.1
    assert not rank.raises(notice())
    rank.now += 0.2
    assert rank.raises(notice())


def test_a_thread_that_only_its_peers_can_wake_gets_no_signal_and_time_when_it_is_awake(rank: Rank) -> None:
    assert not rank.raises(notice(), blocked=True)
    assert not rank.raises(notice())
    rank.now += SETTLE_S
    assert rank.raises(notice())


def test_a_signal_that_was_sent_before_the_thread_was_blocked_raises_nothing_when_it_is_awake(rank: Rank) -> None:
    assert not rank.in_native_code((notice(), False), (notice(), True))
    rank.now += SETTLE_S
    assert rank.raises(notice())


def test_it_is_raised_once_for_a_hang_and_for_another_only_when_training_has_gone_on(rank: Rank) -> None:
    assert rank.raises(notice(), step=7)
    assert not rank.raises(notice(), step=7)
    assert not rank.raises(notice("i2"), step=7)
    assert not rank.raises(notice(), step=8)
    assert rank.raises(notice("i2"), step=8)


def test_an_exception_that_is_being_handled_is_not_disturbed(rank: Rank) -> None:
    try:
        raise RuntimeError("connection closed by peer")
    except RuntimeError:
        assert not rank.raises(notice())
    assert rank.raises(notice())


def test_it_is_never_raised_in_code_of_ncclwatch_itself(rank: Rank) -> None:
    ours: dict[str, object] = {"__name__": "ncclwatch.rank.recorder", "mask": signal.pthread_sigmask}
    exec("def come_back(how, which):\n mask(how, which)\n for _ in range(1000): pass\n", ours)  # by way of signal.py
    come_back = ours["come_back"]
    assert callable(come_back)
    signal.pthread_sigmask(signal.SIG_BLOCK, [NUMBER])
    rank.pulse(notice())
    come_back(signal.SIG_UNBLOCK, [NUMBER])
    assert rank.raises(notice())  # with the next pulse


def test_after_the_end_nothing_is_raised_and_the_signal_is_given_back(rank: Rank) -> None:
    assert signal.getsignal(NUMBER) != signal.SIG_DFL
    assert unused_signal() != NUMBER
    rank.raiser.close()
    assert signal.getsignal(NUMBER) == signal.SIG_DFL


def test_a_signal_that_is_under_way_at_the_end_does_not_end_the_process(rank: Rank) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [NUMBER])
    try:
        rank.pulse(notice())
        assert NUMBER in signal.sigpending()  # sent, and not taken
        rank.raiser.close()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [NUMBER])  # with its default action it would be the end
    assert not rank.raises(notice())
    rank.raiser.close()
    assert signal.getsignal(NUMBER) == signal.SIG_DFL
