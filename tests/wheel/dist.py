"""Builds what a release consists of, and tries it as a user would who has no network. `make dist`.

In dist/: the source distribution, the wheel that is built from it, and a list of all that is installed (CycloneDX).
Then, in an empty virtual environment, from a directory of wheels alone: the installation, and the verdict on a script
that hangs. Commands and seconds are printed.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from ncclwatch.contract.version import VERSION

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
TORCH = "torch==2.13.0"

# A first program of a newcomer: rank 1 skips a collective.
SCRIPT = """
import torch
import torch.distributed as dist

import ncclwatch

ncclwatch.attach()
dist.init_process_group("gloo")
for step in range(1000):
    if step == 50 and dist.get_rank() == 1:
        continue
    dist.all_reduce(torch.ones(4))
    if step % 10 == 0:
        dist.barrier()
"""


def main() -> None:
    """Build and try a release; exits with a message at the first thing that is wrong."""
    shutil.rmtree(DIST, ignore_errors=True)
    _run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    (source,) = DIST.glob("ncclwatch-*.tar.gz")
    (wheel,) = DIST.glob("ncclwatch-*.whl")
    if f"-{VERSION}" not in source.name or f"-{VERSION}-" not in wheel.name:
        sys.exit(f"{source.name} and {wheel.name} are not of version {VERSION}")
    _run(sys.executable, "-m", "twine", "check", "--strict", source, wheel)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        wheels = place / "wheelhouse"
        _run(sys.executable, "-m", "pip", "download", "--quiet", "--dest", wheels, f"{wheel}[server]", TORCH)
        venv.create(place / "empty", with_pip=True)
        python = place / "empty/bin/python"
        began = time.monotonic()
        offline = ("--no-index", "--find-links", wheels)
        _run(python, "-m", "pip", "install", "--quiet", *offline, f"ncclwatch[server]=={VERSION}", TORCH)
        installed_s = time.monotonic() - began
        components = DIST / f"ncclwatch-{VERSION}.cdx.json"
        _run(sys.executable, "-m", "cyclonedx_py", "environment", "--output-file", components, python)
        verdict_s = _verdict(place)
    for path in (source, wheel, components):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1024:,.0f} KiB")
    print(
        f"From an empty environment to the verdict on an own script: 2 commands. Installation (with torch, from local "
        f"wheels) {installed_s:.0f} s, from the start of the script to the verdict {verdict_s:.0f} s."
    )


def _verdict(place: Path) -> float:
    """Return for how long a newcomer waits for the verdict on a script that hangs."""
    (place / "train.py").write_text(SCRIPT)
    programs = place / "empty/bin"
    command = (
        programs / "ncclwatch",
        "run",
        "--on-hang",
        "abort",
        "--",
        "torchrun",
        "--standalone",
        "--nproc-per-node",
    )
    began = time.monotonic()
    done = subprocess.run(
        [str(part) for part in (*command, "4", "train.py")],
        cwd=place,
        env={"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(place), "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    taken_s = time.monotonic() - began
    verdict = re.search(r"(?ms)^ncclwatch: CRITICAL rank 1 .*?^  certainty .*?$", done.stderr)
    if verdict is None:
        sys.exit(f"there was no verdict: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    print(verdict[0])
    return taken_s


def _run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")


if __name__ == "__main__":
    main()
