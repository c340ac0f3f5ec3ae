"""Notes of verdicts: one for each, in threads that nobody waits for, whatever a tracker does."""

import threading
from collections.abc import Iterator

import pytest

from ncclwatch.contract.on_hang.notice import HangVerdict, Notice
from ncclwatch.rank.notices import noting
from ncclwatch.rank.notices.noting import LATE_S, Noting


def notice(*incidents: str) -> Notice:
    return Notice(
        beat=1,
        hangs=tuple(
            HangVerdict(
                incident=each, job="llama", cause="data_stall", certainty="PROVEN", sentence="s", advice="a",
                culprits=(1,),
            )
            for each in incidents
        ),
    )  # fmt: skip


class Tracker:
    """Keeps its notes, after `gate` has been opened."""

    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.name = name
        self.error = error
        self.noted: list[tuple[str, int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def note(self, verdict: HangVerdict, step: int) -> None:
        self.gate.wait()
        if self.error is not None:
            raise self.error
        self.noted.append((verdict.incident, step))


class Rank:
    def __init__(self, *trackers: Tracker) -> None:
        self.now = 1000.0
        self.said: list[str] = []
        self.trackers = trackers
        self.noting = Noting(lambda sentence, _: self.said.append(sentence), lambda: trackers, lambda: self.now)


@pytest.fixture
def stuck() -> Iterator[Tracker]:
    made = Tracker("stuck")
    made.gate.clear()
    yield made
    made.gate.set()


def test_each_verdict_is_noted_once_everywhere() -> None:
    rank = Rank(Tracker("a"), Tracker("b"))
    rank.noting.update(None, 3)
    for step in (3, 4):
        rank.noting.update(notice("i1"), step)
        rank.noting.close()
    rank.noting.update(notice("i1", "i2"), 5)
    rank.noting.close()
    assert [each.noted for each in rank.trackers] == [[("i1", 3), ("i2", 5)]] * 2
    assert rank.said == []


def test_a_tracker_that_does_not_come_back_holds_nobody_up_and_is_named(
    stuck: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noting, "EXIT_S", 0.1)
    other = Tracker("other")
    rank = Rank(stuck, other)
    rank.noting.update(notice("i1"), 3)
    rank.noting.close()
    rank.noting.update(notice("i2"), 3)  # it is not asked again
    rank.noting.close()
    assert other.noted == [("i1", 3), ("i2", 3)]
    assert sum(each.name == "ncclwatch-note" for each in threading.enumerate()) == 1
    rank.now += LATE_S + 1.0
    rank.noting.update(None, 3)
    assert rank.said == ["stuck has not taken a note of a verdict within 30 s. Training goes on."]


def test_a_tracker_that_fails_is_a_warning_and_the_others_note() -> None:
    good, bad = Tracker("good"), Tracker("bad", ValueError("no such run"))
    rank = Rank(bad, good)
    rank.noting.update(notice("i1"), 3)
    rank.noting.close()
    assert rank.said == ["cannot note a verdict in bad (ValueError: no such run). Training goes on."]
    assert good.noted == [("i1", 3)]
