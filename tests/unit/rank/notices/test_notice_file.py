"""What a rank believes of the file in which its agent tells of hangs: only what is written anew all the time."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclwatch.contract.machine.private_dirs import PrivateDir, open_private
from ncclwatch.contract.on_hang.notice import HangVerdict, Notice, encode, parse
from ncclwatch.rank.notices.notice_file import STALE_S, NoticeFile

HANG = HangVerdict(
    incident="i1", job="llama", cause="data_stall", certainty="PROVEN", sentence="s", advice="a", culprits=(0, 3)
)
NAME = "0-17.ring.notice"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[PrivateDir]:
    with open_private(str(tmp_path / "rings"), make=True) as found:
        yield found


def test_a_file_counts_once_it_has_changed(place: PrivateDir) -> None:
    found_file = NoticeFile(place, "0-17.ring")
    assert found_file.read(1.0) is None
    place.write(NAME, encode(Notice(beat=4, raised="i1", hangs=(HANG,))))
    assert [found_file.read(at_s) for at_s in (2.0, 2.5, 3.0)] == [None] * 3
    place.write(NAME, encode(Notice(beat=5, raised="i1", hangs=(HANG,))))
    found = found_file.read(3.5)
    assert found == Notice(beat=5, raised="i1", hangs=(HANG,))
    assert found.to_raise == HANG


def test_a_file_that_is_taken_away_or_does_not_change_any_more_says_nothing(place: PrivateDir) -> None:
    found_file = NoticeFile(place, "0-17.ring")
    for beat in (1, 2):
        place.write(NAME, encode(Notice(beat=beat, hangs=(HANG,))))
        found_file.read(float(beat))
    assert found_file.read(2.0 + STALE_S) is not None
    assert found_file.read(2.1 + STALE_S) is None
    for beat in (3, 4):
        place.write(NAME, encode(Notice(beat=beat, hangs=(HANG,))))
        found = found_file.read(10.0 + beat)
    assert found is not None
    place.unlink(NAME)
    assert found_file.read(14.5) is None


def test_a_link_is_not_followed(place: PrivateDir, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    Path(place.path, NAME).symlink_to(elsewhere)
    found_file = NoticeFile(place, "0-17.ring")
    for beat in (1, 2, 3):
        elsewhere.write_bytes(encode(Notice(beat=beat, hangs=(HANG,))))
        assert found_file.read(float(beat)) is None


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'{"beat":"1"}', b'{"hangs":[]}', b'{"beat":1,"hangs":7,"raised":8}', b'{"beat":1,"hangs":[3]}'],
)
def test_what_cannot_be_read_tells_of_no_hang(data: bytes) -> None:
    found = parse(data)
    assert found is None or (found.hangs, found.raised, found.to_raise) == ((), "", None)


def test_fields_of_another_kind_are_left_out() -> None:
    found = parse(b'{"beat":1,"raised":"x","hangs":[{"incident":3,"culprits":["a",2],"sentence":null}]}')
    assert found is not None
    (hang,) = found.hangs
    assert (hang.incident, hang.culprits, hang.sentence) == ("", (2,), "")
    assert found.to_raise is None
