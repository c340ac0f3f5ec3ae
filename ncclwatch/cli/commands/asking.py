"""Has what all commands share that ask a server: which one, in which form, and how an answer gets out."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import click
import msgspec

from ncclwatch.cli.client.answers import Job
from ncclwatch.cli.client.http import Client, NotKnown, dial
from ncclwatch.contract import job_names
from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.words import console
from ncclwatch.contract.words.console import JSON_HELP

COMPLETION_S = 0.7  # whoever has pressed Tab does not wait longer
COMPLETIONS_MAX = 200
Command = TypeVar("Command", bound=Callable[..., None])


class NoJobNamed(NcclwatchError):
    """There is not exactly one job that can be meant."""


def server_option(command: Command) -> Command:
    """Add --server."""
    return click.option(
        "--server", default="", help="URL of the server; else NCCLWATCH_SERVER, else port 8470 of MASTER_ADDR."
    )(command)


def json_option(command: Command) -> Command:
    """Add --json and --text; the argument is None where neither is given."""
    return click.option("--json/--text", "as_json", default=None, help=JSON_HELP)(command)


def owner_options(command: Command) -> Command:
    """Add options that choose jobs by whose they are."""
    for option in (
        click.option("--label", "label", multiple=True, metavar="NAME[=PATTERN]", help="With this label only."),
        click.option("--user", default="", help="Of this user only."),
        click.option("--namespace", default="", help='Of this namespace only: what stands before the first "/".'),
    ):
        command = option(command)
    return command


def connect(server: str, timeout_s: float = 3.0) -> Client:
    """Return a client of the server that is meant, which was seen to be one of ours. Raises `NcclwatchError`."""
    client = dial(server, timeout_s=timeout_s)
    client.check()
    return client


def put_json(*documents: bytes | object) -> None:
    """Print values, or JSON that the server has made, readably."""
    for document in documents:
        console.put_json(document if isinstance(document, bytes) else msgspec.json.encode(document))


def the_job(client: Client, named: str) -> Job:
    """Return the job of a name, or the only one that runs. Raises `NotKnown` and `NoJobNamed`."""
    jobs = client.jobs()
    if named:
        found = next((job for job in jobs if job.id in (named, job_names.canonical(named))), None)
        if found is None:
            raise NotKnown(f"the server at {client.url} knows no job {named!r}; {_known(jobs)}")
        return found
    running = [job for job in jobs if job.state != "ended"]
    if len(running) == 1:
        return running[0]
    what = f"{len(running)} jobs report" if running else "no job reports"
    raise NoJobNamed(f"{what} to the server at {client.url}, so which one is meant is not clear; {_known(jobs)}")


def _known(jobs: Iterable[Job]) -> str:
    names = [job.id for job in jobs]
    if not names:
        return "start one with ncclwatch.attach() in it, or name another server with --server"
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"name one of: {', '.join(names[:8])}{more}"


def complete_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the jobs of the server for a shell that completes; nothing where it does not answer."""
    return _completed(ctx, incomplete, lambda client: [job.id for job in client.jobs()])


def complete_incident(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the incidents of the server for a shell that completes; nothing where it does not answer."""
    return _completed(ctx, incomplete, lambda client: [incident.id for incident in client.incidents()])


def _completed(ctx: click.Context, incomplete: str, ask: Callable[[Client], list[str]]) -> list[str]:
    try:
        names = ask(connect(ctx.params.get("server") or "", COMPLETION_S))
    except NcclwatchError:
        return []
    return [name for name in names if name.startswith(incomplete)][:COMPLETIONS_MAX]
