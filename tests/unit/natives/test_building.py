"""A torch that cannot be built for takes nothing from the others."""

from pathlib import Path

import pytest
from click.testing import CliRunner

import natives.__main__ as building
from ncclwatch.native import prebuilt
from ncclwatch.native.build import NativeError, source_id


def test_a_torch_without_a_wheel_is_named_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(_: object, minor: str, directory: Path) -> None:
        if minor == "2.7":
            raise NativeError("pip finds no wheel of torch==2.7.*")
        (directory / f"torch-{minor}.so").touch()

    monkeypatch.setattr(prebuilt, "DIRECTORY", tmp_path / "prebuilt")
    monkeypatch.setattr(building, "_build_python_side", lambda *_: None)
    monkeypatch.setattr(building, "_build_torch_sides", build)
    done = CliRunner().invoke(building.main, ["--torch", "2.6", "--torch", "2.7", "--torch", "2.8"])
    assert done.exit_code == 1
    assert "natives: nothing for torch 2.7: pip finds no wheel of torch==2.7.*" in done.output
    assert sorted(each.name for each in (tmp_path / "prebuilt").glob("*.so")) == ["torch-2.6.so", "torch-2.8.so"]
    assert (tmp_path / "prebuilt" / prebuilt.SOURCE_ID).read_text() == source_id()
