"""`ncclwatch build-native` and `ncclwatch doctor`: the native recorder is built, found, and its absence is told."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ncclwatch.native import build, loading, probe

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def ncclwatch(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH")}
    command = [sys.executable, "-m", "ncclwatch", *arguments]
    return subprocess.run(command, env=kept | settings, capture_output=True, text=True, timeout=300, check=False)


def test_what_was_built_is_found_and_not_built_again():
    path = build.build().path
    done = ncclwatch("build-native")
    assert (done.returncode, done.stdout) == (0, f"{path} was built already; attach() loads it by itself\n")
    assert f"PASS  native recorder   {path}" in ncclwatch("doctor").stdout


def test_without_a_compiler_one_message_says_what_was_tried(tmp_path: Path):
    done = ncclwatch("build-native", NCCLWATCH_NATIVE_DIR=str(tmp_path), CXX="/nowhere/c++")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == "ncclwatch: cannot run /nowhere/c++: No such file or directory"
    assert not list(tmp_path.rglob("*.so"))


def test_an_error_of_the_compiler_is_shown_and_leaves_nothing(tmp_path: Path):
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho 'torch.h:7: error: no such thing' >&2\nexit 1\n")
    compiler.chmod(0o755)
    done = ncclwatch("build-native", NCCLWATCH_NATIVE_DIR=str(tmp_path / "cache"), CXX=str(compiler))
    assert done.returncode == 2
    assert "torch.h:7: error: no such thing" in done.stderr
    assert "The recorder in Python is used" in done.stderr
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_doctor_says_that_nothing_is_built_and_what_to_type(tmp_path: Path):
    done = ncclwatch("doctor", NCCLWATCH_NATIVE_DIR=str(tmp_path))
    assert done.returncode == 1
    assert "WARN  native recorder   not built for this torch; the recorder in Python is used\n" in done.stdout
    assert "do: run `ncclwatch build-native`" in done.stdout


def test_a_build_that_does_not_load_is_told_and_training_is_recorded_in_python(tmp_path: Path):
    here = os.environ.get("NCCLWATCH_NATIVE_DIR")
    relative = build.built_path().relative_to(build.directory())
    assert here is None
    broken = tmp_path / relative
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"this is no shared object")
    done = ncclwatch("doctor", NCCLWATCH_NATIVE_DIR=str(tmp_path))
    assert done.returncode == 1
    assert f"{broken} is no library, or cut off" in done.stdout
    program = "import ncclwatch; from ncclwatch.rank import attach; ncclwatch.attach(); print(type(attach.current()))"
    settings = {"NCCLWATCH_NATIVE_DIR": str(tmp_path), "NCCLWATCH_RUNTIME_DIR": str(tmp_path / "rings")}
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "NCCLWATCH_AGENT": "0"}
    trained = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | settings | rank, capture_output=True, text=True, timeout=60
    )
    assert trained.returncode == 0, trained.stderr
    assert "ncclwatch.rank.recorder.Recorder" in trained.stdout


def test_doctor_fails_when_the_server_that_is_named_does_not_answer():
    done = ncclwatch("doctor", NCCLWATCH_SERVER="http://127.0.0.1:9")
    assert done.returncode == 3
    assert "FAIL  server            NCCLWATCH_SERVER names it, and no ncclwatch server answers at" in done.stdout


def test_a_torch_side_that_reads_something_else_of_this_torch_is_not_used():
    build.build()
    assert loading.load() is not None
    other = SimpleNamespace(address_in=lambda work: 0)
    with pytest.raises(build.NativeError, match=r"was built for another torch than .*: of a work's address it reads"):
        probe.check(other, Path("torch_side.so"))
