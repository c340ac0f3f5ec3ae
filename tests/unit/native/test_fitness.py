"""Where the native recorder cannot be used at all, nothing of it is loaded or built, and `doctor` says why."""

import platform
import sys
import sysconfig

import pytest
import torch

from ncclwatch.cli.doctor import torch_checks
from ncclwatch.cli.doctor.check import Status
from ncclwatch.native import build, fitness, loading


@pytest.fixture(
    params=[
        (platform, "python_implementation", lambda: "PyPy", "knows CPython, and this is PyPy"),
        (sysconfig, "get_config_var", lambda name: int(name == "Py_GIL_DISABLED"), "this Python has no GIL"),
        (sys, "gettotalrefcount", lambda: 0, "this Python is a debug build"),
        (torch.version, "debug", True, "this torch is a debug build"),
        (platform, "machine", lambda: "riscv64", "not known to write 16 bytes at once"),
    ],
    ids=["pypy", "no GIL", "debug Python", "debug torch", "another processor"],
)
def reason(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where it cannot be used, and what is said of it."""
    owner, name, value, words = request.param
    monkeypatch.setattr(owner, name, value, raising=False)
    return str(words)


def test_nothing_is_loaded(reason: str):
    assert loading.load() is None
    assert loading.where() is None
    assert reason in loading.why_none()


def test_nothing_is_built(reason: str, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NCCLWATCH_NATIVE_DIR", str(tmp_path))
    with pytest.raises(build.NativeError, match=reason):
        build.build()


def test_doctor_says_why_and_that_python_records(reason: str):
    found = torch_checks.native_recorder()
    assert found.status is Status.WARN
    assert reason in found.fact
    assert "the recorder in Python is used" in found.fact


def test_here_it_can_be_used():
    assert fitness.trouble() is None


@pytest.mark.parametrize(
    ("machine", "capabilities", "whole"),
    [
        ("x86_64", 0, True),
        ("aarch64", 1 << 25, True),
        ("aarch64", ~(1 << 25), False),
        ("aarch64", 0, False),
        ("ppc64le", ~0, False),
    ],
)
def test_16_bytes_are_written_at_once_by_x86_64_and_by_arm64_that_says_so(machine: str, capabilities: int, whole: bool):
    assert fitness.writes_16_bytes_at_once(machine, capabilities) is whole
