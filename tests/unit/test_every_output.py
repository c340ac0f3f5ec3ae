"""Whatever a process calls itself, each way out of the product shows it as text: terminals, logs, JSON, alerts."""

import io
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import RenderableType

from ncclwatch.cli.client.answers import HostRanks, Job, JobStacks, Listed, Standing, Unseen
from ncclwatch.cli.client.answers import Incident as Told
from ncclwatch.cli.commands import incidents, stacks, status
from ncclwatch.cli.commands.report import written
from ncclwatch.cli.output.terminal import EscapingConsole
from ncclwatch.cli.running import following
from ncclwatch.contract.model.rank import StackFrame
from ncclwatch.contract.model.verdict import MergedStack
from ncclwatch.contract.words import console
from ncclwatch.contract.words.log_lines import OneLine
from ncclwatch.contract.words.printable import json_bytes, label_bytes
from ncclwatch_server.incidents.report import report_incident
from ncclwatch_server.incidents.terminal_text import lines_of, render
from ncclwatch_server.metrics.per_rank import escaped
from ncclwatch_server.notify import alertmanager, mail, pagerduty, slack, webhook
from ncclwatch_server.notify.other import unmentioning
from ncclwatch_server.ui.render import PAGES
from ncclwatch_server.ui.slack import slack_text
from tests.unit.cli.test_reports import incident as whole
from tests.unit.server.notify.test_messages import hostile, message

NAMES = {
    "clipboard": "a\x1b]52;c;cm0gLXJm\x07b", "title": "a\x1b]0;root\x07b", "cleared screen": "a\x1b[2J\x1b[Hb",
    "C1": "a\x9b31m\x9d0;x\x9cb", "newline": "a\nroot# b", "carriage return": "a\rroot# b",
    "bidi": "a\u202etxt.exe\u2066b",
    "separators": "a\x0b\x0c\x1c\x85\u2028\u2029b", "NUL and DEL": "a\0\x7fb", "surrogate": "a\ud800b",
    "HTML": "a<script>alert(1)</script><img src=x>b", "Markdown": "a[x](http://evil.example)![x](y)`b",
    "Slack": "a<!channel> <@U1> <http://evil.example|x>b", "label": 'a"} 1\n evil{x="b', "formats": "a{0}%s%n$(x)b",
    "rich": "a[bold red]x[/]:skull:b", "long": "a" * 5000 + "\x1b[31mb", "Chinese": "a训练/模型.pyb",
}  # fmt: skip


def on_stream(monkeypatch: pytest.MonkeyPatch, name: str, write: Callable[[], None]) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n")
    monkeypatch.setattr(sys, name, stream)
    write()
    stream.flush()
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined]


def tables(parts: "list[RenderableType]") -> str:
    stream = io.StringIO()
    shown = EscapingConsole(file=stream, width=100, markup=False, highlight=False, emoji=False)
    for part in parts:
        shown.print(part)
    return stream.getvalue()


def sendable(text: str) -> str:
    """Return what of a text can come over the wire, which is UTF-8."""
    return text.encode("utf-8", "replace").decode()


def of_status(text: str) -> str:
    job = Job(id=text, state="hung", world_size=2, waiting=(text,), notices=(text,))
    told = Told(id=text, job=text, state="open", cause=text, certainty="proven", severity="critical", summary=text)
    return tables(status.render((job,), (told,)))


def of_incidents(text: str) -> str:
    raw = msgspec.json.encode(
        {"id": "1", "job": text, "state": "open", "cause": text, "certainty": text, "severity": "critical",
         "summary": text, "opened_at": text}
    )  # fmt: skip
    msgspec.json.decode(raw, type=Listed)
    return tables(list(incidents.render(incidents.Page(schema=1, incidents=(msgspec.Raw(raw),), next=text))))


