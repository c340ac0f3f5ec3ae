"""Finds the sides of the native recorder that came with the package.

A torch side fits the releases of one minor version of torch with one ABI of C++'s library, whatever Python there is; a
Python side fits one minor version of Python, whatever torch. What is a build of its own (a nightly, a vendor's) may
have another layout under the same number, and gets neither.
"""

import platform
import re
from pathlib import Path

from ncclwatch.native.build import module_name, source_id

DIRECTORY = Path(__file__).parent / "prebuilt"
SOURCE_ID = "sources"  # the file that says from which sources they were built
_RELEASE = re.compile(r"(\d+\.\d+)\.\d+(\+\w+)?")


def torch_side_name(minor: str, machine: str, *, cxx11: bool) -> str:
    """Return the file name of the torch side for a minor version of torch, 2.13 say."""
    return f"torch-{minor}-{'cxx11' if cxx11 else 'cxx98'}-{machine}.so"


def python_side_here() -> Path | None:
    """Return the Python side for this Python, whatever torch there is; None if there is none."""
    path, built_from = DIRECTORY / module_name(), DIRECTORY / SOURCE_ID
    fits = path.exists() and built_from.exists() and built_from.read_text() == source_id()
    return path if fits else None


def sides_here() -> tuple[Path, Path] | None:
    """Return (Python side, torch side) for this Python and this torch, None if there is none for both."""
    import torch

    release = _RELEASE.fullmatch(torch.__version__)
    if release is None:
        return None
    cxx11 = bool(torch._C._GLIBCXX_USE_CXX11_ABI)
    python_side = python_side_here()
    torch_side = DIRECTORY / torch_side_name(release[1], platform.machine(), cxx11=cxx11)
    return (python_side, torch_side) if python_side is not None and torch_side.exists() else None
