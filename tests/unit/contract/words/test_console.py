"""Who reads an answer, and what is shown while it takes time."""

import io
import sys
import time

import pytest

from ncclwatch.contract.words.console import ERASE, Colour, Progress, put, wants_json, width


class Terminal(io.StringIO):
    """A stream that says it is a terminal, or not."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def shown_while_busy(monkeypatch: pytest.MonkeyPatch, stream: Terminal, wanted: int, *, elsewhere: bool = True) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    asked: list[int] = []

    def doing() -> str:
        asked.append(1)
        return f"reading file {len(asked)}\x1b[31m"

    with Progress(doing, quiet_s=0.0, elsewhere=elsewhere) as progress:
        deadline = time.monotonic() + 20
        while len(asked) < wanted and progress._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
    return stream.getvalue()


@pytest.mark.parametrize(("terminal", "asked", "json"), [
    (True, None, False), (False, None, True), (True, True, True), (False, False, False),
])  # fmt: skip
def test_a_terminal_gets_text_and_a_pipe_json_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, asked: bool | None, json: bool
):
    monkeypatch.setattr(sys, "stdout", Terminal(terminal))
    assert wants_json(asked) is json


def test_what_is_quick_says_nothing(monkeypatch: pytest.MonkeyPatch):
    stream = Terminal(True)
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("asking the server", quiet_s=60.0):
        pass
    assert stream.getvalue() == ""


def test_on_a_terminal_one_line_is_written_over_and_vanishes(monkeypatch: pytest.MonkeyPatch):
    said = shown_while_busy(monkeypatch, Terminal(True), 2)
    assert f"{ERASE}reading file 1\\x1b[31m ... 0 s{ERASE}reading file 2" in said, "control characters are shown"
    assert said.endswith(ERASE)
    assert "\n" not in said


def test_elsewhere_it_is_one_line_once(monkeypatch: pytest.MonkeyPatch):
    said = shown_while_busy(monkeypatch, Terminal(False), 1)
    assert said == "ncclwatch: reading file 1\\x1b[31m ...\n"


def test_where_only_a_terminal_may_show_it_a_file_gets_nothing(monkeypatch: pytest.MonkeyPatch):
    stream = Terminal(False)
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("starting", quiet_s=0.0, elsewhere=False) as progress:
        assert not progress._over.wait(0.1)
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("terminal", "environ", "shown"),
    [
        (True, {}, "\x1b[1;31mCRITICAL \x1b[0mit hangs\nCRITICALLY\n"),
        (True, {"NO_COLOR": "1"}, "CRITICAL it hangs\nCRITICALLY\n"),
        (True, {"TERM": "dumb"}, "CRITICAL it hangs\nCRITICALLY\n"),
        (False, {}, "CRITICAL it hangs\nCRITICALLY\n"),
    ],
)
def test_a_mark_has_a_colour_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, environ: dict[str, str], shown: str
):
    written = Terminal(terminal)
    monkeypatch.setattr(sys, "stderr", written)
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    put("CRITICAL it hangs", "CRITICALLY", error=True, marks={"CRITICAL ": Colour.RED})
    assert written.getvalue() == shown


def test_where_there_is_no_terminal_a_line_has_a_hundred_columns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert width(error=True) == 100
