"""What `ncclwatch trace` says where it cannot write, or where nothing has the name that was given."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from ncclwatch_server.tracing import command


@pytest.mark.parametrize("named", ["/none/job", "./job", "~/job", "rank0.ring"])
def test_a_path_that_is_not_there_is_no_job(named: str):
    done = CliRunner().invoke(command.trace, [named, "--server", "http://127.0.0.1:9"])
    assert f"there is no {named}" in str(done.exception)


def test_a_place_that_cannot_be_written_to_is_told_with_its_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command, "_of_files", lambda paths: b"trace")
    done = CliRunner().invoke(command.trace, [str(tmp_path), "-o", str(tmp_path / "none" / "a.pftrace")])
    assert "cannot write the trace to" in str(done.exception) and str(done.exception).endswith("with --output")


def test_a_full_disk_leaves_nothing_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(fd: int, data: bytes, *, keep: bool) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "_of_files", lambda paths: b"trace")
    monkeypatch.setattr("ncclwatch.cli.output.report_file._write", full)
    done = CliRunner().invoke(command.trace, [str(tmp_path), "-o", str(tmp_path / "a.pftrace")])
    assert "No space left on device" in str(done.exception)
    assert not list(tmp_path.iterdir())
