"""A report file is private, is never written through a link, and a pipe that was named gets it too."""

import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from ncclwatch.cli.commands.report import form_of
from ncclwatch.cli.main import main
from ncclwatch.cli.output.report_file import prepare
from ncclwatch.contract.errors import ConfigError


@pytest.fixture(autouse=True)
def open_umask() -> "object":
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_report_is_for_its_owner_alone_also_where_a_file_was_before(tmp_path: Path) -> None:
    place = tmp_path / "report.json"
    place.write_text("old")
    place.chmod(0o644)
    prepare(place).write(b"new")
    assert (place.read_bytes(), mode(place)) == (b"new", 0o600)
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_in_its_place_is_replaced_and_what_it_points_to_is_left_alone(tmp_path: Path, dangling: bool) -> None:
    victim, place = tmp_path / "victim", tmp_path / "report.json"
    if not dangling:
        victim.write_text("mine")
    place.symlink_to(victim)
    prepare(place).write(b"new")
    assert not place.is_symlink()
    assert place.read_bytes() == b"new"
    assert not victim.exists() if dangling else victim.read_text() == "mine"


def test_a_pipe_and_standard_output_get_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        prepare(pipe).write(b"report")
        assert os.read(reader, 100) == b"report"
    finally:
        os.close(reader)
    os.write(1, b"before ")
    prepare(Path("/dev/stdout")).write(b"report")
    assert capfd.readouterr().out == "before report"
    assert Path("/dev/stdout").is_symlink()


def test_a_directory_that_is_not_there_is_told_before_anything_is_done(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        prepare(tmp_path / "none" / "report.json")


def test_what_is_prepared_and_not_written_leaves_nothing(tmp_path: Path) -> None:
    prepare(tmp_path / "report.json").discard()
    assert list(tmp_path.iterdir()) == []


def test_a_file_whose_name_asks_for_no_known_form_is_refused(tmp_path: Path):
    saved = tmp_path / "saved.json"
    saved.write_text('{"incidents": []}')
    done = CliRunner().invoke(main, ["report", str(saved), "-o", str(tmp_path / "report.doc")])
    assert done.exit_code == 2
    assert ".html" in done.stderr and "--md" in done.stderr
    assert not (tmp_path / "report.doc").exists()


def test_a_pipe_needs_no_suffix(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    assert form_of(tmp_path / "pipe") == "json"
    assert form_of(Path("/dev/stdout")) == "json"


@pytest.mark.parametrize("incident", [{}, {"id": 5}, {"id": "0123456789ab"}])
def test_a_saved_report_of_another_version_is_an_error_that_says_so(tmp_path: Path, incident: dict[str, object]):
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps({"incidents": [incident]}))
    done = CliRunner().invoke(main, ["report", str(saved)])
    assert done.exit_code == 2
    assert f"{saved} is no report of this version of ncclwatch" in done.stderr


def test_the_option_that_named_a_place_is_the_one_to_change(tmp_path: Path):
    saved = tmp_path / "saved.json"
    saved.write_text('{"incidents": []}')
    done = CliRunner().invoke(main, ["report", str(saved), "-o", str(tmp_path / "none" / "report.html")])
    assert done.exit_code == 2
    assert done.stderr.strip().endswith("that you can write to with --output")
