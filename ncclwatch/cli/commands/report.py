"""The command `ncclwatch report`: one incident as one file, for a ticket, or what all hangs of a period have cost."""

import sys
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from ncclwatch.cli.client.answers import LossReport, Whole
from ncclwatch.cli.client.http import NotKnown
from ncclwatch.cli.commands.asking import complete_incident, connect, server_option
from ncclwatch.cli.output.moments import span_s
from ncclwatch.cli.output.report_file import is_stream, prepare
from ncclwatch.contract.errors import ConfigError, NcclwatchError
from ncclwatch.contract.undecodable import UNDECODABLE
from ncclwatch.contract.words.console import Progress, put
from ncclwatch.contract.words.printable import json_text, one_line

FILE_BYTES_MAX = 64 * 1024 * 1024
_SUFFIXES = {".md": "md", ".markdown": "md", ".html": "html", ".htm": "html", ".json": "json", ".txt": "text"}


class _Saved(msgspec.Struct, frozen=True):
    """A file that `ncclwatch run --report` or `analyze --json` has written, or one incident of it."""

    id: str = ""
    incidents: tuple[msgspec.Raw, ...] | None = None


@click.command()
@click.argument("incident", required=False, default="", shell_complete=complete_incident)
@click.option(
    "--period", default="", metavar="SPAN", help="Instead of one INCIDENT: what all hangs have cost since 24h, 7d, 4w."
)
@click.option("--md", "form", flag_value="md", help="Markdown, for a ticket's own text.")
@click.option("--html", "form", flag_value="html", help="One HTML file that needs no other.")
@click.option(
    "--json", "form", flag_value="json", help="The incident as the API gives it; the default without a terminal."
)
@click.option("--text", "form", flag_value="text", help="Plain text, as on the job's terminal; the default on one.")
@click.option(
    "--output", "-o", type=click.Path(path_type=Path),
    help="Write to this file, in the form that its suffix names (.md, .html, .json, .txt) unless an option does.",
)  # fmt: skip
@server_option
def report(incident: str, period: str, form: str | None, output: Path | None, server: str) -> None:
    """Write INCIDENT as text, Markdown, HTML or JSON: one file that holds all that is known of it.

    INCIDENT is an id that `ncclwatch incidents` lists, or a file that `ncclwatch run --report` or `analyze --json` has
    written; of several incidents in it the first critical one, or FILE:ID.

    With --period: a table by cause, or JSON. How many hangs, what became of them, time lost, and time saved.
    """
    if bool(incident) == bool(period):
        raise click.UsageError("name an incident (`ncclwatch incidents` lists them), or a period, as in --period 7d")
    form = form or (form_of(output) if output is not None else "text" if sys.stdout.isatty() else "json")
    target = prepare(output, option="--output") if output is not None else None
    try:
        with Progress("asking the server"):
            made = _losses(period, form, server) if period else _made(incident, form, server)
    except NcclwatchError:
        if target is not None:
            target.discard()
        raise
    if target is None:
        put(*made.removesuffix("\n").split("\n"))
        return
    try:
        target.write(made.encode())
    except OSError as error:
        target.discard()
        put(*made.removesuffix("\n").split("\n"))  # rather than lose it
        raise ConfigError(f"cannot write the report to {output} ({error.strerror}); it is printed instead") from error
    put(f"{output} written", error=True)


def form_of(output: Path) -> str:
    """Return the form that a file's name asks for. Raises `ConfigError`."""
    form = _SUFFIXES.get(output.suffix.lower())
    if form is None and not is_stream(output):
        raise ConfigError(
            f"{output} names no form: end it with {', '.join(_SUFFIXES)}, or add --md, --html, --json or --text"
        )
    return form or "json"


def _losses(period: str, form: str, server: str) -> str:
    """Return what the hangs of a period have cost. Raises `NcclwatchError`."""
    within_s = span_s(period)
    if not within_s:
        raise ConfigError(f"{period!r} is no period; write 24h, 7d or 4w")
    if form not in ("json", "text"):
        raise ConfigError("what hangs have cost comes as --text or --json; the server has it as a page at /report")
    client = connect(server)
    data = client.losses_json(within_s)
    if form == "json":
        return json_text(data) + "\n"
    from ncclwatch.cli.output.loss_table import render
    from ncclwatch.cli.output.terminal import as_text

    return as_text(render(client.decode(data, LossReport)))


def _made(incident: str, form: str, server: str) -> str:
    """Return the report. Raises `NcclwatchError`."""
    saved = _saved(incident)
    if saved is not None:
        return written(saved, form, None)
    client = connect(server)
    data = client.incident_json(incident)
    return written(data, form, lambda: client.incident_text(incident))


def written(data: bytes, form: str, text: Callable[[], str] | None) -> str:
    """Return an incident in one of the forms. `text` gets the server's own; without it there is one made here."""
    if form == "json":
        return json_text(data) + "\n"
    try:
        whole = msgspec.json.decode(data, type=Whole)
    except UNDECODABLE as error:
        raise ConfigError(f"this is no incident of this version of ncclwatch ({error}); use --json") from error
    if form == "html":
        from ncclwatch.cli.output.report_html import html

        return html(whole, data)
    if form == "text" and text is None:
        from ncclwatch.cli.output.report_text import text as plain

        return plain(whole)
    if form == "md" or text is None:
        from ncclwatch.cli.output.report_markdown import markdown

        return markdown(whole)
    return "".join(f"{one_line(line)}\n" for line in text().splitlines())


def _saved(named: str) -> bytes | None:
    """Return the incident in a saved file, None if no such file is named. Raises `NcclwatchError`."""
    path, wanted = Path(named), ""
    if not path.is_file() and ":" in named:
        before, _, wanted = named.rpartition(":")
        path = Path(before)
    if not path.is_file():
        return None
    try:
        data = path.read_bytes()[:FILE_BYTES_MAX]
        saved = msgspec.json.decode(data, type=_Saved)
    except (OSError, *UNDECODABLE) as error:
        raise ConfigError(
            f"cannot read {path} as a report ({error}); name a file of `ncclwatch run --report`, or an incident's id"
        ) from error
    if saved.incidents is None:
        return data
    return _chosen(saved.incidents, wanted, path)


def _chosen(incidents: tuple[msgspec.Raw, ...], wanted: str, path: Path) -> bytes:
    try:
        known = [(msgspec.json.decode(each, type=Whole), each) for each in incidents]
    except UNDECODABLE as error:
        raise ConfigError(f"{path} is no report of this version of ncclwatch ({error}); name another file") from error
    for whole, raw in sorted(known, key=lambda pair: pair[0].severity != "critical"):
        if wanted in ("", whole.id):
            return bytes(raw)
    if not known:
        raise NotKnown(f"{path} holds no incident: nothing was wrong; name another file, or an incident's id")
    ids = ", ".join(whole.id for whole, _ in known[:8])
    raise NotKnown(f"{path} holds no incident {wanted!r}; name one of: {ids}")
