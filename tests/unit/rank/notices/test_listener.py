"""What the owner of a job asks for, in the script or in the environment, and what of it this rank can do."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclwatch.contract.machine.private_dirs import open_private
from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.on_hang.notice import HangVerdict, Notice, encode
from ncclwatch.contract.ring.layout import WAITS
from ncclwatch.rank.notices import listener
from ncclwatch.rank.notices.noting import Noting
from ncclwatch.rank.notices.raising import unused_signal
from ncclwatch.rank.ring.ringfile import NO_WAIT, RingFile

HANG = HangVerdict(incident="i1", job="j", cause="c", certainty="PROVEN", sentence="s", advice="a", culprits=(0,))
NUMBER = unused_signal()


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[RingFile]:
    place = open_private(str(tmp_path / "rings"), make=True)
    made = RingFile(f"{place.path}/0-1.ring", rank=0, local_rank=0, world=(2, 2), attempt=0, place=place)
    yield made
    made.close()
    place.close()


def said_of(wishes: dict[str, str], ring: RingFile) -> tuple[list[str], "listener.NoticeListener | None"]:
    said: list[str] = []
    found = listener.listener(ring, wishes, lambda sentence, _: said.append(sentence))
    return said, found


@pytest.mark.parametrize("on_hang", ["", "report", "abort", "policy"])
@pytest.mark.parametrize("notes", ["", "0"])
def test_whoever_asked_for_neither_hears_nothing_and_has_no_handler(on_hang: str, notes: str, ring: RingFile) -> None:
    assert said_of({"on_hang": on_hang, "notes": notes}, ring) == ([], None)
    assert signal.getsignal(NUMBER) == signal.SIG_DFL


def test_in_another_thread_than_the_main_one_nothing_can_be_raised_and_that_is_said(ring: RingFile) -> None:
    found: list[tuple[list[str], listener.NoticeListener | None]] = []
    wishes = {"on_hang": "raise", "notes": ""}
    thread = threading.Thread(target=lambda: found.append(said_of(wishes, ring)))
    thread.start()
    thread.join()
    (((sentence,), none),) = found
    assert none is None
    assert "attach() was not called in the main thread" in sentence
    assert "call ncclwatch.attach() in the main thread" in sentence


def test_an_unknown_on_hang_is_a_warning_and_does_nothing() -> None:
    said: list[str] = []
    assert listener.wanted("rase", True, lambda sentence, _: said.append(sentence)) == {"on_hang": "", "notes": "1"}
    assert listener.wanted("raise", False, lambda sentence, _: said.append(sentence)) == {
        "on_hang": "raise",
        "notes": "",
    }
    assert said == [
        "attach(on_hang='rase'): it may be report, capture, raise, abort, restart, policy. Did you mean 'raise'? "
        "Hangs are only reported."
    ]


def test_the_environment_of_the_job_overrides_the_script() -> None:
    asked = {"on_hang": "raise", "notes": "1"}
    assert listener.in_force(asked, {}) == asked
    said = {"NCCLWATCH_ON_HANG": " report ", "NCCLWATCH_NOTES": "0"}
    assert listener.in_force(asked, said) == {"on_hang": "report", "notes": "0"}
    assert listener.in_force({}, {}) == {"on_hang": "", "notes": ""}


@pytest.mark.parametrize("kind", WAITS)
def test_a_thread_waits_for_its_peers_where_only_they_can_end_the_wait(kind: WaitKind, ring: RingFile) -> None:
    row = ring.add_thread(7, main=True)
    assert not listener.waits_for_peers(ring, row)
    ring.set_wait(row, ring.wait(0, 1, 0, WAITS.index(kind) + 1, 0, -1))
    assert listener.waits_for_peers(ring, row) is (kind not in (WaitKind.DATA, WaitKind.SAVE, WaitKind.BACKWARD))
    ring.set_wait(row, NO_WAIT)
    assert not listener.waits_for_peers(ring, row)


def test_a_notice_is_noted(ring: RingFile) -> None:
    noted: list[tuple[str, int]] = []

    class Book:
        name = "book"

        def note(self, verdict: HangVerdict, step: int) -> None:
            noted.append((verdict.incident, step))

    both = listener.NoticeListener(ring, None, Noting(lambda *_: None, lambda: [Book()]))
    for beat in (1, 2, 3):
        ring.place.write(f"{ring.file_name}.notice", encode(Notice(beat=beat, hangs=(HANG,))))
        both.listen(None)
    both.close()
    assert noted == [("i1", 0)]
