"""Builds the native recorder on the user's machine, for the torch and the Python that are there.

It has two sides (`sources/bridge.h`): one knows torch's C++, which has no stable ABI, and is compiled against the
headers of one version of torch; the other knows CPython. Both lie in a cache, under a name that says for which torch,
Python and sources they were built. One call of the compiler does each: `torch.utils.cpp_extension` would ask for ninja
and setuptools.
"""

import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ncclwatch.contract import config
from ncclwatch.contract.machine import homes
from ncclwatch.native import fitness, ownership

MODULE = "_ncclwatch_native"
TORCH_SIDE = "torch_side.so"
SOURCES = Path(__file__).parent / "sources"
TIMEOUT_S = 600
_MODE = 0o700  # of what is built, whatever the umask: what others may write is not loaded
# Only what torch's own libraries need anyway, and no name of ours but the one entry.
_FLAGS = (
    *("-O2", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections"),
    *("-DNDEBUG", "-Wl,--gc-sections", "-s", "-w"),
)


class NativeError(Exception):
    """The native recorder cannot be built or loaded; the text says what was tried and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """Where a build lies and how long it took; 0 seconds if it was there already."""

    path: Path
    seconds: float


def directory() -> Path | None:
    """Return where builds are cached: NCCLWATCH_NATIVE_DIR, or the user's own cache; None for a user without a home."""
    named = os.environ.get(config.ENV_NATIVE_DIR)
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME")
    home = homes.home()
    if not cache and home is None:
        return None
    return Path(cache or f"{home}/.cache") / "ncclwatch"


def source_id() -> str:
    """Return what the sources are known by."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))).hexdigest()[:12]


def module_name() -> str:
    """Return the file name of the Python side for this Python."""
    return f"{MODULE}{sysconfig.get_config_var('EXT_SUFFIX') or '.so'}"


def built_path() -> Path:
    """Return where the Python side for this torch, this Python and these sources lies, or would lie.

    The torch side lies beside it. Raises `NativeError` where there is no place for one.
    """
    place = _place()
    import torch

    return place / f"torch-{torch.__version__}-{source_id()}" / module_name()


def alone_path() -> Path:
    """Return where the Python side for this Python and these sources lies, or would lie, without a torch side.

    Raises `NativeError` where there is no place for one.
    """
    return _place() / f"python-{source_id()}" / module_name()


def _place() -> Path:
    place = directory()
    if place is None:
        raise NativeError(
            f"no home directory to keep it in: uid {os.getuid()} has neither HOME nor an entry in the password file. "
            f"Name a directory in {config.ENV_NATIVE_DIR}"
        )
    return place


def build() -> Built:
    """Compile the native recorder for this torch, unless that has been done.

    Raises `NativeError` if there is no compiler, no Python header, or if it does not compile.
    """
    path = built_path()
    _refuse_others(path)
    if path.exists():
        return Built(path=path, seconds=0.0)
    unfit = fitness.trouble()
    if unfit:
        raise NativeError(f"{unfit}. The recorder in Python is used")
    began = time.monotonic()
    compiler, alone = _compiler(), build_alone()
    _make_directory(path.parent)
    _refuse_others(path)
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        torch_side, python_side = Path(work) / TORCH_SIDE, Path(work) / path.name
        root, cxx11 = _torch_here()
        compile_torch_side(compiler, root / "include", root / "lib", torch_side, cxx11=cxx11)
        shutil.copyfile(alone, python_side)
        for side in (torch_side, python_side):
            side.chmod(_MODE)
        torch_side.replace(path.parent / TORCH_SIDE)
        python_side.replace(path)  # the last: where it is, the other one is
    return Built(path=path, seconds=time.monotonic() - began)


def build_alone() -> Path:
    """Compile the Python side, which fits whatever torch there is, unless that has been done; returns where it is.

    Raises `NativeError` if there is no compiler, no Python header, or if it does not compile.
    """
    path = alone_path()
    _refuse_others(path)
    if path.exists():
        return path
    compiler = _compiler()
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").exists():
        raise NativeError(f"no Python.h in {headers}. Install Python's headers (apt install python3-dev)")
    _make_directory(path.parent)
    _refuse_others(path)
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        side = Path(work) / path.name
        compile_python_side(compiler, headers, side)
        side.chmod(_MODE)
        side.replace(path)
    return path


def _refuse_others(path: Path) -> None:
    trouble = ownership.trouble(path.parent, path.name, TORCH_SIDE)
    if trouble:
        raise NativeError(trouble)


def _compiler() -> list[str]:
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if not found:
        raise NativeError("no C++ compiler found (g++, c++, clang++). Install one (apt install g++), or name it in CXX")
    return found.split()


def _make_directory(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)  # where the umask is 0, too
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise NativeError(
            f"cannot write {path}: {error.strerror}. Name another directory in {config.ENV_NATIVE_DIR}"
        ) from error


def _torch_here() -> tuple[Path, bool]:
    import torch

    return Path(torch.__file__).parent, bool(torch._C._GLIBCXX_USE_CXX11_ABI)


def compile_torch_side(compiler: list[str], headers: Path, libraries: Path, into: Path, *, cxx11: bool) -> None:
    """Compile the torch side against the headers of one torch; `libraries` has its libtorch_cpu.so and libc10.so.

    Raises `NativeError`.
    """
    _compile(
        [
            *(*compiler, *_FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(cxx11)}"),
            *("-isystem", str(headers), "-isystem", str(headers / "torch/csrc/api/include")),
            *(str(SOURCES / "torch_side.cpp"), f"-L{libraries}", "-ltorch_cpu", "-lc10", "-o", str(into)),
        ]
    )


def compile_python_side(compiler: list[str], headers: Path, into: Path) -> None:
    """Compile the Python side against the headers of one Python. Raises `NativeError`."""
    _compile(
        [
            *(*compiler, *_FLAGS, "-fno-exceptions", "-fno-rtti", "-isystem", str(headers)),
            *(str(SOURCES / "python_side.cpp"), "-o", str(into)),
        ]
    )


def _compile(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NativeError(f"{command[0]} had not ended after {TIMEOUT_S} s; the build was given up") from None
    except OSError as error:
        raise NativeError(f"cannot run {command[0]}: {error.strerror}") from error
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line][:3] or done.stderr.splitlines()[-3:]
        raise NativeError(
            f"{command[0]} ended with {done.returncode}: {'; '.join(map(str.strip, errors))}. "
            "The recorder in Python is used; it records the same at a few microseconds more per collective"
        )
