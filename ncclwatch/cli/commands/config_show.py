"""The command `ncclwatch config show`: shows the settings in force here, and where each came from."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ncclwatch.cli.commands.asking import json_option, put_json
from ncclwatch.cli.settings_in_force import InForce, in_force
from ncclwatch.contract.words.console import wants_json

if TYPE_CHECKING:
    from rich.console import RenderableType


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
