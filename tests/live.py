"""A pytest plugin that marks, in the report, which tests started a process: they depend on the machine's load."""

import sys
from collections.abc import Generator

import pytest

STARTED_A_PROCESS = "started a process"  # a user property in the report
_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})
_running: list[pytest.Item] = []  # no more than one


def _notice(event: str, _: object) -> None:
    if event in _STARTS and _running:
        properties = _running[0].user_properties
        if (STARTED_A_PROCESS, True) not in properties:
            properties.append((STARTED_A_PROCESS, True))


def pytest_configure() -> None:
    """Watch what starts a process, in whichever thread. An audit hook stays for as long as the interpreter."""
    sys.addaudithook(_notice)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Its set-up and tear-down are part of a test."""
    _running.append(item)
    try:
        return (yield)
    finally:
        _running.clear()
