"""Compiles the backend against the installed torch, once; the result is cached like a build of the native recorder."""

import hashlib
import os
import subprocess
import sysconfig
import tempfile
from pathlib import Path

MODULE = "zoo_stream"
_SOURCE = Path(__file__).with_name("backend.cpp")
_TIMEOUT_S = 900.0


def built() -> Path:
    """Return the compiled module, compiling it if need be: that takes a minute.

    Raises `SystemExit` with the compiler's own words if it does not compile.
    """
    import torch

    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ncclwatch-zoo"
    target = cache / f"torch-{torch.__version__}-{digest}" / f"{MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        made = Path(work) / target.name
        done = subprocess.run(_command(made), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        if done.returncode:
            raise SystemExit(f"the stream backend of the zoo does not compile:\n{done.stderr[-3000:]}")
        made.replace(target)
    return target


def _command(target: Path) -> list[str]:
    import torch

    root = Path(torch.__file__).parent
    return [
        *(os.environ.get("CXX", "g++").split()),
        *("-O1", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", "-w"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        *("-DTORCH_API_INCLUDE_EXTENSION_H", f"-DTORCH_EXTENSION_NAME={MODULE}"),
        *("-isystem", str(root / "include"), "-isystem", str(root / "include/torch/csrc/api/include")),
        *("-isystem", sysconfig.get_paths()["include"]),
        str(_SOURCE),
        *(f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}"),
        *("-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10"),
        *("-o", str(target)),
    ]
