"""Runs all checks of `ncclwatch doctor`, one after the other, and prints them."""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

import click
import msgspec

from ncclwatch.cli.client.answers import Refusal
from ncclwatch.cli.commands.asking import complete_job, connect, server_option, the_job
from ncclwatch.cli.doctor import job_checks, node_checks, server_checks, settings_checks, torch_checks
from ncclwatch.cli.doctor.check import Check, Status
from ncclwatch.contract.words.console import Progress, put, put_json

ONE: tuple[Callable[[], Check], ...] = (
    torch_checks.versions, torch_checks.framework, torch_checks.native_recorder, torch_checks.second_witness,
    node_checks.runtime_directory, node_checks.shared_memory, node_checks.stacks, node_checks.gpus,
    node_checks.open_files, node_checks.locked_memory, settings_checks.interfaces, server_checks.server,
    server_checks.clock,
)  # fmt: skip


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints. A field is added, never renamed, while `schema` stays 1."""

    schema: int
    status: Status  # the worst
    checks: tuple[Check, ...]


def checks() -> Iterator[Check]:
    """Look at everything, one after the other."""
    for look in ONE:
        yield look()
    yield from settings_checks.settings()


class JobReport(Report, frozen=True, kw_only=True):
    """What `--job JOB --json` prints."""

    job: str
    nodes: tuple[job_checks.NodeLine, ...]
    refused: tuple[Refusal, ...]


@click.command()
@click.option("--job", default="", shell_complete=complete_job, help="Look at the nodes of this job, from anywhere.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@server_option
def doctor(job: str, as_json: bool, server: str) -> None:
    """Show what this machine lacks for a watched job, and how to fix it. With --job: which of its nodes do not report.

    Exit code 0: all checks pass, 1: something works with less, or hides hangs, 3: something does not work.
    """
    if job:
        _of_job(job, server, as_json=as_json)
    done: list[Check] = []
    for each in checks():
        done.append(each)
        if not as_json:
            put(*render(each))
    if as_json:
        put_json(msgspec.json.encode(Report(schema=1, status=worst(done), checks=tuple(done))))
    sys.exit(worst(done).exit)


def _of_job(named: str, server: str, *, as_json: bool) -> NoReturn:
    with Progress("asking the server and its agents"):
        client = connect(server)
        state = job_checks.look(client, the_job(client, named))
    done = tuple(job_checks.checks(state))
    if as_json:
        found = JobReport(
            schema=1, status=worst(done), checks=done, job=state.job.id, nodes=state.nodes, refused=state.refused
        )
        put_json(msgspec.json.encode(found))
    else:
        from ncclwatch.cli.output.terminal import console, said, table

        rows, more = job_checks.rows(state.nodes)
        shown = console()
        shown.print(table(job_checks.COLUMNS, [[said(cell) for cell in row] for row in rows]))
        if more:
            put(f"and {more} more")
        put("")
        for each in done:
            put(*render(each))
    sys.exit(worst(done).exit)


def worst(done: Iterable[Check]) -> Status:
    """Return the status of the worst check."""
    return max((each.status for each in done), key=tuple(Status).index)


def render(check: Check) -> tuple[str, ...]:
    """Return a check as a line, and what to do about it as another."""
    line = f"{check.status.value:5} {check.name:17} {check.fact}"
    return (line, f"{'':24}do: {check.fix}") if check.fix else (line,)
