"""Builds the native recorder, and finds it again.

It is compiled on the user's machine against the user's torch, because torch's C++ interface has no
stable ABI, and cached under a name that says for which torch, Python and sources it was built. One
call of the compiler does it: `torch.utils.cpp_extension` would ask for ninja and setuptools.
"""

import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ncclwatch.contract import config
from ncclwatch.contract.machine import homes

MODULE = "_ncclwatch_native"
SOURCES = ("recorder.cpp", "record.h", "sites.h")
TIMEOUT_S = 600


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


def built_path() -> Path:
    """Return where the build for this torch, this Python and these sources lies, or would lie.

    Raises `NativeError` where there is no place for one.
    """
    place = directory()
    if place is None:
        raise NativeError(
            f"no home directory to keep it in: uid {os.getuid()} has neither HOME nor an entry in the password file. "
            f"Name a directory in {config.ENV_NATIVE_DIR}"
        )
    import torch

    here = Path(__file__).parent
    digest = hashlib.sha256(b"".join((here / name).read_bytes() for name in SOURCES)).hexdigest()[:12]
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    return place / f"torch-{torch.__version__}-{digest}" / f"{MODULE}{suffix}"


def load() -> ModuleType | None:
    """Load the native recorder if it has been built for this torch; None if it has not.

    Raises `NativeError` if it is there but cannot be loaded, or belongs to somebody else.
    """
    if directory() is None:  # nothing can have been built
        return None
    path = built_path()
    try:
        owner = path.stat().st_uid
    except OSError:
        return None
    if owner not in (os.getuid(), 0):
        raise NativeError(f"{path} belongs to user {owner}, not to you: not loaded. Run `ncclwatch build-native`")
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
    spec = importlib.util.spec_from_file_location(MODULE, str(path), loader=loader)
    if spec is None:
        raise NativeError(f"{path} is no module. Delete it and run `ncclwatch build-native`")
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise NativeError(f"{path} does not load ({error}). Delete it and run `ncclwatch build-native`") from error
    return module


def build() -> Built:
    """Compile the native recorder for this torch, unless that has been done.

    Raises `NativeError` if there is no compiler, no Python header, or if it does not compile.
    """
    path = built_path()
    if path.exists():
        return Built(path=path, seconds=0.0)
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise NativeError("this Python has no GIL; the native recorder needs one. The recorder in Python is used")
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if not compiler:
        raise NativeError("no C++ compiler found (g++, c++, clang++). Install one (apt install g++), or name it in CXX")
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").exists():
        raise NativeError(f"no Python.h in {headers}. Install Python's headers (apt install python3-dev)")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise NativeError(
            f"cannot write {path.parent}: {error.strerror}. Name another directory in {config.ENV_NATIVE_DIR}"
        ) from error
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        made = Path(work) / path.name
        _compile([*compiler.split(), *_arguments(headers), "-o", str(made)])
        made.replace(path)
    return Built(path=path, seconds=time.monotonic() - began)


def _arguments(headers: Path) -> list[str]:
    import torch

    root = Path(torch.__file__).parent
    flags = [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI"):  # what older pybind11 tells its ABIs apart by
        value = getattr(torch._C, f"_PYBIND11_{name}", None)
        if value is not None:
            flags.append(f'-DPYBIND11_{name}="{value}"')
    return [
        *("-O2", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", "-w"),
        *flags,
        *("-isystem", str(root / "include"), "-isystem", str(root / "include/torch/csrc/api/include")),
        *("-isystem", str(headers)),
        str(Path(__file__).parent / "recorder.cpp"),
        *(f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10"),
    ]


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
            f"{command[0]} ended with {done.returncode}:\n  "
            + "\n  ".join(errors)
            + "\nThe recorder in Python is used; "
            "it records the same at a few microseconds more per collective"
        )
