"""The command `ncclwatch incidents`: lists what was wrong, with which job, and when."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
import msgspec

from ncclwatch.cli.client.answers import Listed
from ncclwatch.cli.commands.asking import (
    complete_incident,
    complete_job,
    connect,
    json_option,
    owner_options,
    put_json,
    server_option,
)
from ncclwatch.cli.output.moments import moment, span_s
from ncclwatch.contract import config
from ncclwatch.contract.model.verdict import Cause, Severity
from ncclwatch.contract.words.aftermath import aftermath_words, cost_words
from ncclwatch.contract.words.console import Progress, wants_json

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA = 1
SUMMARY_CHARS_MAX = 300  # the report has the rest
STATE_CHARS = 17
LIMIT_MAX = config.INCIDENTS_PAGE_MAX - 1  # one more tells whether there are more


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some incidents, the newest first, as machines read them."""

    schema: int
    incidents: tuple[msgspec.Raw, ...]
    next: str | None  # what --before takes to go on; None: there are no more
    incomplete: str = ""  # why some are missing of which only the server's store knows


@click.command()
@click.option("--job", default="", shell_complete=complete_job, help="Of this job only.")
@click.option(
    "--cause", type=click.Choice([cause.value for cause in Cause]), help="Of this cause only.", metavar="CAUSE"
)
@click.option("--state", type=click.Choice(["open", "resolved", "ended"]), help="In this state only.")
@click.option("--severity", type=click.Choice([severity.value for severity in Severity]), help="So severe only.")
@click.option("--since", default="", metavar="TIME", help="Opened since then: 2h, 3d, 2026-11-20, 2026-11-20T17:30.")
@click.option("--until", default="", metavar="TIME", help="Opened before then.")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=50, show_default=True, help="So many at most.")
@click.option(
    "--before", default="", metavar="INCIDENT", shell_complete=complete_incident,
    help="The next page: those that come after this one in the list.",
)  # fmt: skip
@owner_options
@server_option
@json_option
def incidents(server: str, as_json: bool | None, limit: int, label: tuple[str, ...], **filters: str | None) -> None:
    """List the incidents of a server, the newest first."""
    wanted = parameters({name: value or "" for name, value in filters.items()}, limit)
    with Progress("asking the server"):
        client = connect(server)
        answer = client.incidents_page({**wanted, "label": label})
        found = page(client.decode(answer.data, tuple[msgspec.Raw, ...]), limit, answer.without)
    if wants_json(as_json):
        put_json(found)
        return
    from ncclwatch.cli.output.terminal import console

    shown = console()
    for part in render(found):
        shown.print(part)


def parameters(filters: dict[str, str], limit: int) -> dict[str, str]:
    """Return what the API is asked: one more than is shown, to know whether there are more. Raises `ConfigError`."""
    wanted = dict(filters)
    since, until = wanted.pop("since", ""), wanted.pop("until", "")
    back_s = span_s(since)
    if back_s is not None:
        wanted["within_s"] = str(back_s)
    elif since:
        wanted["since"] = moment(since)
    if until:
        wanted["until"] = moment(until)
    wanted["limit"] = str(limit + 1)
    return wanted


def page(found: tuple[msgspec.Raw, ...], limit: int, incomplete: str = "") -> Page:
    """Return what is shown of an answer, and where the next page begins."""
    shown = found[:limit]
    last = msgspec.json.decode(shown[-1], type=Listed).id if len(found) > limit else None
    return Page(schema=SCHEMA, incidents=shown, next=last, incomplete=incomplete)


def render(found: Page) -> "Iterator[RenderableType]":
    """Yield the answer for people."""
    from rich.padding import Padding
    from rich.text import Text

    from ncclwatch.cli.output.terminal import local_time, said, word

    listed = [msgspec.json.decode(incident, type=Listed) for incident in found.incidents]
    if found.incomplete:
        yield said(found.incomplete, "yellow")
    if not listed and found.incomplete:
        return
    if not listed:
        yield said("no incident fits; `ncclwatch incidents` without filters lists all")
        return
    # The sentence has lines of its own: beside the name of a job a narrow terminal leaves it a few columns.
    yield said(f"{'INCIDENT':<12}  {'OPENED':<19}  {'STATE':<{STATE_CHARS}}  JOB", "bold")
    for each in listed:
        head = Text.assemble(said(f"{each.id:<12}", "bold"), "  ", said(f"{local_time(each.opened_at):<19}"), "  ")
        head.append_text(Text.assemble(word(each.state), " ", word(each.severity)))
        head.append_text(said(f"{'':{max(0, STATE_CHARS - len(each.state) - 1 - len(each.severity))}}  {each.job}"))
        head.overflow = "fold"
        yield head
        what = Text.assemble(said(f"{each.cause}, {each.certainty}: ", "dim"), said(each.summary[:SUMMARY_CHARS_MAX]))
        what.overflow = "fold"
        yield Padding(what, (0, 0, 0, 2), expand=False)
        after = aftermath_words(each.recovered_after_s, each.came_back_as, each.came_back_from)
        lost = cost_words(each.lost_s, each.world_size, each.gpus) if each.lost_s is not None else ""
        if lost or after:
            yield Padding(said("; ".join(filter(None, (after, lost and f"lost {lost}")))), (0, 0, 0, 2), expand=False)
    if found.next is not None:
        yield said(f"there are more: add --before {found.next}", "dim")
