"""What others may have written is neither loaded nor built upon."""

import os
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from ncclwatch.native import build, loading, prebuilt
from ncclwatch.native.build import TORCH_SIDE, NativeError, built_path


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the Python side of a build in a place of its own, with the torch side beside it."""
    monkeypatch.setattr(prebuilt, "sides_here", lambda: None)
    monkeypatch.setattr(prebuilt, "python_side_here", lambda: None)
    monkeypatch.setenv("NCCLWATCH_NATIVE_DIR", str(tmp_path / "place"))
    path = built_path()
    path.parent.mkdir(mode=0o700, parents=True)
    path.touch(0o600)
    (path.parent / TORCH_SIDE).touch(0o600)
    return path


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Return what makes a file, or all files where only root may do that, another user's."""

    def give(path: Path) -> None:
        if os.getuid() == 0:
            os.chown(path, 54321, -1, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "getuid", lambda: 54321)

    return give


def _refused(by: str) -> None:
    with pytest.raises(NativeError, match=by):
        loading.where()
    with pytest.raises(NativeError, match=by):
        build.build()


def test_ones_own_build_is_found(built: Path):
    assert loading.where() == built


@pytest.mark.parametrize("of", ["directory", "module", TORCH_SIDE])
def test_what_another_user_has_made_is_not_loaded(built: Path, give_away: Callable[[Path], None], of: str):
    give_away({"directory": built.parent, "module": built}.get(of, built.parent / TORCH_SIDE))
    _refused("belongs to user")


def test_what_lies_in_a_directory_of_another_user_is_not_loaded_though_its_name_leads_to_a_file_of_ones_own(
    built: Path, tmp_path: Path
):
    built.unlink()
    (tmp_path / "own.so").touch()
    built.symlink_to(tmp_path / "own.so")
    _refused("no plain file")


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_where_others_can_write_nothing_is_loaded(built: Path, mode: int):
    built.parent.chmod(mode)
    _refused("can be written by others")


def test_a_link_to_a_directory_is_not_followed(built: Path, tmp_path: Path):
    real = built.parent.rename(tmp_path / "real")
    built.parent.symlink_to(real)
    _refused("is no directory")


def test_where_everybody_can_exchange_the_directory_nothing_is_loaded(built: Path):
    built.parent.parent.chmod(0o777)
    _refused("can be written by everybody")


def test_a_place_as_tmp_where_only_the_owner_can_rename_is_taken(built: Path):
    built.parent.parent.chmod(0o1777)
    assert loading.where() == built


def test_nothing_is_built_in_a_directory_that_another_user_has_made_before(
    built: Path, give_away: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CXX", "/nowhere/c++")
    for path in (built, built.parent / TORCH_SIDE):
        path.unlink()
    give_away(built.parent)
    with pytest.raises(NativeError, match="belongs to user"):
        build.build()


def test_a_pipe_in_its_place_is_not_opened(built: Path):
    built.unlink()
    os.mkfifo(built)
    _refused("no plain file")


@pytest.mark.skipif(not Path(sysconfig.get_paths()["include"], "Python.h").exists(), reason="needs Python's headers")
def test_what_was_built_where_the_umask_is_zero_is_found(built: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.rmtree(built.parent.parent)
    compiler = built.parents[2] / "compiler"
    compiler.write_text('#!/bin/sh\nfor last; do :; done\ncp /dev/null "$last"\n')
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    before = os.umask(0)
    try:
        assert build.build().path == built
    finally:
        os.umask(before)
    assert loading.where() == built
    assert loading.where_alone() is not None
