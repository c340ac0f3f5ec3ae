"""Checks that the built wheel works where nothing else is installed. `make wheel`.

Builds the wheel, installs it into an empty virtual environment, first bare, then with the server,
and uses it there: nothing of the working tree is on the path.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ncclwatch.native import prebuilt
from ncclwatch.native.build import SOURCES

ROOT = Path(__file__).parents[2]


def _run(*command: str | Path, cwd: Path, code: int = 0, or_code: int | None = None) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=300)
    if done.returncode not in (code, or_code):
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout + done.stderr


def _build(into: Path) -> Path:
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", into, ROOT, cwd=into)
    (wheel,) = into.glob("ncclwatch-*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    missing = {f"ncclwatch/native/sources/{path.name}" for path in SOURCES.iterdir()} - packed
    assert "ncclwatch/inject/sitecustomize.py" in packed, "the wheel lacks what `run --inject` puts on PYTHONPATH"
    assert not missing, f"the wheel lacks {missing}: build-native would have nothing to compile"
    causes = {f"ncclwatch/contract/words/causes/{path.name}" for path in (ROOT / "docs/verdicts").glob("*.md")}
    assert causes <= packed, f"the wheel lacks {causes - packed}: `ncclwatch explain` would have nothing to show"
    ui = ROOT / "server" / "ncclwatch_server" / "ui"
    assets = {
        f"ncclwatch_server/ui/{path.relative_to(ui)}" for path in ui.rglob("*.*") if "__pycache__" not in path.parts
    }
    assert assets <= packed, f"the wheel lacks {assets - packed}: pages would have no style, or not be there"
    return wheel


@contextmanager
def _native_sides() -> Iterator[None]:
    """See to it that the package has the native recorder for this torch and this Python while the wheel is built."""
    if prebuilt.sides_here() is not None:
        yield
        return
    minor = ".".join(torch.__version__.split(".")[:2])
    _run(sys.executable, "-m", "natives", "--torch", minor, "--python", sys.executable, cwd=ROOT)
    try:
        yield
    finally:  # a checkout that records in Python goes on to do so
        shutil.rmtree(prebuilt.DIRECTORY)


def _check_native(python: Path, place: Path) -> None:
    """See to it that what is installed records natively, with nothing built there, beside a torch from elsewhere."""
    program = "from ncclwatch.rank import attach; import ncclwatch; ncclwatch.attach(); print(attach.current())"
    command = [str(python), "-c", program]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as rings:
        settings = {
            "PYTHONPATH": str(Path(torch.__file__).parents[1]), "NCCLWATCH_NATIVE_DIR": str(place / "nothing"),
            "NCCLWATCH_RUNTIME_DIR": rings, "NCCLWATCH_AGENT": "0", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
        }  # fmt: skip
        done = subprocess.run(
            command, cwd=place, env=os.environ | settings, capture_output=True, text=True, timeout=300
        )
    assert "ncclwatch.rank.native.NativeRecorder" in done.stdout, done.stdout + done.stderr


def main() -> None:
    """Check the wheel; exits with a message at the first thing that is wrong."""
    with tempfile.TemporaryDirectory() as name, _native_sides():
        place = Path(name)
        wheel = _build(place)
        venv.create(place / "empty", with_pip=True)
        python, ncclwatch = place / "empty/bin/python", place / "empty/bin/ncclwatch"
        _run(python, "-m", "pip", "install", "--quiet", wheel, cwd=place)
        packages = {
            each["name"].lower() for each in json.loads(_run(python, "-m", "pip", "list", "--format=json", cwd=place))
        }
        assert not packages & {"torch", "numpy", "fastapi"}, f"the bare install brings {packages}"
        assert _run(ncclwatch, "version", cwd=place).strip(), "no version"
        told = _run(ncclwatch, "run", "--", python, "-c", "print('trained')", cwd=place)
        assert "trained" in told, told
        assert "ncclwatch[server]" in told, "a missing server is not told"
        # This very process waits, and so it stands still: exit code 1; or 0, if what is written wakes it meanwhile.
        told = _run(ncclwatch, "diagnose", "--pid", str(os.getpid()), cwd=place, code=1, or_code=0)
        assert "check.py" in told or "could not be read" in told, told
        incident = {
            "id": "i", "job": "j", "state": "open", "cause": "host_stall", "certainty": "PROVEN",
            "severity": "critical", "summary": "rank 3 <sleeps>",
        }  # fmt: skip
        (place / "saved.json").write_text(json.dumps({"schema": 1, "incidents": [incident]}))
        told = _run(ncclwatch, "report", "saved.json", "--html", cwd=place)
        assert "CRITICAL</span> rank 3 &lt;sleeps&gt;</h1>" in told, told
        assert "NCCLWATCH_SERVER" in _run(ncclwatch, "config", "show", "--text", cwd=place)
        assert "How to fix it" in _run(ncclwatch, "explain", "process-frozen", "--text", cwd=place)
        _check_native(python, place)
        _run(python, "-m", "pip", "install", "--quiet", f"{wheel}[server]", cwd=place)
        told = _run(ncclwatch, "run", "--report", "r.json", "--", python, "-c", "print('trained')", cwd=place)
        assert told == "trained\n", told
        assert json.loads((place / "r.json").read_text())["incidents"] == []
        told = _run(ncclwatch, "notify", "test", cwd=place, code=2)
        assert "NCCLWATCH_NOTIFY" in told, told
        told = _run(ncclwatch, "trace", "saved.json", cwd=place, code=2)
        assert "Flight Recorder dumps" in told, told
        for command in ("ncclwatch-server", "ncclwatch-agent"):
            _run(place / "empty/bin" / command, "--help", cwd=place)
    print("the wheel works in an empty virtual environment")


if __name__ == "__main__":
    main()
