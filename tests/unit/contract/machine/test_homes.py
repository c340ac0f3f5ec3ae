"""Where a user's own files lie, with a home and without one."""

import os
from pathlib import Path

import pytest

from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.machine import homes
from ncclwatch.native import build, loading, prebuilt

MAKESHIFT = (Path(f"/var/tmp/ncclwatch-{os.getuid()}"), True)


@pytest.fixture
def no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a uid that the password file does not know, as in many containers."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.delenv("HOME", raising=False)


def test_without_a_variable_the_password_file_names_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pwd.getpwuid", lambda uid: os.stat_result if uid < 0 else type("Entry", (), {"pw_dir": "/h"}))
    assert homes.home({}) == Path("/h")


def test_a_home_that_is_no_whole_path_is_none() -> None:
    assert homes.home({"HOME": "here"}) is None


@pytest.mark.usefixtures("no_entry")
def test_who_has_neither_home_nor_entry_keeps_incidents_in_a_place_of_its_own() -> None:
    assert homes.home({}) is None
    assert homes.state_dir({}) == MAKESHIFT


def test_a_home_in_which_nothing_can_be_made_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert homes.state_dir({"HOME": str(tmp_path / "file")}) == MAKESHIFT
    assert homes.state_dir({"HOME": str(tmp_path)}) == (tmp_path / ".local/state/ncclwatch", False)


def test_what_is_in_a_home_already_is_taken_even_if_its_home_cannot_be_written(tmp_path: Path) -> None:
    kept = tmp_path / ".local/state/ncclwatch"
    kept.mkdir(parents=True)
    tmp_path.chmod(0o500)
    assert homes.state_dir({"HOME": str(tmp_path)}) == (kept, False)
    tmp_path.chmod(0o700)


def test_a_named_state_directory_goes_first(tmp_path: Path) -> None:
    assert homes.state_dir({"XDG_STATE_HOME": "/s", "HOME": str(tmp_path)}) == (Path("/s/ncclwatch"), False)


def test_a_makeshift_that_somebody_else_could_have_made_is_refused(tmp_path: Path) -> None:
    homes.make_own(tmp_path / "ours")
    assert (tmp_path / "ours").stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "ours")
    for name in ("open", "link"):
        with pytest.raises(ConfigError, match=f"{name} is not a directory of yours alone"):
            homes.make_own(tmp_path / name)
    with pytest.raises(ConfigError, match="cannot make"):
        homes.make_own(tmp_path / "none" / "below")


@pytest.mark.skipif(os.getuid() != 0, reason="to give a directory to another user needs root")
def test_a_makeshift_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "planted").mkdir(mode=0o700)
    os.chown(tmp_path / "planted", 54321, 54321)
    with pytest.raises(ConfigError, match="planted is not a directory of yours alone"):
        homes.make_own(tmp_path / "planted")


@pytest.mark.usefixtures("no_entry")
def test_a_tilde_that_stands_for_nothing_is_told_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="stands for no directory"):
        homes.expanded("~/targets.toml")


@pytest.mark.usefixtures("no_entry")
def test_without_a_home_there_is_no_native_recorder_and_building_one_says_what_to_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("NCCLWATCH_NATIVE_DIR", raising=False)
    monkeypatch.setattr(prebuilt, "DIRECTORY", Path("/nowhere"))
    assert loading.load() is None
    with pytest.raises(build.NativeError, match="Name a directory in NCCLWATCH_NATIVE_DIR"):
        build.build()
