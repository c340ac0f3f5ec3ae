"""Runs a program with the system calls and capabilities that a unit of systemd allows, without systemd.

`python -m tests.integration.confined UNIT COMMAND...`: as root, with libseccomp, setpriv of util-linux, and
systemd-analyze, which knows the groups of calls. A call that is not allowed fails with EPERM, as the units want it.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_ALLOW, _DENY_EPERM = 0x7FFF0000, 0x00050001  # SCMP_ACT_ALLOW, SCMP_ACT_ERRNO(EPERM)
TOOLS = ("systemd-analyze", "setpriv")


def needs_tools() -> None:
    """Skip a test where a unit cannot be tried."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() or missing:
        pytest.skip(f"needs root and {', '.join(TOOLS)}; missing: {missing}")


def settings(unit: Path) -> Iterator[tuple[str, str]]:
    """Yield the settings of a unit in their order."""
    for line in unit.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith(("#", "[")):
            yield name, value


def allowed_calls(unit: Path) -> frozenset[str]:
    """Return the system calls that a unit allows: systemd.exec(5), SystemCallFilter."""
    found: set[str] = set()
    for name, value in settings(unit):
        if name == "SystemCallFilter":
            calls = {call for word in value.removeprefix("~").split() for call in _expanded(word)}
            found = found - calls if value.startswith("~") else found | calls
    return frozenset(found)


def capabilities(unit: Path) -> list[str]:
    """Return the capabilities that a unit leaves, as setpriv spells them."""
    kept = dict(settings(unit)).get("CapabilityBoundingSet", "")
    return [word.removeprefix("CAP_").lower() for word in kept.split()]


def command(unit: Path, *words: str) -> list[str]:
    """Return the command that runs another one as a unit would."""
    kept = ",".join(["-all", *(f"+{name}" for name in capabilities(unit))])
    privileges = [f"--{which}={kept}" for which in ("inh-caps", "ambient-caps", "bounding-set")]
    return ["setpriv", *privileges, "--no-new-privs", sys.executable, "-m", __name__, str(unit), *words]


def _expanded(word: str) -> Iterator[str]:
    if not word.startswith("@"):
        yield word
        return
    told = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager", word], capture_output=True, text=True, check=True
    )
    for line in told.stdout.splitlines()[1:]:
        if line.strip() and not line.strip().startswith("#"):
            yield from _expanded(line.strip())


def _confine(unit: Path) -> None:
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    calls = allowed_calls(unit)
    rules = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_DENY_EPERM)))
    for call in calls:
        number = library.seccomp_syscall_resolve_name(call.encode())
        if number >= 0 and library.seccomp_rule_add(rules, ctypes.c_uint32(_ALLOW), number, 0):
            raise OSError(f"no rule for {call}")
    if library.seccomp_load(rules):
        raise OSError("the filter was not taken")


if __name__ == "__main__":
    _confine(Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
