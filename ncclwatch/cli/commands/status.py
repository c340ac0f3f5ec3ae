"""The command `ncclwatch status`: shows how the jobs are doing."""

import sys
from typing import TYPE_CHECKING

import click
import msgspec

from ncclwatch.cli.client.answers import Incident, Job
from ncclwatch.cli.client.http import Client, Query
from ncclwatch.cli.commands.asking import (
    complete_job,
    connect,
    json_option,
    owner_options,
    put_json,
    server_option,
    the_job,
)
from ncclwatch.cli.exits import Exit
from ncclwatch.contract.words.console import Progress, wants_json

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA = 1


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The server's own answers, whole."""

    schema: int
    jobs: tuple[msgspec.Raw, ...]
    incidents: tuple[msgspec.Raw, ...]


class _Named(msgspec.Struct, frozen=True):
    id: str = ""
    job: str = ""
    severity: str = ""


@click.command()
@click.argument("job", default="", shell_complete=complete_job)
@server_option
@json_option
@owner_options
@click.option("--exit-code", is_flag=True, help="End with 1 if a critical incident is open.")
def status(job: str, server: str, as_json: bool | None, exit_code: bool, **of: str | tuple[str, ...]) -> None:
    """Show the jobs and open incidents of a server, or one JOB and its own."""
    with Progress("asking the server"):
        found = ask(connect(server), job, of)
    if wants_json(as_json):
        put_json(found)
    else:
        from ncclwatch.cli.output.terminal import console

        shown = console()
        for part in render(*decoded(found), chosen=any(of.values())):
            shown.print(part)
    if exit_code and any(
        msgspec.json.decode(incident, type=_Named).severity == "critical" for incident in found.incidents
    ):
        sys.exit(Exit.BAD_NEWS)


def ask(client: Client, job: str, of: Query | None = None) -> Status:
    """Return the jobs and the open incidents, all, those that fit or those of one job. Raises `NcclwatchError`."""
    if job:
        job = the_job(client, job).id
    jobs = client.decode(client.jobs_json(of or {}), tuple[msgspec.Raw, ...])
    incidents = client.decode(client.open_incidents_json(of), tuple[msgspec.Raw, ...])
    if job:
        jobs = tuple(each for each in jobs if msgspec.json.decode(each, type=_Named).id == job)
        incidents = tuple(each for each in incidents if msgspec.json.decode(each, type=_Named).job == job)
    return Status(schema=SCHEMA, jobs=jobs, incidents=incidents)


def decoded(found: Status) -> tuple[tuple[Job, ...], tuple[Incident, ...]]:
    """Return the part of the answers that is shown."""
    return (
        tuple(msgspec.json.decode(job, type=Job) for job in found.jobs),
        tuple(msgspec.json.decode(incident, type=Incident) for incident in found.incidents),
    )


def render(jobs: tuple[Job, ...], incidents: tuple[Incident, ...], *, chosen: bool = False) -> "list[RenderableType]":
    """Return the answer for people, `chosen` if they asked for some jobs only."""
    from ncclwatch.cli.output.job_table import incident_lines, job_lines, job_table, worst_first
    from ncclwatch.cli.output.terminal import said

    if not jobs and not incidents:
        return [said("no job of this server fits" if chosen else "no job reports to this server yet")]
    parts: list[RenderableType] = [job_table(jobs)] if jobs else []
    parts += [line for job in worst_first(jobs) for line in job_lines(job)]
    if incidents:
        parts += ["", said("open incidents", "bold"), *incident_lines(incidents)]
    return parts