def of_stacks(text: str) -> str:
    frames = (StackFrame(function=text, file=text, line=1),)
    found = JobStacks(
        job=text, world_size=1, asked=(0,), chosen=text, took_s=1.0, hosts=(HostRanks(host=text, ranks=(0,)),),
        places=(Standing(ranks=(0,), words=text),), tree=(text,), notes=(text,), unseen=(Unseen(ranks=(0,), why=text),),
        stacks=(MergedStack(ranks=(0,), thread=text, frames=frames),),
    )  # fmt: skip
    return tables(list(stacks.render(found, merged=False)))


def of_log(text: str) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLine("%(levelname)s %(message)s"))
    log = logging.Logger("test")
    log.addHandler(handler)
    log.warning("file %s", text)
    try:
        raise ValueError(text)
    except ValueError:
        log.exception("failed")
    lines = stream.getvalue().splitlines()
    assert sum(line.startswith("WARNING") for line in lines) == 1
    assert all(line.startswith(("WARNING", "ERROR", "  | ")) for line in lines)
    return stream.getvalue()


def saved(text: str) -> bytes:
    return msgspec.json.encode(whole(sendable(text)))


def of_api(text: str) -> str:
    data = msgspec.json.encode(report_incident(hostile(sendable(text))))
    shown = json_bytes(data)
    assert json.loads(shown) == json.loads(data)
    return shown.decode()


def of_metrics(text: str) -> str:
    text = sendable(text)
    shown = label_bytes(f'x{{job_id="{escaped(text)}"}} 1\n'.encode()).decode()
    (family,) = text_string_to_metric_families(shown)
    assert len(family.samples) == 1
    return shown


OUTPUTS: dict[str, Callable[[str], str]] = {
    "status and top": of_status,
    "incidents": lambda text: of_incidents(sendable(text)),
    "stacks": of_stacks,
    "report text": lambda text: written(saved(text), "text", lambda: render(hostile(text))),
    "report html": lambda text: written(saved(text), "html", None),
    "report markdown": lambda text: written(saved(text), "md", None).replace("\u200b", ""),
    "report json": lambda text: written(saved(text), "json", None),
    "text of an incident": lambda text: render(hostile(text)),
    "logs": of_log,
    "page": lambda text: PAGES._environment.from_string("<b>{{ x }}</b>").render(x=text),
    "API": of_api,
    "metrics": of_metrics,
    "channel": lambda text: slack_text(hostile(text), "https://w.example"),
    "webhook": lambda text: webhook.body_of(message(hostile(text))).decode(),
    "Slack": lambda text: slack.body_of(message(hostile(text))).decode().replace("\u200b", ""),
    "mail": lambda text: mail.compose(message(hostile(text)), "a@x.example", ("b@x.example",)).get_content(),
    "PagerDuty": lambda text: pagerduty.body_of(message(hostile(text)), "key").decode(),
    "Alertmanager": lambda text: alertmanager.body_of(message(hostile(text))).decode(),
    "Apprise": lambda text: mail.text_of(message(hostile(text)), unmentioning).replace("\u200b", ""),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("output", OUTPUTS)
def test_no_name_is_more_than_text_in_any_output(output: str, name: str) -> None:
    shown = OUTPUTS[output](NAMES[name])
    assert all(c == "\n" or c.isprintable() for c in shown)
    assert not any(line.startswith(("root#", " evil{")) for line in shown.splitlines())
    assert "训练" in shown or name != "Chinese"


@pytest.mark.parametrize("name", NAMES)
def test_what_commands_write_is_as_many_lines_as_they_have(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = NAMES[name]
    block = lines_of(replace(hostile(text), stacks=()))
    writes: tuple[tuple[str, Callable[[], None], int], ...] = (
        ("stdout", lambda: console.put(text, *block), 1 + len(block)),
        ("stderr", lambda: console.complain(ValueError(text)), 1),
        ("stderr", lambda: following.tell("\n".join(block)), len(block)),
        ("stdout", lambda: console.put_json(msgspec.json.encode(sendable(text))), 1),
    )
    for stream, write, lines in writes:
        shown = on_stream(monkeypatch, stream, write)
        assert all(c == "\n" or c.isprintable() for c in shown)
        assert shown.count("\n") == lines
    assert json.loads(shown) == sendable(text)
