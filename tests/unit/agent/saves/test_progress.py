"""A save is seen from outside: its file, how far it has come, and whether it can be written there."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclwatch.contract import digests
from ncclwatch.contract.groups import text_key
from ncclwatch.contract.ring.rows import SaveRow
from ncclwatch_agent.saves import file_places
from ncclwatch_agent.saves.file_places import FilePlaces, Mount, look, mount_of, parse_mounts
from ncclwatch_agent.saves.open_files import OpenFile, open_file, parse_fdinfo, written_files
from ncclwatch_agent.saves.progress import SaveWatch, _Save, file_of

S = 1_000_000_000
MOUNTS = """22 27 0:21 / / rw - overlay overlay rw,lowerdir=/a
23 22 0:30 / /data rw,relatime shared:3 - nfs4 filer:/export rw,vers=4.2
24 23 0:31 / /data/my\\040disk rw - ext4 /dev/sda1 rw
25 22 0:32 / /data2 rw - tmpfs tmpfs rw
not a mount"""


def row(path: str, began_ns: int = S, ended_ns: int = 0, call: str = "torch.save", error: str = "") -> SaveRow:
    return SaveRow(0, began_ns, ended_ns, 0, call, path, error)


def until(found: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_mount_of_a_path_is_the_longest_one_that_holds_it():
    mounts = parse_mounts(MOUNTS)
    assert mounts[1] == Mount(point="/data", filesystem="nfs4", source="filer:/export")
    points = [mount_of(path, mounts).point for path in ("/data/x", "/data/my disk/x", "/data2/x", "/data", "/datax")]
    assert points == ["/data", "/data/my disk", "/data2", "/data", "/"]


def test_one_file_has_one_identity_by_every_path_to_it_and_before_it_exists(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    before = look(str(tmp_path / "a" / "model.pt"))
    (tmp_path / "a" / "model.pt").write_bytes(b"x")
    (tmp_path / "latest.pt").symlink_to(tmp_path / "a" / "model.pt")
    paths = [tmp_path / "a" / "model.pt", tmp_path / "b" / "model.pt", tmp_path / "latest.pt"]
    found = [look(str(path)) for path in paths]
    assert before.identity
    assert {each.identity for each in found} == {before.identity}
    assert {each.inode for each in found} == {(tmp_path / "a" / "model.pt").stat().st_ino}
    assert look(str(tmp_path / "a" / "model1.pt")).identity != before.identity
    assert look(str(tmp_path / "model.pt")).identity != before.identity


def test_on_a_network_the_source_tells_and_not_the_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    place = Mount(point="/", filesystem="nfs4", source="filer:/export")
    monkeypatch.setattr(file_places, "mount_of", lambda *_: place)
    file_places.boot_id.cache_clear()
    found = look(str(tmp_path / "model.pt")).identity
    assert found.startswith("filer:/export:")
    assert file_places.boot_id() not in found


def test_what_is_no_plain_file_has_no_identity(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    found = [look(str(path)) for path in ("/dev/null", tmp_path, tmp_path / "pipe")]
    assert [(each.identity, each.refused) for each in found] == [("", "")] * 3


def test_why_nothing_can_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    missing = look(str(tmp_path / "missing" / "model.pt"))
    assert missing.refused == f"{tmp_path}/missing: No such file or directory"
    room = os.statvfs(tmp_path)
    path = str(tmp_path / "model.pt")
    assert look(path).refused == ""
    for changes, words in (
        ({"f_bavail": 0, "f_bfree": 0}, "its file system is full"),
        ({"f_flag": os.ST_RDONLY}, "its file system is mounted read-only"),
        ({"f_files": 9, "f_favail": 0}, "its file system has no inode left"),
    ):
        fields = {name: getattr(room, name) for name in dir(room) if name.startswith("f_")} | changes
        monkeypatch.setattr(os, "statvfs", lambda _, fields=fields: type("Room", (), fields))
        assert look(path).refused == words


def test_a_look_that_does_not_come_back_keeps_nobody_waiting_and_is_told(monkeypatch: pytest.MonkeyPatch):
    gate, path = FilePlaces(), "/data/model.pt"
    read, write = os.pipe()
    monkeypatch.setattr(file_places, "look", lambda _: os.read(read, 1) and file_places.FilePlace(path=path))
    gate.ask(path)
    gate.ask(path)
    now_ns = time.monotonic_ns() + 7 * S
    assert gate.get(path) is None
    assert 7.0 <= gate.unanswered_s(path, now_ns) < 60.0
    os.write(write, b"xx")
    until(lambda: gate.get(path))
    assert gate.unanswered_s(path, time.monotonic_ns()) == 0.0
    os.close(read)
    os.close(write)


def test_files_open_for_writing_are_seen_with_their_position(tmp_path: Path):
    with open(tmp_path / "w", "wb") as file, open(tmp_path / "a", "ab") as log, open(tmp_path / "w", "rb"):
        os.write(file.fileno(), b"x" * 5000)
        os.write(log.fileno(), b"line")
        mine = [each for each in written_files(os.getpid()) if each.path.startswith(str(tmp_path))]
        assert sorted((each.path, each.position, each.appends) for each in mine) == [
            (str(tmp_path / "a"), 4, True),
            (str(tmp_path / "w"), 5000, False),
        ]
        fd = file.fileno()
        assert open_file(os.getpid(), fd, "w") == OpenFile(fd=fd, path="w", position=5000, appends=False)
    assert open_file(os.getpid(), fd, "w") is None
    assert parse_fdinfo("pos:\t7\nflags:\t0100001\n") == (7, 0o100001)
    assert parse_fdinfo("flags: x") is None


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["log.txt", "model.pt", "model.pt.tmp"], "model.pt"),
        (["log.txt", ".model.pt.aB3x"], ".model.pt.aB3x"),
        (["log.txt", "model.pt/__0_0.distcp"], "model.pt/__0_0.distcp"),
        (["log.txt", "other/model.pt"], None),
    ],
)
def test_the_file_of_a_save_is_found_also_under_a_temporary_name(names: list[str], chosen: str | None):
    files = [OpenFile(fd=3, path=f"/x/{name}", position=0, appends=False) for name in names]
    found = file_of("/x/model.pt", files)
    assert (found.path if found else None) == (f"/x/{chosen}" if chosen else None)


def test_the_rate_is_that_of_the_last_seconds_and_standing_still_is_counted(tmp_path: Path):
    path = tmp_path / "model.pt"
    with open(path, "wb") as file:
        save = _Save(row(str(path)))
        for second, count in enumerate((0, 1000, 3000, 3000, 3000), start=1):
            os.ftruncate(file.fileno(), count)
            os.lseek(file.fileno(), count, os.SEEK_SET)
            save.look(os.getpid(), str(path), second * S)
        assert save.rate() == 3000 / 4
        assert save.still_s(5 * S) == 2.0
        for second in range(6, 20):
            save.look(os.getpid(), str(path), second * S)
        assert save.rate() == 0.0
    save.look(os.getpid(), str(path), 20 * S)
    assert save.file is not None
    assert save.file.position == 3000


def test_a_digest_names_the_file_of_a_save_for_a_while_after_its_end(tmp_path: Path):
    places = FilePlaces()
    path = str(tmp_path / "model.pt")
    watch = SaveWatch(os.getpid(), places)
    watch.observe(2 * S, [row(path, S, 2 * S)])
    until(lambda: places.get(path))
    key = watch.key()
    assert key == text_key(look(path).identity)
    watch.observe(11 * S, [row(path, S, 2 * S)])
    assert watch.key() == key
    watch.observe(13 * S, [row(path, S, 2 * S)])
    assert watch.key() == 0


def test_a_digest_names_no_file_of_a_sharded_checkpoint_and_says_what_failed(tmp_path: Path):
    places = FilePlaces()
    path = str(tmp_path / "model.pt")
    watch = SaveWatch(os.getpid(), places)
    watch.observe(2 * S, [row(path, call="dcp.save")])
    until(lambda: places.get(path))
    assert watch.key() == 0
    watch.observe(3 * S, [row(path, S, 3 * S, error="OSError: [Errno 28] No space left on device")])
    assert watch.key() == digests.SAVE_TROUBLE


class Asked(FilePlaces):
    """Only notes what is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = []

    def ask(self, path: str) -> None:
        self.paths.append(path)


def test_paths_of_a_process_are_asked_about_here_if_it_was_seen_here(tmp_path: Path):
    places = Asked()
    watch = SaveWatch(os.getpid(), places)
    watch.observe(2 * S, [row("/a")], visible=False)
    SaveWatch(2**22 + 1, places).observe(2 * S, [row("/b")])
    watch.observe(2 * S, [row(""), row("...long/c")])
    assert places.paths == []
    watch.observe(3 * S, [row("/d", 2 * S)])
    watch.observe(4 * S, [row("/e", 3 * S, 4 * S)], visible=False)  # its last save, just before it ended
    assert places.paths == ["/d", "/e"]
