"""A directory counts only if nobody else can reach it, and a file in it only if it is this user's own."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclwatch.contract import config
from ncclwatch.contract.machine.private_dirs import (
    NotOwnError,
    NotPrivateError,
    PrivateDir,
    open_private,
    require_memory,
)


def test_a_directory_is_made_for_this_user_alone_whatever_the_umask(tmp_path: Path):
    before = os.umask(0)
    try:
        with open_private(str(tmp_path / "a" / "b"), make=True) as place, place.inside("c", make=True):
            assert [path.stat().st_mode & 0o777 for path in (tmp_path / "a" / "b", tmp_path / "a/b/c")] == [0o700] * 2
    finally:
        os.umask(before)


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o740, 0o722, 0o777, 0o1777])
def test_a_directory_that_lets_others_in_is_refused_with_what_to_do(tmp_path: Path, mode: int):
    tmp_path.chmod(mode)
    with pytest.raises(NotPrivateError, match=r"lets other users in .* chmod 700"):
        open_private(str(tmp_path))
    assert tmp_path.stat().st_mode & 0o7777 == mode


def test_one_that_is_ours_by_its_name_is_closed(tmp_path: Path):
    place = tmp_path / config.runtime_name()
    place.mkdir()
    place.chmod(0o775)
    open_private(str(place)).close()
    assert place.stat().st_mode & 0o777 == 0o700


def test_a_link_is_no_directory_even_to_one_of_ours(tmp_path: Path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(NotPrivateError, match="is a link, made by user"):
        open_private(str(tmp_path / "link"))
    with open_private(str(tmp_path)) as place, pytest.raises(NotPrivateError, match="is a link"):
        place.inside("link")


def hard_link(path: Path) -> None:
    (path.parent / "other").write_text("x")
    os.link(path.parent / "other", path)


KINDS: dict[str, Callable[[Path], object]] = {
    "link": lambda path: path.symlink_to("/etc/hostname"),
    "fifo": os.mkfifo,
    "directory": lambda path: path.mkdir(),
    "second name": hard_link,
    "a link to nothing": lambda path: path.symlink_to(path.parent / "made"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT])
def test_what_is_no_plain_file_with_one_name_is_not_opened(tmp_path: Path, kind: str, flags: int):
    KINDS[kind](tmp_path / "agent.log")
    with open_private(str(tmp_path)) as place, pytest.raises(OSError):
        place.open("agent.log", flags)
    assert not (tmp_path / "made").exists()


def test_a_file_of_another_user_is_not_opened(tmp_path: Path):
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of another user")
    (tmp_path / "agent.lock").write_text("")
    os.chown(tmp_path / "agent.lock", 54_321, 54_321)
    with open_private(str(tmp_path)) as place, pytest.raises(NotOwnError, match="belongs to user 54321"):
        place.open("agent.lock", os.O_RDWR | os.O_CREAT)


def test_what_is_done_in_a_directory_is_done_in_that_one_whatever_takes_its_name(tmp_path: Path):
    with open_private(str(tmp_path / "mine"), make=True) as place:
        (tmp_path / "mine").rename(tmp_path / "moved")
        (tmp_path / "mine").mkdir()
        place.write("card", b"me")
        assert place.read("card", 9) == (tmp_path / "moved" / "card").read_bytes() == b"me"
        place.unlink("card")
    assert list(tmp_path.rglob("card*")) == []


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc/hostname"])
def test_a_name_leads_nowhere_else(tmp_path: Path, name: str):
    with open_private(str(tmp_path)) as place:
        for way in (lambda: place.open(name, os.O_RDONLY), lambda: place.write(name, b""), lambda: place.inside(name)):
            with pytest.raises(OSError):
                way()


def test_a_descriptor_that_somebody_closed_and_used_again_is_not_written_through(tmp_path: Path):
    (tmp_path / "other").mkdir()
    place = open_private(str(tmp_path / "mine"), make=True)
    other = os.open(tmp_path / "other", os.O_RDONLY)
    os.dup2(other, place.fd)  # as after os.closerange(3, ...)
    with pytest.raises(NotOwnError):
        place.write("facts", b"")
    assert list((tmp_path / "other").iterdir()) == []
    place.close()
    os.close(other)


def test_only_memory_is_good_enough_for_rings():
    with open_private("/dev/shm/" + f"ncclwatch-test-{os.getpid()}", make=True) as place:
        require_memory(place)
    os.rmdir(place.path)  # noqa: PTH106 - the path is what the class gives
    with PrivateDir("/proc", os.open("/proc", os.O_RDONLY)) as elsewhere, pytest.raises(NotPrivateError, match="proc"):
        require_memory(elsewhere)
