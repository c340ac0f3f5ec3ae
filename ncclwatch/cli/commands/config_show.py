"""The command `ncclwatch config show`: shows the settings in force here, and where each came from."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ncclwatch.cli.commands.asking import json_option, put_json
from ncclwatch.cli.settings_in_force import InForce, in_force
from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.on_hang import hook
from ncclwatch.contract.on_hang.policy import stated, text_in_force
from ncclwatch.contract.words.console import complain, put, wants_json

if TYPE_CHECKING:
    from rich.console import RenderableType


EXIT_USAGE = 2


@click.group()
def config() -> None:
    """Show the settings in force and where each came from."""


@config.command()
@json_option
def show(as_json: bool | None) -> None:
    """Show what ncclwatch would use if it were started from this shell, and where each value came from.

    Ranks, agents and servers read the same variables, each from its own environment. Secrets are not shown.
    """
    found = in_force()
    if wants_json(as_json):
        put_json(found)
        return
    from ncclwatch.cli.output.terminal import console

    shown = console()
    for part in render(found):
        shown.print(part)


@config.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
def policy(file: Path | None) -> None:
    """Print the policy for hangs in force here, or check FILE.

    It says what `ncclwatch run --on-hang policy` does about a hang, by its cause and its certainty. To change it,
    write it to a file, edit that, and name it: ncclwatch run --policy FILE
    """
    try:
        put(*text_in_force(file).splitlines())
        found = stated(file)
        if found.hook and (problem := hook.problem(found.hook)):
            complain(f"warning: the hook cannot be run on this host: {problem}")
    except ConfigError as error:
        complain(error)
        sys.exit(EXIT_USAGE)


def render(found: InForce) -> "Iterator[RenderableType]":
    """Yield the answer for people."""
    from ncclwatch.cli.output.terminal import said, table

    rows = [
        [said(each.name, "bold"), said(each.value), said(each.origin, "" if each.is_set else "dim"), said(each.meaning)]
        for each in found.settings
    ]
    yield table(["SETTING", "VALUE", "FROM", "MEANING"], rows, flexible="MEANING")
    for problem in found.problems:
        yield ""
        yield said(problem, "bold red")
