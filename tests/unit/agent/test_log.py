"""The log of an agent is bounded, and one record is one line whatever stands in it."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclwatch.contract.machine.private_dirs import open_private
from ncclwatch.contract.words.log_lines import OneLine
from ncclwatch_agent.log import BoundedFile


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logging.Logger]:
    with open_private(str(tmp_path)) as place:
        handler = BoundedFile(place, "agent.log", bytes_max=1000)
        handler.setFormatter(OneLine("%(levelname)s %(message)s"))
        made = logging.Logger("test")
        made.addHandler(handler)
        yield made
        handler.close()


@pytest.mark.parametrize("text", ["a\nINFO forged", "a\r\x1b[2J", "a\u202e\x85b", "\udc80"])
def test_nothing_in_a_record_begins_a_line_or_moves_a_cursor(log: logging.Logger, tmp_path: Path, text: str):
    log.warning("file %s", text)
    (line,) = (tmp_path / "agent.log").read_text().split("\n")[:-1]
    assert line.isprintable() and line.startswith("WARNING file ")


def test_a_traceback_keeps_its_lines_behind_a_bar(log: logging.Logger, tmp_path: Path):
    try:
        raise ValueError("x\nssh-rsa AAAA")
    except ValueError:
        log.exception("it ends")
    first, *rest = (tmp_path / "agent.log").read_text().splitlines()
    assert first == "ERROR it ends"
    assert rest and all(line.startswith("  | ") for line in rest)


def test_a_full_log_goes_on_in_a_new_file_and_follows_no_link(log: logging.Logger, tmp_path: Path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "agent.log.1").symlink_to(victim)
    for _ in range(30):
        log.warning("x" * 100)
    assert (tmp_path / "agent.log").stat().st_size <= 1000
    assert not (tmp_path / "agent.log.1").is_symlink()
    assert victim.read_text() == "mine"
