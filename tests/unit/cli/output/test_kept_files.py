"""Reports and captures of hangs are kept where nobody named a file: the newest ones, for their owner alone."""

import errno
import os
from pathlib import Path

import pytest

from ncclwatch.cli.output import report_file
from ncclwatch.cli.output.kept_files import KEPT_MAX, keep_capture, keep_report


def test_a_report_is_kept_for_its_owner_and_old_ones_go(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    for number in range(KEPT_MAX + 3):
        path = keep_report(f"job-{number}", b"{}", environ)
        os.utime(path, (number, number))
    kept = sorted((tmp_path / "ncclwatch/reports").iterdir())
    assert len(kept) == KEPT_MAX
    assert not (tmp_path / "ncclwatch/reports/job-0.json").exists()
    assert path.read_bytes() == b"{}"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_the_name_of_a_job_is_no_path(tmp_path: Path) -> None:
    path = keep_report("../../team/job", b"{}", {"XDG_STATE_HOME": str(tmp_path)})
    assert path.parent == tmp_path / "ncclwatch/reports"


def test_two_captures_of_one_second_are_two_files_and_the_newest_are_kept(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    paths = {keep_capture("team/llama", b"zip", environ) for _ in range(KEPT_MAX + 3)}
    assert len(paths) == KEPT_MAX + 3
    left = set((tmp_path / "ncclwatch" / "captures").iterdir())
    assert left < paths
    assert len(left) == KEPT_MAX


def test_in_a_directory_that_was_named_all_captures_are_kept(tmp_path: Path) -> None:
    environ = {"NCCLWATCH_CAPTURES": str(tmp_path / "kept")}
    paths = {keep_capture("llama", b"zip", environ) for _ in range(KEPT_MAX + 3)}
    assert set((tmp_path / "kept").iterdir()) == paths


def test_of_a_capture_that_cannot_be_written_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(report_file.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        keep_capture("llama", b"zip", {"NCCLWATCH_CAPTURES": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []
