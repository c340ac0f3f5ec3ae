"""Whichever system call fails while a report or capture is kept: nothing half is left, and the next try succeeds."""

import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclwatch.cli.output.kept_files import keep_capture, keep_report
from ncclwatch.contract.errors import ConfigError
from tests.unit.failing.system_calls import CALLS, each_failure

Keep = Callable[..., Path]
DATA = b"what is kept" * 100


def files(place: Path) -> list[Path]:
    return [path for path in place.rglob("*") if path.is_file()]


@pytest.mark.parametrize("keep", [keep_report, keep_capture])
@pytest.mark.parametrize("name", CALLS)
def test_keeping_a_file(name: str, keep: Keep, tmp_path: Path) -> None:
    def attempt(number: int) -> None:
        place = tmp_path / str(number)
        environ = {"XDG_STATE_HOME": str(place), "HOME": str(place)}
        try:
            keep("job", DATA, environ)
        except (OSError, ConfigError):
            failed.append(number)

    failed: list[int] = []
    calls = each_failure(name, attempt)
    for number in range(1, calls + 1):
        place = tmp_path / str(number)
        if number in failed:
            assert files(place) == []
            keep("job", DATA, {"XDG_STATE_HOME": str(place), "HOME": str(place)})
        assert [path.read_bytes() for path in files(place)] == [DATA]


@pytest.mark.parametrize("keep", [keep_report, keep_capture])
@pytest.mark.parametrize("most", [0, 1, 600, len(DATA) - 1])
def test_a_disk_that_takes_only_so_much(keep: Keep, most: int, tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            keep("job", DATA, environ)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert files(tmp_path) == []
    assert keep("job", DATA, environ).read_bytes() == DATA
