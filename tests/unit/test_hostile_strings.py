"""What ranks send reaches terminals as text: nothing in it moves a cursor, hides a line or becomes a second one."""

import asyncio
import io
import logging
import os
from types import SimpleNamespace

import pytest
from rich.console import Console

from ncclwatch.cli.client.answers import Incident, Job
from ncclwatch.cli.commands import status
from ncclwatch.cli.running import following
from ncclwatch.contract.words.log_lines import OneLine
from ncclwatch.contract.words.printable import harmless, one_line
from ncclwatch_agent.commands import put_on_terminal
from ncclwatch_server.runtime.logs import FORMAT

# A title, the clipboard, a cleared screen, CSI as one character, a line that reads backwards, a surrogate, a bell.
HOSTILE = "a\x1b]0;pwned\x07\x1b]52;c;cm0gLXJm\x07\x1b[2J\x9b31m\u202etxt.exe\u2066\ud800\x7f\r\x00b"
OBEYED = "\x1b\x07\x9b\u202e\u2066\ud800\x7f\r\x00"


def test_what_a_terminal_would_obey_is_shown_instead() -> None:
    shown = harmless(HOSTILE)
    assert shown.isprintable()
    assert r"a\x1b]0;pwned\x07" in shown
    assert r"\x9b31m\u202etxt.exe\u2066\ud800\x7f\r\x00b" in shown
    assert harmless("Größe 日本 ✓ x") == "Größe 日本 ✓ x"
    assert harmless("a\nb\tc") == r"a\nb\tc"
    assert harmless("a\nb\tc", keep_lines=True) == "a\nb\\tc"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("größe b", "größe b"),
        ("a\nb\tc\r\u2028d", "a b c  d"),
        ("x\u202ey", r"x\u202ey"),
        ("x\x1b[31m", r"x\x1b[31m"),
        ("\ud800", r"\ud800"),
    ],
)
def test_of_one_line_white_space_is_a_space_and_the_rest_is_spelt_out(text: str, said: str) -> None:
    assert one_line(text) == said


def test_the_status_of_hostile_jobs_is_as_many_lines_as_there_are_things_to_say() -> None:
    job = Job(id="job", state="hung", world_size=2, waiting=(f"{HOSTILE}\n",), notices=(HOSTILE,))
    incident = Incident(
        id="1", job="job", state="open", cause="c", certainty="proven", severity="critical", summary=f"x\nOK {HOSTILE}"
    )
    shown = io.StringIO()
    console = Console(file=shown, width=400)
    for part in status.render((job,), (incident,)):
        console.print(part)
    text = shown.getvalue()
    assert not any(character in text for character in OBEYED)
    assert len(text.splitlines()) == 8


def test_what_run_tells_goes_to_the_terminal_as_text(capfd: pytest.CaptureFixture[str]) -> None:
    following.tell(f"first {HOSTILE}\nsecond\n")
    told = capfd.readouterr().err
    assert not any(character in told for character in OBEYED)
    assert len(told.splitlines()) == 2


def test_what_an_agent_puts_on_a_terminal_is_text_whatever_a_server_sends() -> None:
    reader, writer = os.pipe()

    class Terminal:
        async def write(self, _: object, text: str) -> bool:
            os.write(writer, text.encode())
            return True

    job = SimpleNamespace(wants_terminal=True, is_news=lambda _: True, terminal=Terminal(), candidates=lambda: ())
    asyncio.run(put_on_terminal(job, f"ncclwatch: {HOSTILE}\nsecond\n"))  # type: ignore[arg-type]
    os.close(writer)
    with os.fdopen(reader) as lines:
        told = lines.read()
    assert not any(character in told for character in OBEYED)
    assert len(told.splitlines()) == 2


def test_a_record_of_the_server_is_one_line_and_a_traceback_keeps_its_own() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLine(FORMAT))
    log = logging.Logger("test")
    log.addHandler(handler)
    log.warning("refused an agent: %s", f"agent on {HOSTILE}\n2026-01-01 ncclwatch.server INFO all is well")
    assert len(stream.getvalue().splitlines()) == 1
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        log.exception("failed")
    told = stream.getvalue()
    assert not any(character in told for character in OBEYED)
    assert "\n  | Traceback (most recent call last):\n" in told
