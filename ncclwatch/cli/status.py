"""The command `ncclwatch status`: how are the jobs doing?"""

import sys
from collections.abc import Sequence

import click
import msgspec

from ncclwatch.cli.client import Client, Incident, Job, token
from ncclwatch.contract import config
from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.text import harmless


@click.command()
@click.option("--server", default="", help="URL of the server; else NCCLWATCH_SERVER, else port 8470 of the master.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def status(server: str, as_json: bool) -> None:
    """Show the jobs and open incidents of a server."""
    try:
        client = Client(server or config.server_url(), token())
        client.check()
        if as_json:
            click.echo(_json(client))
        else:
            click.echo(_text(client.jobs(), client.incidents(open_only=True)), nl=False)
    except NcclwatchError as error:
        click.echo(f"ncclwatch: {error}", err=True)
        sys.exit(2)


def _json(client: Client) -> str:
    """Return the server's own answers, whole."""
    jobs = msgspec.Raw(client.fetch("/api/v1/jobs"))
    incidents = msgspec.Raw(client.fetch("/api/v1/incidents?state=open"))
    return msgspec.json.format(msgspec.json.encode({"jobs": jobs, "incidents": incidents}), indent=2).decode()


def _text(jobs: Sequence[Job], incidents: Sequence[Incident]) -> str:
    if not jobs and not incidents:
        return "no job reports to this server yet\n"
    lines = [*_table(jobs)] if jobs else []
    for job in jobs:
        lines += [f"{job.id}: {sentence}" for sentence in (*job.waiting, *job.notices)]
    if incidents:
        lines += ["", "open incidents"]
        for incident in incidents:
            lines.append(f"  {incident.id}  {incident.severity.upper()}  {incident.job}: {incident.summary}")
    return "".join(harmless(line) + "\n" for line in lines)


def _table(jobs: Sequence[Job]) -> list[str]:
    rows = [("JOB", "STATE", "RANKS", "STEPS", "OPEN INCIDENTS")]
    for job in jobs:
        ranks = f"{job.ranks_seen}/{job.world_size}"
        rows.append((job.id, job.state, ranks, str(job.steps), ", ".join(job.open_incidents) or "-"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
