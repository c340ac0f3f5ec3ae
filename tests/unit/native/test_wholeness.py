"""A library that is cut off is told, and not loaded: the loader would end the process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from ncclwatch.native import wholeness
from ncclwatch.native.loading import NativeError, _module_at

LIBRARY = Path(torch.__file__).parent / "lib" / "libc10.so"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "library.so"
    path.write_bytes(LIBRARY.read_bytes())
    return path


def test_a_whole_library_is_let_through(library: Path):
    assert wholeness.trouble(library) == ""


def test_this_pythons_own_extensions_are_let_through():
    found = [
        Path(file) for module in sys.modules.values() if (file := getattr(module, "__file__", None) or "")[-3:] == ".so"
    ]
    assert found
    assert [wholeness.trouble(path) for path in found] == [""] * len(found)


@pytest.mark.parametrize(
    ("kept", "said"),
    [(0, "is no library"), (63, "is no library"), (100, "after 100 bytes"), (5000, "5000 bytes of at least")],
)
def test_one_that_is_cut_off_is_told(library: Path, kept: int, said: str):
    os.truncate(library, kept)
    assert said in wholeness.trouble(library)
    with pytest.raises(NativeError, match="Delete it"):
        _module_at(library)


def test_the_loader_is_ended_by_what_is_refused_here(library: Path):
    os.truncate(library, library.stat().st_size // 2)
    loaded = subprocess.run([sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(library)!r})"], check=False)
    assert loaded.returncode != 0
    assert "cut off" in wholeness.trouble(library)


def test_nobody_waits_for_a_pipe(tmp_path: Path):
    os.mkfifo(tmp_path / "library.so")
    assert wholeness.trouble(tmp_path / "library.so") == "is no plain file"


def test_what_is_not_there_is_an_error_of_ours(tmp_path: Path):
    with pytest.raises(NativeError, match="cannot be read"):
        _module_at(tmp_path / "library.so")
