"""Which prebuilt sides of the native recorder are taken."""

from pathlib import Path

import pytest
import torch

from ncclwatch.native import loading, prebuilt
from ncclwatch.native.build import built_path, module_name, source_id


@pytest.fixture
def brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a Python side for this Python, and torch sides for one minor version with either ABI."""
    monkeypatch.setattr(prebuilt, "DIRECTORY", tmp_path)
    monkeypatch.setattr(prebuilt.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch, "__version__", "2.9.1+cu128")
    (tmp_path / module_name()).touch()
    (tmp_path / "torch-2.9-cxx11-x86_64.so").touch()
    (tmp_path / "torch-2.9-cxx98-x86_64.so").touch()
    (tmp_path / prebuilt.SOURCE_ID).write_text(source_id())
    return tmp_path


@pytest.mark.parametrize(("cxx11", "side"), [(True, "torch-2.9-cxx11-x86_64.so"), (False, "torch-2.9-cxx98-x86_64.so")])
def test_a_release_gets_the_side_of_its_minor_version_and_abi(
    brought: Path, monkeypatch: pytest.MonkeyPatch, cxx11: bool, side: str
):
    monkeypatch.setattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", cxx11)
    assert prebuilt.sides_here() == (brought / module_name(), brought / side)


@pytest.mark.parametrize(
    "version",
    [
        "2.10.0", "2.9.0a0+50eac811a6.nv25.09", "2.9.0.dev20250901+cu128", "2.9.0a0+gitdeadbee", "2.9.1rc1",
    ],
)  # fmt: skip
def test_another_version_and_whatever_is_no_release_gets_none(
    brought: Path, monkeypatch: pytest.MonkeyPatch, version: str
):
    monkeypatch.setattr(torch, "__version__", version)
    assert prebuilt.sides_here() is None


def test_another_torch_gets_the_side_that_knows_no_torch(brought: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "__version__", "2.99.0.dev20260901")
    assert (loading.where(), loading.where_alone()) == (None, brought / module_name())


def test_another_machine_gets_none(brought: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prebuilt.platform, "machine", lambda: "aarch64")
    assert prebuilt.sides_here() is None


def test_another_python_gets_none(brought: Path):
    (brought / module_name()).unlink()
    assert prebuilt.sides_here() is None


def test_what_was_built_from_other_sources_is_not_taken(brought: Path):
    (brought / prebuilt.SOURCE_ID).write_text("0123456789ab")
    assert prebuilt.sides_here() is None


@pytest.mark.parametrize("named", [True, False])
def test_what_was_built_in_a_place_that_is_named_goes_before_what_was_brought(
    brought: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, named: bool
):
    place = tmp_path_factory.mktemp("place")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    monkeypatch.delenv("NCCLWATCH_NATIVE_DIR", raising=False)
    if named:
        monkeypatch.setenv("NCCLWATCH_NATIVE_DIR", str(place))
    built = built_path()
    built.parent.mkdir(parents=True)
    built.touch()
    assert loading.where() == (built if named else brought / module_name())
