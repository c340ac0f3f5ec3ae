"""Runs all checks of `ncclwatch doctor`, one after the other, and prints them."""

import sys
from collections.abc import Callable, Iterator

import click
import msgspec

from ncclwatch.cli.doctor import node_checks, server_checks, settings_checks, torch_checks
from ncclwatch.cli.doctor.check import Check, Status
from ncclwatch.contract.words.console import put, put_json

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


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def doctor(as_json: bool) -> None:
    """Show what this machine lacks for a watched job, and how to fix it.

    Exit code 0: all checks pass, 1: something works with less, or hides hangs, 3: something does not work.
    """
    done: list[Check] = []
    for each in checks():
        done.append(each)
        if not as_json:
            put(*render(each))
    worst = max((each.status for each in done), key=tuple(Status).index)
    if as_json:
        report = Report(schema=1, status=worst, checks=tuple(done))
        put_json(msgspec.json.encode(report))
    sys.exit(worst.exit)


def render(check: Check) -> tuple[str, ...]:
    """Return a check as a line, and what to do about it as another."""
    line = f"{check.status.value:5} {check.name:17} {check.fact}"
    return (line, f"{'':24}do: {check.fix}") if check.fix else (line,)
